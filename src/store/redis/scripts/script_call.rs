//! Which script answers a call's actions: the call that applies them, and what its reply says of each.

use super::call_plan::{Actions, Asked, Meaning};
use super::{bucket, group, window};
use crate::algorithm::Outcome;
use crate::store::contract::{Batch, Entry};
use crate::store::redis::topology::Layout;
use crate::store::redis::wire::{Call, Elements, Failure, Reply};

/// What applies the actions; it takes the keys of their buckets.
pub fn call(batch: &Batch, asked: &mut Asked, layout: Layout) -> Call {
    match asked {
        Asked::OfOne(actions) => of_one(batch, actions, layout),
        Asked::Together(asked) => {
            let of_one = |member: &mut Actions| of_one(batch, member, layout);
            let step = |step: &mut Vec<Actions>| step.iter_mut().map(of_one).collect();
            group::call(asked.steps.iter_mut().map(step), asked.has_successor)
        }
    }
}

fn of_one(batch: &Batch, actions: &mut Actions, layout: Layout) -> Call {
    match actions.meaning {
        Meaning::Window => window::call(batch, actions, layout),
        Meaning::Bucket => bucket::call(batch, actions, layout),
    }
}

/// What the reply to that call says of each action.
pub fn outcomes(batch: &Batch, asked: &Asked, reply: &Reply) -> Result<Vec<Result<Outcome, Failure>>, Failure> {
    let outcomes = reply.elements().and_then(|mut reply| {
        let mut outcomes = Vec::new();
        match asked {
            Asked::OfOne(actions) => read(batch, actions, &mut reply, &mut outcomes)?,
            Asked::Together(asked) => {
                let mut members = asked.steps.iter().flatten();
                members.try_for_each(|member| read(batch, member, &mut reply, &mut outcomes))?;
            }
        }
        (reply.len() == 0).then_some(outcomes)
    });
    outcomes.ok_or(Failure::Foreign("a script's reply does not have one outcome for each action"))
}

fn read(
    batch: &Batch,
    actions: &Actions,
    reply: &mut Elements<'_>,
    outcomes: &mut Vec<Result<Outcome, Failure>>,
) -> Option<()> {
    outcomes.reserve(actions.indices.len());
    actions.entries(batch).try_for_each(|entry| {
        outcomes.push(match reply.error() {
            Some(error) => Err(error.into()),
            None => Ok(outcome(actions.meaning, entry, reply)?),
        });
        Some(())
    })
}

fn outcome(meaning: Meaning, entry: &Entry, reply: &mut Elements<'_>) -> Option<Outcome> {
    match meaning {
        Meaning::Window => window::outcome(entry, reply),
        Meaning::Bucket => bucket::outcome(entry, reply),
    }
}

#[cfg(test)]
mod tests;
