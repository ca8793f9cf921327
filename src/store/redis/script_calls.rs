//! Which script answers a call's actions: the call that applies them, and what its reply says of each.

use super::actions::{Actions, Asked, Meaning};
use super::call::{Call, Failure};
use super::reply::{Elements, Reply};
use super::{bucket, together, window};
use crate::algorithm::Outcome;
use crate::store::batch::{Batch, Entry};

/// What applies the actions; it takes the keys of their buckets.
pub(super) fn call(batch: &Batch, asked: &mut Asked) -> Call {
    match asked {
        Asked::OfOne(actions) => of_one(batch, actions),
        Asked::Together(members) => together::call(members.iter_mut().map(|member| of_one(batch, member))),
    }
}

fn of_one(batch: &Batch, actions: &mut Actions) -> Call {
    match actions.meaning {
        Meaning::Window => window::call(batch, actions),
        Meaning::Bucket => bucket::call(batch, actions),
    }
}

/// What the reply to that call says of each action.
pub(super) fn outcomes(batch: &Batch, asked: &Asked, reply: &Reply) -> Result<Vec<Outcome>, Failure> {
    let outcomes = reply.elements().and_then(|mut reply| {
        let mut outcomes = Vec::new();
        match asked {
            Asked::OfOne(actions) => read(batch, actions, &mut reply, &mut outcomes)?,
            Asked::Together(members) => {
                members.iter().try_for_each(|member| read(batch, member, &mut reply, &mut outcomes))?;
            }
        }
        (reply.len() == 0).then_some(outcomes)
    });
    outcomes.ok_or(Failure::Foreign("a script's reply does not have one outcome for each action"))
}

fn read(batch: &Batch, actions: &Actions, reply: &mut Elements<'_>, outcomes: &mut Vec<Outcome>) -> Option<()> {
    let outcome = |entry: &Entry, reply: &mut Elements<'_>| match actions.meaning {
        Meaning::Window => window::outcome(entry, reply),
        Meaning::Bucket => bucket::outcome(reply),
    };
    outcomes.reserve(actions.indices.len());
    actions.entries(batch).try_for_each(|entry| {
        outcomes.push(outcome(entry, reply)?);
        Some(())
    })
}
