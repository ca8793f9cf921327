//! The call that applies actions in Redis, and the outcomes that its reply holds.

use super::call_plan::{BucketActions, CallPlan};
use super::script_text::{GROUP, WINDOW, bucket_script};
use super::{bucket, records, window};
use crate::algorithm::Outcome;
use crate::store::contract::Batch;
use crate::store::redis::topology::Layout;
use crate::store::redis::wire::{Arguments, Call, Failure, Reply, Script};

/// Returns the call that applies the actions, and takes the keys of their buckets.
pub fn make_call(batch: &Batch, plan: &mut CallPlan, layout: Layout) -> Call {
    if let ([], [actions]) = (plan.steps.as_slice(), plan.buckets.as_mut_slice()) {
        let (script, keys, arguments) = script_input(batch, actions, layout);
        return Call::script(script, keys, arguments, actions.indices.len());
    }
    let (mut keys, mut arguments) = (Vec::new(), Arguments::default());
    let mut buckets = plan.buckets.iter_mut();
    for members in &plan.steps {
        arguments.push_number(*members as u64);
        for actions in buckets.by_ref().take(*members) {
            let (script, own_keys, own_arguments) = script_input(batch, actions, layout);
            arguments.push(script.name);
            arguments.push_number(own_keys.len() as u64);
            arguments.push_number(own_arguments.len() as u64);
            arguments.append(&own_arguments);
            keys.extend(own_keys);
        }
    }
    Call { brings_text: plan.has_successor, ..Call::script(&GROUP, keys, arguments, plan.buckets.len()) }
}

/// Returns the script that applies actions on one bucket, with its keys and arguments.
fn script_input(
    batch: &Batch,
    actions: &mut BucketActions,
    layout: Layout,
) -> (&'static Script, Vec<Vec<u8>>, Arguments) {
    let mut arguments = Arguments::with_capacity(3 + 2 * actions.indices.len());
    let script = if actions.is_window {
        window::write_arguments(batch, actions, &mut arguments);
        &*WINDOW
    } else {
        bucket::write_arguments(batch, actions, &mut arguments);
        bucket_script(&actions.limit)
    };
    let keys = records::keys(std::mem::take(&mut actions.key), &actions.records, layout, &mut arguments);
    (script, keys, arguments)
}

/// Reads the outcome of each action from the reply.
pub fn read_outcomes(batch: &Batch, plan: &CallPlan, reply: &Reply) -> Result<Vec<Result<Outcome, Failure>>, Failure> {
    reply.read("a script's reply does not have one outcome for each action", |elements| {
        let mut outcomes = Vec::with_capacity(plan.indices().count());
        for actions in &plan.buckets {
            for entry in actions.entries(batch) {
                outcomes.push(match elements.error() {
                    Some(error) => Err(error.into()),
                    None if actions.is_window && !elements.is_at_text() => Ok(window::read_outcome(entry, elements)?),
                    None => Ok(bucket::read_outcome(entry, elements)?),
                });
            }
        }
        Some(outcomes)
    })
}

#[cfg(test)]
mod tests;
