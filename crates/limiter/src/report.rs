//! The answers to a plan's requests, derived from the store's outcomes. Nothing here changes the plan or the outcomes.

mod observers;
mod statistics;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::active_rules::ActiveRules;
use super::plan::{
    Block, DEFAULT_MAX_RESERVATION_TTL, Member, Plan, Purpose, Request, ReservationId, Source, Veto, share_id,
};
use super::refusal::Refusal;
use crate::store::{StoreError, usable_share_ns};
use divvy_core::algorithm::{Limit, Outcome, OutcomeSource, Resolution};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::Rule;

/// Reads the answers to some of a plan's requests, which follow each other, from the outcomes of the plan's entries.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    pub(super) plan: &'a Plan,
    requests: &'a [Request],
}

impl<'a> Report<'a> {
    /// Creates the report on these requests of an applied plan.
    pub(crate) fn new(plan: &'a Plan, requests: Range<usize>) -> Self {
        Self { plan, requests: plan.requests.get(requests).unwrap_or_default() }
    }

    /// Returns the number of requests.
    pub fn len(self) -> usize {
        self.requests.len()
    }

    /// Returns whether there are no requests.
    pub fn is_empty(self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the members of all requests.
    fn all_members(self) -> &'a [Member] {
        let of = |request: &Request| match request {
            Request::Rules { members, .. } => Some(members.clone()),
            _ => None,
        };
        let mut ranges = self.requests.iter().filter_map(of);
        let Some(first) = ranges.next() else { return &[] };
        let end = ranges.next_back().map_or(first.end, |last| last.end);
        self.plan.members.get(first.start..end).unwrap_or_default()
    }

    /// Returns the verdict on request `index`, by the rule that answers.
    ///
    /// # Errors
    /// There are no rules, the request was refused, its idempotency key was used for another request, or the store
    /// failed for any of its counters.
    pub fn verdict(self, index: usize) -> Result<Verdict, Refusal> {
        match self.members(index)? {
            // Fast path: one rule, no stack, no canaries.
            [only] => self.answer(only),
            members => Ok(self.answering(members)?.1),
        }
    }

    /// Returns the outcome of request `index`, which has a limit of its own.
    ///
    /// # Errors
    /// The store failed for its bucket.
    pub fn outcome(self, index: usize) -> Result<Outcome, Refusal> {
        match self.requests.get(index) {
            Some(Request::OwnLimit(entry)) => Ok(self.entry(*entry)?),
            Some(Request::Barred(outcome)) => Ok(**outcome),
            Some(Request::Refused(refusal)) => Err(refusal.clone()),
            Some(Request::Rules { .. } | Request::Settlement(_)) | None => Err(Refusal::NoRules),
        }
    }

    /// Returns the number of counters that request `index`, an [`Intent::Forget`](crate::Intent::Forget), has
    /// forgotten.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn forgotten(self, index: usize) -> Result<usize, Refusal> {
        self.members(index)?.iter().try_fold(0, |count, member| match member.source {
            Source::Entry(entry) => Ok(count + usize::from(self.entry(entry)?.allowed)),
            Source::Fixed { .. } | Source::Blocked(_) => Ok(count),
        })
    }

    /// Returns whether all counters of the requests with an idempotency key repeated their answers.
    ///
    /// # Errors
    /// The index of the first request whose key was used for another request.
    pub fn is_replay(self) -> Result<bool, usize> {
        let (mut is_any, mut are_all) = (false, true);
        for (index, request) in self.requests.iter().enumerate() {
            let Request::Rules { is_idempotent: true, .. } = request else { continue };
            for member in self.members(index).map_err(|_| index)?.iter().filter(|member| !member.is_canary) {
                if member.source.entry().is_some() {
                    is_any = true;
                    are_all &= self.resolution(member) == Some(Resolution::Repeated);
                }
            }
        }
        Ok(is_any && are_all)
    }

    /// Returns the members of request `index`.
    #[inline]
    pub(super) fn members(self, index: usize) -> Result<&'a [Member], Refusal> {
        match self.requests.get(index) {
            // Fast path: no idempotency key.
            Some(Request::Rules { members, is_idempotent: false }) => {
                Ok(self.plan.members.get(members.clone()).unwrap_or_default())
            }
            _ => self.idempotent_members(index),
        }
    }

    #[cold]
    fn idempotent_members(self, index: usize) -> Result<&'a [Member], Refusal> {
        let members = self.plan.members_of(self.requests.get(index))?;
        // Canaries do not answer.
        let is_different =
            |member: &Member| !member.is_canary && self.resolution(member) == Some(Resolution::Different);
        if members.iter().any(is_different) { Err(Refusal::DifferentRequest) } else { Ok(members) }
    }

    // Inlined, because it runs for each rule of each hit.
    #[inline(always)]
    pub(super) fn answer(self, member: &Member) -> Result<Verdict, Refusal> {
        match member.source {
            Source::Fixed { allowed, credit } => Ok(Verdict::uncounted(allowed, credit)),
            Source::Blocked(_) => Ok(Verdict::blocked(self.block(member).and_then(|block| block.ends_ns))),
            Source::Entry(entry) => {
                let outcome = self.entry(entry)?;
                if outcome.resolution == Resolution::Different && !member.is_canary {
                    return Err(Refusal::DifferentReservation);
                }
                // Freeing a lease succeeds even if it is not held.
                let allowed = outcome.allowed || member.veto == Veto::None || member.purpose == Purpose::Release;
                let retry_ns = outcome.retry_ns.filter(|_| !allowed);
                Ok(Outcome { allowed, retry_ns, ..outcome }.into())
            }
        }
    }

    #[inline]
    pub(super) fn entry(self, index: usize) -> Result<Outcome, StoreError> {
        self.plan.batch.outcome(index)
    }

    /// Returns whether the member's rule allowed the request, regardless of its quota group; `None` if the store did not answer.
    #[inline]
    pub(super) fn allowed(self, member: &Member) -> Option<bool> {
        match member.source {
            Source::Fixed { allowed, .. } => Some(allowed),
            Source::Blocked(_) => Some(false),
            Source::Entry(entry) => {
                Some(self.plan.batch.outcomes.get(entry)?.as_ref().ok()?.allowed || member.veto == Veto::None)
            }
        }
    }

    /// Returns the resolution of the member's entry; `None` if it has no entry, or the store failed.
    pub(super) fn resolution(self, member: &Member) -> Option<Resolution> {
        Some(self.plan.batch.outcomes.get(member.source.entry()?)?.as_ref().ok()?.resolution)
    }

    /// Returns the block that denies the member, if there is one.
    pub(super) fn block(self, member: &Member) -> Option<&'a Block> {
        let Source::Blocked(index) = member.source else { return None };
        self.plan.blocks.get(index)
    }

    pub(super) fn active_rules(self) -> Option<&'a Arc<ActiveRules>> {
        self.plan.active.as_ref()
    }

    /// Returns the nanoseconds until a reservation ends; `None` if it never does.
    pub(super) fn until(self, ends: Timestamp) -> Option<u64> {
        (ends != Timestamp::EPOCH).then(|| ends.since(self.plan.now()))
    }
}

/// State of a request at one of the rules that it matched.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// The state at this rule.
    pub verdict: Verdict,
    /// The rule's [`Rule::name`](divvy_core::rules::Rule::name).
    pub name: &'a str,
    /// The label of the rule, or else its text.
    pub text: &'a str,
    /// Index of the rule among the rules in force.
    pub place: usize,
    /// The limit in force: the actor's own, or the rule's. `None` if the rule has no counter.
    pub limit: Option<&'a Limit>,
    /// Maximum number of credits that can be left.
    pub capacity: u64,
    /// The block that denies the request, if the actor is blocked.
    pub block: Option<&'a Block>,
}

impl<'a> Report<'a> {
    /// Returns the state of request `index` at the rule that answers it. In a stack, that is the rule that denies for
    /// the longest time, or else the one with the smallest share of its credits left. If several are equal, the first
    /// one answers. A quota group takes part as its rule with the most credits left, or else the one that denies for the shortest
    /// time.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn standing(self, index: usize) -> Result<Standing<'a>, Refusal> {
        let (member, verdict) = self.answering(self.members(index)?)?;
        self.standing_of(member, verdict)
    }

    /// Returns the member that answers for these members, and its verdict. See [`Report::standing`].
    pub(super) fn answering(self, members: &'a [Member]) -> Result<(&'a Member, Verdict), Refusal> {
        let mut answering: Option<(&Member, Verdict, u64)> = None;
        for member in members {
            let (member, verdict) = self.representative(member, members)?;
            let capacity = self.capacity(member, &verdict);
            let comes_first = |(_, known, of_known): &(_, Verdict, u64)| {
                verdict.comes_before((capacity, *of_known), known, member.purpose.is_settlement())
            };
            if !member.is_canary && answering.as_ref().is_none_or(comes_first) {
                answering = Some((member, verdict, capacity));
            }
        }
        answering.map(|(member, verdict, _)| (member, verdict)).ok_or(Refusal::NoRules)
    }

    /// Returns the first rule that request `index` had to pass.
    pub fn rule(self, index: usize) -> Option<&'a Rule> {
        let first = self.members(index).ok()?.iter().find(|member| !member.is_canary)?;
        self.active_rules()?.rules.rules().get(first.rule)
    }

    /// Returns the time of the plan.
    pub fn now(self) -> Timestamp {
        self.plan.now()
    }

    /// Returns the member that takes part in the decision in place of this one, which is one of `members`, and its verdict.
    fn representative(self, member: &'a Member, members: &'a [Member]) -> Result<(&'a Member, Verdict), Refusal> {
        let own = (member, self.answer(member)?);
        let Some(group) = self.quota_group(member) else { return Ok(own) };
        let mut of_group = members.iter().filter(|other| self.quota_group(other) == Some(group));
        of_group.try_fold(own, |known, other| {
            let verdict = self.answer(other)?;
            Ok(if verdict.comes_before_in_quota_group(&known.1) { (other, verdict) } else { known })
        })
    }

    /// Returns the quota group of a member that denies only together with it.
    fn quota_group(self, member: &Member) -> Option<&'a str> {
        let rules = self.active_rules().filter(|_| member.veto == Veto::WithGroup)?;
        rules.rules.rules().get(member.rule)?.quota_group.as_deref()
    }

    /// Takes the requests as parts of one call, and returns the indexes of those that deny it. A quota group denies it if all of its
    /// rules that the hits match would.
    pub fn denying(self) -> Vec<usize> {
        let is_hit = |member: &&Member| !member.is_canary && !member.purpose.is_settlement();
        let allows = |member: &Member| self.answer(member).is_ok_and(|verdict| verdict.allowed);
        let hits = self.all_members().iter().filter(is_hit);
        let allowing: HashSet<_> =
            hits.filter_map(|member| self.quota_group(member).filter(|_| allows(member))).collect();
        let denies = |index: &usize| match self.requests.get(*index) {
            Some(Request::OwnLimit(_) | Request::Barred(_)) => {
                self.outcome(*index).is_ok_and(|outcome| !outcome.allowed)
            }
            _ => self.members(*index).unwrap_or_default().iter().any(|member| {
                let is_outvoted = self.quota_group(member).is_some_and(|group| allowing.contains(group));
                !member.is_canary && !is_outvoted && !allows(member)
            }),
        };
        (0..self.requests.len()).filter(denies).collect()
    }

    /// Returns whether several rules had to allow request `index`.
    pub fn is_stack(self, index: usize) -> bool {
        self.members(index).unwrap_or_default().iter().filter(|member| !member.is_canary).count() > 1
    }

    /// Returns whether request `index` was a charge or a refund.
    pub fn is_settlement(self, index: usize) -> bool {
        self.members(index).unwrap_or_default().iter().any(|member| member.purpose.is_settlement())
    }

    /// Returns the state of request `index` at each of the rules that had to allow it, in their order.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn standings(self, index: usize) -> Result<impl Iterator<Item = Standing<'a>>, Refusal> {
        let members = self.members(index)?;
        let standing = move |member: &'a Member| {
            let verdict = self.answer(member).ok()?;
            let allowed = verdict.allowed || self.representative(member, members).ok()?.1.allowed;
            let verdict = Verdict { allowed, retry_ns: verdict.retry_ns.filter(|_| !allowed), ..verdict };
            self.standing_of(member, verdict).ok()
        };
        Ok(members.iter().filter(|member| !member.is_canary).filter_map(standing))
    }

    /// Returns the names of the rules that request `index` had to pass, and whose limit it exceeds, or the part of the limit that
    /// `annotateAt` gives.
    pub fn exceeded(self, index: usize) -> Vec<&'a str> {
        let Some(active) = self.active_rules().filter(|active| active.annotates) else { return Vec::new() };
        let members = self.members(index).unwrap_or_default().iter().filter(|member| !member.is_canary);
        let rules = members.filter_map(|member| Some((member, active.rules.rules().get(member.rule)?)));
        let exceeded = rules.filter(|(member, rule)| self.is_exceeded(member, rule).unwrap_or(false));
        exceeded.filter_map(|(member, _)| active.names.get(member.rule).map(|(name, _)| name.as_str())).collect()
    }

    fn is_exceeded(self, member: &Member, rule: &Rule) -> Result<bool, Refusal> {
        // Without the store's answer, nothing is known.
        let is_known = |entry| self.entry(entry).is_ok_and(|outcome| outcome.source != OutcomeSource::FailurePolicy);
        if !member.source.entry().is_some_and(is_known) {
            return Ok(false);
        }
        let verdict = self.answer(member)?;
        let capacity = self.capacity(member, &verdict);
        Ok(rule.is_exceeded(capacity.saturating_sub(verdict.credit).saturating_add(verdict.owed), capacity))
    }

    fn standing_of(self, member: &Member, verdict: Verdict) -> Result<Standing<'a>, Refusal> {
        let active = self.active_rules().ok_or(Refusal::NoRules)?;
        let (name, text) = active.names.get(member.rule).ok_or(Refusal::NoRules)?;
        let capacity = self.capacity(member, &verdict);
        let block = self.block(member);
        Ok(Standing { verdict, name, text, place: member.rule, limit: self.plan.limit(member), capacity, block })
    }

    fn capacity(self, member: &Member, verdict: &Verdict) -> u64 {
        // A rule without a counter always has all of its credits.
        self.plan.limit(member).map_or(verdict.credit, Limit::capacity)
    }
}

/// The answer to a hit or a peek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request was granted.
    pub allowed: bool,
    /// Credits left now.
    pub credit: u64,
    /// Nanoseconds until there are more credits, as the rule's algorithm defines it.
    pub reset_ns: u64,
    /// Credits used beyond the limit, if none is left. See [`Outcome::owed`].
    pub owed: u64,
    /// Nanoseconds until the same request would be granted, if it was denied: see [`Outcome::retry_ns`].
    pub retry_ns: Option<u64>,
}

impl Verdict {
    /// Returns the answer of a rule without a counter.
    pub(super) fn uncounted(allowed: bool, credit: u64) -> Self {
        Self { allowed, credit, reset_ns: 0, owed: 0, retry_ns: None }
    }

    /// Returns the answer to a blocked actor. `ends_ns` is the time until its block ends, if it does.
    pub(super) fn blocked(ends_ns: Option<u64>) -> Self {
        Self { reset_ns: ends_ns.unwrap_or(0), retry_ns: ends_ns, ..Self::uncounted(false, 0) }
    }

    /// Returns whether this verdict answers in place of one by a rule that was matched before. The capacities of both rules are the
    /// maximum numbers of credits that can be left.
    fn comes_before(&self, (capacity, before_capacity): (u64, u64), before: &Self, is_settlement: bool) -> bool {
        if is_settlement {
            // A settlement is always allowed, so only the balance matters.
            return i128::from(self.balance()) * i128::from(before_capacity)
                < i128::from(before.balance()) * i128::from(capacity);
        }
        match (self.allowed, before.allowed) {
            (false, false) => self.wait_ns() > before.wait_ns(),
            (true, true) => {
                u128::from(self.credit) * u128::from(before_capacity) < u128::from(before.credit) * u128::from(capacity)
            }
            (allowed, _) => !allowed,
        }
    }

    /// Returns whether this verdict takes part for a quota group in place of the one `before`.
    fn comes_before_in_quota_group(&self, before: &Self) -> bool {
        match (self.allowed, before.allowed) {
            (false, false) => self.wait_ns() < before.wait_ns(),
            (true, true) => self.balance() > before.balance(),
            (allowed, _) => allowed,
        }
    }

    /// Returns the wait after a denial. If waiting does not help, it counts as infinite.
    fn wait_ns(&self) -> u128 {
        self.retry_ns.map_or(u128::MAX, u128::from)
    }

    /// Returns the balance: credits left, negative if more were used than there were. Capped to 64 bits.
    pub fn balance(&self) -> i64 {
        let balance = i128::from(self.credit) - i128::from(self.owed);
        i64::try_from(balance).unwrap_or(if self.owed > 0 { i64::MIN } else { i64::MAX })
    }
}

impl From<Outcome> for Verdict {
    fn from(Outcome { allowed, left, owed, reset_ns, retry_ns, .. }: Outcome) -> Self {
        Self { allowed, credit: left, reset_ns, owed, retry_ns }
    }
}

/// The answer to a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// The verdict of the rule that answers.
    pub verdict: Verdict,
    /// The id; `None` if the reservation was denied.
    pub id: Option<ReservationId>,
    /// Nanoseconds until the reservation ends, perhaps with its window. `None` if it was denied, is already committed,
    /// or never ends because nothing is counted.
    pub ends_ns: Option<u64>,
    /// Whether an earlier request made the reservation.
    pub is_repeated: bool,
}

/// The answer to a request for a share.
#[derive(Debug, Clone)]
pub struct GivenShare {
    /// The verdict of the rule that answers. Its credits are those that are left besides the share.
    pub verdict: Verdict,
    /// Credits of the share, perhaps 0.
    pub credits: u32,
    /// How long they may be granted, from the moment when the request was sent (nanoseconds).
    pub usable_ns: u64,
    /// The id for returning the share.
    pub id: Option<ReservationId>,
}

/// The answer to a commit, a release or a renewal, or to the return of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// The verdict of the rule that leaves the least in proportion.
    pub verdict: Verdict,
    /// The resolution of the reservation.
    pub resolution: Resolution,
    /// Nanoseconds until the reservation ends, after a renewal.
    pub ends_ns: Option<u64>,
    /// Whether the reservation has any records, and so any rules with counters.
    pub is_counted: bool,
    /// Whether a counter holds more credits than before.
    gave_back: bool,
}

impl Settled {
    /// Returns the word for the result of a commit that clients get.
    pub fn word(&self) -> &'static str {
        match self.resolution {
            Resolution::Late => "late",
            Resolution::Repeated => "repeated",
            Resolution::Done | Resolution::Gone | Resolution::Different => "settled",
        }
    }

    /// Returns whether credits were freed.
    pub fn is_released(&self) -> bool {
        self.resolution == Resolution::Done && self.is_counted
    }

    /// Returns whether credits of a share came back, now or when it was returned before.
    pub fn is_returned(&self) -> bool {
        self.gave_back
    }

    /// Returns the whole seconds until a renewed reservation ends, at least 1. If nothing is counted, nothing ends, and
    /// the result is `asked`. `None` if the reservation no longer exists.
    pub fn lasts_seconds(&self, asked: Option<u32>) -> Option<u64> {
        let asked = asked.unwrap_or(DEFAULT_MAX_RESERVATION_TTL);
        (self.resolution == Resolution::Done).then(|| self.ends_ns.map_or(asked.into(), lasting_seconds))
    }
}

/// Converts to whole seconds, rounded down, so that the holder never relies on time it does not have.
pub fn lasting_seconds(ends_ns: u64) -> u64 {
    (ends_ns / NANOS_PER_SECOND).max(1)
}

impl Report<'_> {
    /// Returns the answer to request `index`, a reservation.
    ///
    /// # Errors
    /// Same as [`Report::verdict`], or there is a reservation with this name, but other credits or another TTL.
    pub fn reserved(self, index: usize) -> Result<Reserved, Refusal> {
        let verdict = self.verdict(index)?;
        let members = self.plan.members_of(self.requests.get(index))?;
        let (mut ends, mut are_repeated) = (None, true);
        for entry in
            members.iter().filter(|member| !member.is_canary).filter_map(|member| self.plan.reservation(member))
        {
            let Outcome { session, resolution, .. } = self.entry(entry)?;
            ends = ends.into_iter().chain([session]).min();
            are_repeated &= resolution == Resolution::Repeated;
        }
        let id = || self.id_of(members);
        Ok(Reserved {
            verdict,
            id: verdict.allowed.then(id),
            ends_ns: ends.filter(|_| verdict.allowed).and_then(|ends| self.until(ends)),
            is_repeated: are_repeated && ends.is_some(),
        })
    }

    /// Returns the one id of everything that the plan's requests, a group, have reserved. `None` if any of them was
    /// denied.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn reserved_together(self) -> Result<Option<ReservationId>, Refusal> {
        for index in 0..self.len() {
            self.verdict(index)?;
        }
        Ok(self.denying().is_empty().then(|| self.id_of(self.all_members())))
    }

    /// Returns the answer to request `index`, for a share.
    ///
    /// # Errors
    /// Same as [`Report::verdict`].
    pub fn share(self, index: usize) -> Result<GivenShare, Refusal> {
        let verdict = self.verdict(index)?;
        let none = GivenShare { verdict, credits: 0, usable_ns: 0, id: None };
        let members = self.plan.members_of(self.requests.get(index))?;
        let Some((member, entry)) = members.iter().find_map(|member| Some((member, member.source.entry()?))) else {
            return Ok(none);
        };
        let Outcome { before, left, retry_ns, session, .. } = self.entry(entry)?;
        let credits = u32::try_from(before.saturating_sub(left)).unwrap_or(u32::MAX);
        let (Some(life_ns), Some(key), true) = (retry_ns, self.plan.batch.key_at(entry), credits > 0) else {
            return Ok(none);
        };
        let rule = self.active_rules().map_or(0, |active| active.fingerprint(member.rule));
        let id = Some(share_id(rule, key, credits, [session.minus(life_ns), session]));
        Ok(GivenShare { verdict, credits, usable_ns: usable_share_ns(life_ns), id })
    }

    fn id_of(self, members: &[Member]) -> ReservationId {
        ReservationId::new(self.plan.records(members, |entry| self.entry(entry).ok()?.run))
    }

    /// Returns an id for everything that these requests have newly reserved; `None` if there is nothing.
    pub fn new_reservations(self) -> Option<ReservationId> {
        let is_new = |outcome: Outcome| outcome.allowed && outcome.resolution == Resolution::Done;
        let makes_one =
            |member: &&Member| self.plan.reservation(member).is_some_and(|entry| self.entry(entry).is_ok_and(is_new));
        let made: Vec<_> = self.all_members().iter().filter(makes_one).copied().collect();
        let id = self.id_of(&made);
        (!id.is_of_nothing()).then_some(id)
    }

    /// Returns the answer to request `index`, a commit, a release or a renewal. A reservation without records counts
    /// nothing.
    ///
    /// # Errors
    /// This store has none of the records in the id, or the store failed.
    pub fn settled(self, index: usize) -> Result<Settled, Refusal> {
        let range = match self.requests.get(index) {
            Some(Request::Settlement(range)) => range.clone(),
            Some(Request::Refused(refusal)) => return Err(refusal.clone()),
            _ => return Err(Refusal::NoRules),
        };
        let records = self.plan.settled.get(range).unwrap_or_default();
        let (mut least, mut resolution, mut ends_ns, mut gave_back) = (None, None, None, false);
        for entry in records.iter().filter_map(|record| record.entry) {
            let outcome = self.entry(entry)?;
            gave_back |= outcome.left > outcome.before;
            let verdict = Verdict::from(outcome);
            let capacity = self.plan.batch.entry(entry).map_or(1, |entry| entry.limit.capacity());
            let leaves_less =
                |(known, of_known): &(Verdict, u64)| verdict.comes_before((capacity, *of_known), known, true);
            if least.as_ref().is_none_or(leaves_less) {
                least = Some((verdict, capacity));
            }
            // Some of the buckets may have been reset since. The smallest resolution stands for all of them.
            resolution = resolution.into_iter().chain([outcome.resolution]).min();
            if outcome.resolution == Resolution::Done {
                ends_ns = ends_ns.into_iter().chain(self.until(outcome.session)).min();
            }
        }
        Ok(Settled {
            verdict: least.map_or(Verdict::uncounted(true, 0), |(verdict, _)| verdict),
            resolution: resolution.unwrap_or(if records.is_empty() { Resolution::Done } else { Resolution::Gone }),
            ends_ns,
            is_counted: !records.is_empty(),
            gave_back,
        })
    }

    /// Returns the answer to request `index`, a commit. See [`Report::settled`].
    ///
    /// # Errors
    /// Same as [`Report::settled`], or the reservation is not remembered and no rule can count the cost.
    pub fn committed(self, index: usize) -> Result<Settled, Refusal> {
        let settled = self.settled(index)?;
        if settled.resolution == Resolution::Gone { Err(Refusal::NoReservation) } else { Ok(settled) }
    }
}

#[cfg(test)]
mod tests;
