//! The call that applies actions in Redis, and the outcomes in its reply.

use super::call_plan::{BucketActions, CallPlan};
use super::script_text::{GROUP, WINDOW, bucket_script};
use super::{bucket, records};
use crate::topology::Layout;
use crate::wire::{Call, Failure, Reply};
use divvy_core::algorithm::Outcome;
use divvy_store::contract::{Batch, Entry};

/// Returns the call that applies the actions, and takes the keys of their buckets.
pub fn make_call(batch: &Batch, plan: &mut CallPlan, layout: Layout) -> Call {
    if let ([], [actions]) = (plan.steps.as_slice(), plan.buckets.as_mut_slice()) {
        return bucket_call(batch, actions, layout);
    }
    let (mut keys, mut arguments) = (Vec::new(), Vec::new());
    let mut buckets = plan.buckets.iter_mut();
    for members in &plan.steps {
        arguments.push(members.to_string().into());
        for actions in buckets.by_ref().take(*members) {
            let member = bucket_call(batch, actions, layout);
            arguments.extend(member.script.map(|script| script.name.into()));
            arguments.extend([member.keys.len(), member.arguments.len()].map(|count| count.to_string().into()));
            arguments.extend(member.arguments);
            keys.extend(member.keys);
        }
    }
    Call { brings_text: plan.has_successor, ..Call::script(&GROUP, keys, arguments, plan.buckets.len()) }
}

/// Returns the call that applies actions on one bucket, and takes the bucket's key.
fn bucket_call(batch: &Batch, actions: &mut BucketActions, layout: Layout) -> Call {
    let mut arguments = bucket::arguments(batch, actions);
    let script = if actions.is_window { &*WINDOW } else { bucket_script(&actions.limit) };
    let keys = records::keys(std::mem::take(&mut actions.key), &actions.records, layout, &mut arguments);
    Call::script(script, keys, arguments, actions.indices.len())
}

/// Reads the outcome of each action from the reply.
pub fn read_outcomes(batch: &Batch, plan: &CallPlan, reply: &Reply) -> Result<Vec<Result<Outcome, Failure>>, Failure> {
    let entries = plan.buckets.iter().flat_map(|actions| actions.entries(batch));
    let texts = reply.texts().filter(|texts| texts.len() == plan.indices().count());
    let read = |(entry, text): (&Entry, _)| match text {
        Ok(text) => bucket::read_outcome(entry, text).map(Ok),
        Err(error) => Some(Err(Failure::from(error))),
    };
    let outcomes = texts.and_then(|texts| entries.zip(texts).map(read).collect());
    outcomes.ok_or(Failure::Foreign("a script's reply does not have one outcome for each action"))
}

#[cfg(test)]
mod tests;
