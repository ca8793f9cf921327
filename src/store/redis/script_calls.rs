//! Which script answers a group of actions: the call that applies them, and what its reply says of each.

use super::call::{Call, Failure};
use super::group::{Group, Meaning};
use super::reply::Reply;
use super::{bucket, window};
use crate::algorithm::Outcome;
use crate::store::batch::Batch;

/// What applies the group's actions; it takes the group's key.
pub(super) fn call(batch: &Batch, group: &mut Group) -> Call {
    match group.meaning {
        Meaning::Window => window::call(batch, group),
        Meaning::Bucket => bucket::call(batch, group),
    }
}

/// What the reply to that call says of each action.
pub(super) fn outcomes(batch: &Batch, group: &Group, reply: &Reply) -> Result<Vec<Outcome>, Failure> {
    match group.meaning {
        Meaning::Window => window::outcomes(batch, group, reply),
        Meaning::Bucket => bucket::outcomes(group, reply),
    }
}
