//! A plan: the actions of a batch of requests on the store, and the source of each answer.
//!
//! The [builder](PlanBuilder) makes it, [`Limiter::apply`](super::Limiter::apply) passes it to the store, and the
//! [report](super::report) reads the answers. Once built, a plan does not change.

mod builder;
pub mod effects;
mod entries;
mod reservation;
mod rules;
mod share;

use std::ops::Range;
use std::sync::Arc;

pub use self::builder::PlanBuilder;
pub use self::entries::{Payload, Together};
pub(crate) use self::reservation::NamedRecord;
pub use self::reservation::{DEFAULT_MAX_RESERVATION_TTL, ReservationId, Reserve};
pub(crate) use self::share::share_id;
use crate::active_rules::ActiveRules;
use crate::refusal::{MAX_CLIENT_ID, Refusal};
use crate::report::Report;
use crate::store::{Action, Batch};
use divvy_core::algorithm::{Limit, Outcome, Run};
use divvy_core::clock::Timestamp;

/// Memory of a request in addition to its entries (bytes).
pub(crate) const REQUEST_WEIGHT: usize = 128;

/// A batch of requests, planned under one set of rules and dated with one time.
#[derive(Debug, Default)]
pub struct Plan {
    pub(crate) active: Option<Arc<ActiveRules>>,
    /// Entries for the store. Several members may share one.
    pub(crate) batch: Batch,
    pub(crate) requests: Vec<Request>,
    /// The members of all requests, one request after the other.
    pub(crate) members: Vec<Member>,
    /// The actors of members without an entry.
    pub(crate) fixed_actors: FixedActors,
    /// The domains and entries of hits on clients' own limits in ratelimit's domains, by the indexes of the requests.
    pub(crate) own_hits: FixedActors,
    /// The blocks that deny members.
    pub(crate) blocks: Vec<Block>,
    pub(crate) groups: Vec<Group>,
    /// The records that are settled, one request after the other.
    pub(crate) settled: Vec<SettledRecord>,
    /// Number of requests that hit rules.
    pub(crate) hits: u64,
}

/// One request, and the source of its answer.
#[derive(Debug)]
pub(crate) enum Request {
    /// The store gets no action.
    Refused(Refusal),
    /// An entry under the client's own limit.
    OwnLimit(usize),
    /// The client's own limit allows nothing, so no counter is needed.
    Barred(Box<Outcome>),
    /// The rules that the request concerns, canaries included.
    Rules { members: Range<usize>, is_idempotent: bool },
    /// The records of the reservation that the request settles.
    Settlement(Range<usize>),
}

/// The action of a request on a rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Index among the rules in force.
    pub rule: usize,
    pub action: Action,
    /// Whether the rule has no part in the request unless no other rule answers.
    pub is_absent: bool,
}

/// A rule that a request concerns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    /// Index among the rules in force.
    pub rule: usize,
    pub is_canary: bool,
    pub veto: Veto,
    pub purpose: Purpose,
    pub source: Source,
}

/// When a member that would deny the request does deny it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Veto {
    Alone,
    /// When all members of its quota group would that the request matches.
    WithGroup,
    /// Never, except if there is nothing that it could grant.
    None,
}

/// The effect of a request on a rule. It determines the metric that counts the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The request looks or forgets, which no metric counts.
    Other,
    Hit,
    /// A hit with an idempotency key.
    IdempotentHit,
    Charge,
    Refund,
    Release,
}

impl Purpose {
    /// Returns whether the request reports something that has already happened.
    pub fn is_settlement(self) -> bool {
        matches!(self, Self::Charge | Self::Refund | Self::Release)
    }
}

/// The source of a member's answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// The rule has no counter.
    Fixed { allowed: bool, credit: u64 },
    /// The outcome of this entry.
    Entry(usize),
    /// The actor is blocked: the index of its block in the plan.
    Blocked(usize),
}

impl Source {
    /// Returns the index of the entry, if there is one.
    #[inline]
    pub fn entry(self) -> Option<usize> {
        if let Self::Entry(entry) = self { Some(entry) } else { None }
    }
}

/// A block that denies a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Nanoseconds until it ends. `None` if it lasts until it is removed.
    pub ends_ns: Option<u64>,
    /// The operator's reason.
    pub reason: Option<Arc<str>>,
}

/// Requests, or the rules of one request, that take effect together or not at all.
#[derive(Debug)]
pub(crate) struct Group {
    /// The members, canaries included.
    pub members: Range<usize>,
    /// The requests, which may have limits of their own. Empty if the members are the rules of one request.
    pub requests: Range<usize>,
}

/// A record of a reservation that is being settled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SettledRecord {
    /// The entry. `None` if this server does not have the calendar of the record's counter: then nothing is reserved
    /// there.
    pub entry: Option<usize>,
    /// The rule in force that has the counter, if any.
    pub rule: Option<usize>,
}

/// A position in a plan that is being built. The plan can return to it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark {
    pub entries: usize,
    pub requests: usize,
    pub members: usize,
    blocks: usize,
    groups: usize,
    settled: usize,
    hits: u64,
}

impl Plan {
    /// Empties the plan, dates it, and pins the rules under which it is built.
    pub(crate) fn begin(&mut self, active: Option<Arc<ActiveRules>>, now: Timestamp) {
        self.return_to(Mark::default());
        self.batch.begin(now);
        self.active = active;
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            entries: self.batch.len(),
            requests: self.requests.len(),
            members: self.members.len(),
            blocks: self.blocks.len(),
            groups: self.groups.len(),
            settled: self.settled.len(),
            hits: self.hits,
        }
    }

    /// Returns the report on all requests. The store must have applied the plan.
    pub fn report(&self) -> Report<'_> {
        Report::new(self, 0..self.requests.len())
    }

    /// Removes everything that was added since `mark`.
    pub(super) fn return_to(&mut self, mark: Mark) {
        self.batch.truncate(mark.entries);
        self.requests.truncate(mark.requests);
        self.members.truncate(mark.members);
        self.fixed_actors.truncate(mark.members);
        self.own_hits.truncate(mark.requests);
        self.blocks.truncate(mark.blocks);
        self.groups.truncate(mark.groups);
        self.settled.truncate(mark.settled);
        self.hits = mark.hits;
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the time when the requests are decided.
    pub fn now(&self) -> Timestamp {
        self.batch.now()
    }

    /// Returns the memory that its buffers hold, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.batch.memory()
            + self.requests.capacity() * size_of::<Request>()
            + self.members.capacity() * size_of::<Member>()
            + self.fixed_actors.memory()
            + self.own_hits.memory()
            + self.blocks.capacity() * size_of::<Block>()
            + self.groups.capacity() * size_of::<Group>()
            + self.settled.capacity() * size_of::<SettledRecord>()
    }

    /// Returns an upper estimate of the memory that the requests take until they are answered (bytes).
    #[inline]
    pub fn weight(&self) -> usize {
        self.batch.weight() + self.requests.len() * REQUEST_WEIGHT + self.fixed_actors.len() + self.own_hits.len()
    }

    /// Returns the requests from index `first` on that were refused while the plan was built.
    pub(crate) fn refusals(&self, first: usize) -> impl Iterator<Item = (usize, &Refusal)> {
        self.requests.iter().skip(first).enumerate().filter_map(|(index, request)| match request {
            Request::Refused(refusal) => Some((index, refusal)),
            Request::OwnLimit(_) | Request::Barred(_) | Request::Rules { .. } | Request::Settlement(_) => None,
        })
    }

    /// Returns the members of a request, or the reason why it has none.
    #[inline]
    pub(crate) fn members_of(&self, request: Option<&Request>) -> Result<&[Member], Refusal> {
        match request {
            Some(Request::Rules { members, .. }) => Ok(self.members.get(members.clone()).unwrap_or_default()),
            Some(Request::Refused(refusal)) => Err(refusal.clone()),
            Some(Request::OwnLimit(_) | Request::Barred(_) | Request::Settlement(_)) | None => Err(Refusal::NoRules),
        }
    }

    /// Returns the entry of a member that makes or frees a reservation.
    pub(crate) fn reservation(&self, member: &Member) -> Option<usize> {
        let entry = member.source.entry()?;
        self.batch.entry(entry)?.action.is_about_reservation().then_some(entry)
    }

    /// Returns the records of these members' reservations, with the runs that `run` returns for their entries. An entry that
    /// several members share counts for the first of them.
    pub(crate) fn records<'a>(
        &'a self,
        members: &'a [Member],
        run: impl Fn(usize) -> Option<Run> + 'a,
    ) -> impl Iterator<Item = NamedRecord<'a>> {
        members.iter().enumerate().filter_map(move |(place, member)| {
            let entry = self.reservation(member)?;
            let shares = |earlier: &Member| self.reservation(earlier) == Some(entry);
            if members.get(..place)?.iter().any(shares) {
                return None;
            }
            let fingerprint = self.active.as_ref().map_or(0, |active| active.fingerprint(member.rule));
            Some(NamedRecord { rule: fingerprint, run: run(entry), key: self.batch.key_at(entry)? })
        })
    }

    /// Returns the length of the id of these members' reservations (characters).
    pub(super) fn id_length(&self, members: &[Member]) -> usize {
        ReservationId::text_length(self.records(members, |_| None).map(|record| record.key.len()))
    }

    /// Returns the limit that decides a member; `None` if the rule has no counter.
    pub(crate) fn limit(&self, member: &Member) -> Option<&Limit> {
        Some(&self.batch.entry(member.source.entry()?)?.limit)
    }
}

/// The terms of a reservation.
#[derive(Debug)]
pub(super) struct Terms {
    pub ttl_seconds: Option<u32>,
    /// Maximum TTL of a reservation that is not a lease (seconds).
    pub max_ttl_seconds: u32,
    pub record_id: Vec<u8>,
    /// Whether each counter sets aside at most as many credits as it can hold.
    pub is_clamped: bool,
}

/// Returns whether a client may give this name to a reservation.
pub(super) fn is_client_id(id: &[u8]) -> bool {
    (1..=MAX_CLIENT_ID).contains(&id.len())
}

/// Appends the record id of a reservation that the client named.
pub(super) fn write_client_record_id(id: &[u8], out: &mut Vec<u8>) {
    out.push(b'c');
    out.extend_from_slice(id);
}

/// The actors, one after the other, and the cost of each one's hit.
#[derive(Debug, Default)]
pub struct FixedActors {
    names: Vec<u8>,
    /// The place of each member in the plan, in ascending order, the cost, and the range of its actor in `names`.
    ranges: Vec<(usize, u64, Range<usize>)>,
}

impl FixedActors {
    /// Adds the actor that `write` appends, of the member at this place. It comes after all members before it.
    pub fn push(&mut self, member: usize, cost: u64, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.names.len();
        write(&mut self.names);
        self.ranges.push((member, cost, start..self.names.len()));
    }

    /// Returns the actor and the cost of the member at this place.
    pub fn get(&self, member: usize) -> Option<(&[u8], u64)> {
        let index = self.ranges.binary_search_by_key(&member, |(member, ..)| *member).ok()?;
        let (_, cost, range) = self.ranges.get(index)?;
        Some((self.names.get(range.clone())?, *cost))
    }

    /// Returns the members in their order, each with its actor and its cost.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[u8], u64)> {
        self.ranges.iter().filter_map(|(member, cost, range)| Some((*member, self.names.get(range.clone())?, *cost)))
    }

    /// Removes the actors of the members from this place on.
    pub fn truncate(&mut self, members: usize) {
        let kept = self.ranges.partition_point(|(member, ..)| *member < members);
        if let Some((.., range)) = self.ranges.get(kept) {
            self.names.truncate(range.start);
            self.ranges.truncate(kept);
        }
    }

    /// Returns the length of all actors (bytes).
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the memory of the buffers, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.names.capacity() + self.ranges.capacity() * size_of::<(usize, u64, Range<usize>)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actors_are_found_by_their_members() {
        let mut actors = FixedActors::default();
        for (member, name) in [(1, "ann"), (4, ""), (5, "bob"), (9, "eve")] {
            actors.push(member, 7, |out| out.extend_from_slice(name.as_bytes()));
        }
        let name = |actors: &FixedActors, member| actors.get(member).map(|(name, _)| name.to_vec());
        let found =
            |actors: &FixedActors| (0..10).filter_map(|member| name(actors, member)).collect::<Vec<_>>().concat();
        assert_eq!(found(&actors), b"annbobeve");
        assert_eq!((actors.get(4), actors.get(5), actors.get(6)), (Some((&b""[..], 7)), Some((&b"bob"[..], 7)), None));
        actors.truncate(5);
        assert_eq!((found(&actors), actors.len()), (b"ann".to_vec(), 3));
        actors.push(5, 7, |out| out.push(b'x'));
        assert_eq!(found(&actors), b"annx");
    }
}
