//! Builds a plan, request by request. The requests of a group take effect together or not at all: each counter has one entry,
//! and all entries form one group.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::effects::{Intent, hit};
use super::entries::{Entries, IdempotencyKey, OpenGroup, Payload, Together};
use super::{Group, Mark, Part, Plan, Request, Source, Terms};
use crate::active_rules::{ActiveRules, RuleCounter};
use crate::refusal::{MAX_ID_TEXT, MAX_IDEMPOTENCY_KEY, Refusal, RefusedMember};
use crate::register::overrides::{Applicable, Everywhere};
use crate::store::key::{self, Prefix, Space};
use crate::store::{Action, Entry};
use divvy_core::algorithm::{Ask, Limit, Outcome, ReservationAsk};
use divvy_core::clock::Timestamp;
use divvy_core::rules::{
    MatchPolicy, Operation, OverrideKind, ResolvedScope, RuleSet, Scope, Scratch, Settings, write_entries,
};

/// Builds plans, one after the other. Its buffers keep their capacity: see [`PlanBuilder::reuse`].
#[derive(Debug, Default)]
pub struct PlanBuilder {
    pub(super) plan: Plan,
    /// The scope of the user, unless it covers everything.
    pub(super) scope: Option<ResolvedScope>,
    /// The group that is being formed.
    pub(super) group: Option<Box<OpenGroup>>,
    /// The idempotency key of the requests that are being added, or of the counts of a reservation.
    pub(super) key: Option<Box<IdempotencyKey>>,
    /// Maximum TTL of reservations (seconds).
    pub(super) max_reservation_ttl: u32,
    /// Whether the key that seals reservation ids is known.
    pub(super) has_seal: bool,
    /// The rules of one request that must all allow it.
    pub(super) stack: Vec<Part>,
    /// Buffer for the record id of a reservation.
    pub(super) record_id: Vec<u8>,
    /// The blocks and allows of all rules, if there are any.
    pub(super) everywhere: Option<Arc<Everywhere>>,
    /// Buffer for looking up blocks and allows of an actor.
    pub(super) actor: Vec<u8>,
    pub(super) scratch: Scratch,
    /// Where the requests of the caller begin, and the weight of those before them.
    caller: (Mark, usize),
}

impl PlanBuilder {
    /// Begins a new plan: see [`Limiter::begin`](crate::Limiter::begin).
    pub(crate) fn begin(
        &mut self,
        active: Option<Arc<ActiveRules>>,
        scope: &Scope,
        now: Timestamp,
        (max_reservation_ttl, has_seal): (u32, bool),
        everywhere: Option<Arc<Everywhere>>,
    ) {
        self.scope = resolve(scope, active.as_deref());
        self.plan.begin(active, now);
        (self.group, self.key, self.everywhere) = (None, None, everywhere);
        self.caller = (Mark::default(), 0);
        (self.max_reservation_ttl, self.has_seal) = (max_reservation_ttl, has_seal);
    }

    /// Returns the plan. After that, the builder has no buffers until [`PlanBuilder::reuse`], and no blocks, which may be replaced.
    pub fn build(&mut self) -> Plan {
        (self.scope, self.everywhere) = (None, None);
        std::mem::take(&mut self.plan)
    }

    /// Takes over the buffers of a plan that is no longer needed.
    pub fn reuse(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// Sets the scope of the requests that follow: their user may be another one, or have another scope.
    #[inline]
    pub fn set_scope(&mut self, scope: &Scope) {
        if !scope.is_resolved_as(self.scope.as_ref()) {
            self.scope = resolve(scope, self.plan.active.as_deref());
        }
    }

    /// Begins the requests of another caller. Returns the index of the first one.
    pub(crate) fn begin_caller(&mut self) -> usize {
        let mark = self.plan.mark();
        self.caller = (mark, self.plan.weight());
        mark.requests
    }

    /// Removes the requests of the caller.
    pub(crate) fn cancel_caller(&mut self) {
        (self.group, self.key) = (None, None);
        self.plan.return_to(self.caller.0);
    }

    /// Returns an upper estimate of the memory that the caller's requests take until they are answered (bytes).
    #[inline]
    pub fn weight(&self) -> usize {
        self.plan.weight() - self.caller.1
    }

    /// Returns the requests of the caller that were refused while they were added.
    pub fn refusals(&self) -> impl Iterator<Item = (usize, &Refusal)> {
        self.plan.refusals(self.caller.0.requests)
    }

    /// Returns the record keys of the caller's new reservations.
    pub fn reservation_keys(&self) -> Vec<Arc<[u8]>> {
        let entries = self.plan.batch.entries.iter().skip(self.caller.0.entries);
        let makes_one = |entry: &&Entry| matches!(entry.action, Action::Reservation(ReservationAsk::Reserve { .. }));
        entries.filter(makes_one).map(|entry| entry.key_in(&self.plan.batch.keys).into()).collect()
    }

    /// Returns the rules of the plan.
    pub fn rules(&self) -> Option<&RuleSet> {
        self.plan.active.as_deref().map(|active| &active.rules)
    }

    /// Returns the plan as it is so far.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Adds a request about `operation`. `cost` replaces the cost by the rules' `costField`s. A hit of cost 0 takes nothing, and
    /// is allowed if a hit of cost 1 would be.
    #[inline]
    pub fn add(&mut self, operation: &Operation, intent: Intent, cost: Option<u64>) {
        self.add_under(operation, intent, cost, None);
    }

    /// Adds a request, with the terms of a reservation if it is one. See [`PlanBuilder::add`].
    pub(super) fn add_under(
        &mut self,
        operation: &Operation,
        intent: Intent,
        cost: Option<u64>,
        terms: Option<&Terms>,
    ) {
        let (entries, first) = (self.plan.batch.len(), self.plan.members.len());
        // The rules are taken out and put back, because a clone for each request would cost two atomic operations.
        let active = self.plan.active.take();
        let added = match &active {
            None => Err(Refusal::NoRules),
            Some(active) => self.add_members(active, operation, intent, cost, terms),
        };
        self.plan.active = active;
        let request = match added {
            Ok(()) => {
                self.plan.hits += u64::from(intent.is_hit());
                let members = first..self.plan.members.len();
                Request::Rules { members, is_idempotent: self.key.is_some() && terms.is_none() }
            }
            Err(refusal) => {
                self.plan.batch.truncate(entries);
                self.plan.members.truncate(first);
                self.plan.fixed_actors.truncate(first);
                Request::Refused(refusal)
            }
        };
        self.plan.requests.push(request);
    }

    /// Adds a request that needs no rule: `ask` for the bucket that the client calls `key`, under the client's own
    /// `limit`, at the client's own time if there is one.
    pub fn add_bucket(&mut self, space: Space, key: &[u8], limit: Limit, ask: Ask, at: Option<Timestamp>) {
        if self.scope.is_some() {
            return self.add_refused(Refusal::OutOfScope);
        }
        let at = at.unwrap_or(self.plan.now());
        let write_key = |out: &mut Vec<u8>| key::write_client_key(space, &limit, key, out);
        let entry = self.plan.batch.push(limit, Action::Ask(ask), at, write_key);
        self.plan.requests.push(Request::OwnLimit(entry));
    }

    /// Adds a request for `cost` credits of the counter that a rule with exactly these pairs and this `limit` would
    /// have, without debt. Blocks and allows decide first: those of all rules, and of the rules in whose place the limit is. `intent` is [`Intent::Leave`] or a hit. A cost of 0 means the same as for
    /// [`PlanBuilder::add`].
    pub fn add_limited(&mut self, operation: &Operation, limit: Limit, intent: Intent, cost: u64) {
        let prefix = Prefix::new(Space::Rule, operation.iter(), &limit);
        self.add_own(operation, intent, cost, hit(cost), |key| {
            prefix.write_key("", key);
            limit
        });
    }

    /// Adds a request for `cost` credits of the counter `name` that the entries of `operation` have in ratelimit's domains, under
    /// a limit with `settings` of its own. It counts even if it is denied. Otherwise the same as [`PlanBuilder::add_limited`].
    pub fn add_tallied(&mut self, operation: &Operation, name: &str, settings: Settings, intent: Intent, cost: u64) {
        let names = self.plan.active.as_ref().map(|active| active.counter_names).unwrap_or_default();
        let Some(counter) = RuleCounter::of_descriptor(name, settings, names) else {
            return self.add_barred(operation, NonZeroU64::MIN, intent);
        };
        let now = self.plan.now();
        self.add_own(operation, intent, cost, Ask::Tally { cost }, |key| {
            counter.write_actor(operation, key);
            counter.limit_at(now)
        });
    }

    /// Notes for ratelimit's statistics that the last request is a hit of this cost under a limit of its own.
    pub fn note_own_hit(&mut self, operation: &Operation, cost: u64) {
        let Some(request) = self.plan.requests.len().checked_sub(1) else { return };
        let pairs = operation.iter().map(|(key, value)| [key.as_bytes(), value.as_bytes()]);
        self.plan.own_hits.push(request, cost, |out| write_entries(pairs, out));
    }

    /// Adds a request under a limit of its own. A hit takes `ask`, and `write_key` writes the counter's key, and returns the
    /// limit.
    fn add_own(
        &mut self,
        operation: &Operation,
        intent: Intent,
        cost: u64,
        ask: Ask,
        write_key: impl FnOnce(&mut Vec<u8>) -> Limit,
    ) {
        if self.scope.is_some() {
            return self.add_refused(Refusal::OutOfScope);
        }
        let exception = self.find_exception(operation, intent);
        if let Some(Applicable { kind: OverrideKind::Block, ends, .. }) = exception {
            let ends_ns = ends.map(|ends| ends.since(self.plan.now()));
            let outcome = Outcome { reset_ns: ends_ns.unwrap_or(0), retry_ns: ends_ns, ..Outcome::default() };
            return self.add_answered(outcome, intent);
        }
        let ask = match (intent, exception) {
            (Intent::Leave, _) => Ask::Refund { cost },
            // An allow is never denied.
            (_, Some(_)) => Ask::Count { cost },
            (_, None) => ask,
        };
        let Self { plan, group, key, .. } = self;
        let now = plan.now();
        let mut entries = Entries { batch: &mut plan.batch, group: group.as_deref_mut(), key: key.as_deref_mut() };
        let entry = entries.add(Action::Ask(ask), now, false, |key| Some(write_key(key)));
        plan.requests.extend(entry.map(Request::OwnLimit));
    }

    /// Adds a request under a client's own limit that allows nothing in any window of `window_ns`, unless the actor has an allow:
    /// see [`PlanBuilder::add_limited`]. Nothing is counted or given back. Waiting does not help, but the answer suggests the start of the clock's next window.
    pub fn add_barred(&mut self, operation: &Operation, window_ns: NonZeroU64, intent: Intent) {
        if self.scope.is_some() {
            return self.add_refused(Refusal::OutOfScope);
        }
        let exception = self.find_exception(operation, intent);
        let is_allowed = !intent.is_hit() || exception.is_some_and(|found| found.kind == OverrideKind::Allow);
        let now = self.plan.now().as_nanos();
        let next_window_ns = window_ns.get() - now % window_ns;
        let retry_ns = (!is_allowed).then_some(next_window_ns);
        let outcome = Outcome { allowed: is_allowed, reset_ns: next_window_ns, retry_ns, ..Outcome::default() };
        self.add_answered(outcome, intent);
    }

    /// Returns the block or the allow that decides about a request whose limit is in place of the rules that would answer. A
    /// block of one of them suffices. An allow must be of all of them.
    fn find_exception(&mut self, operation: &Operation, intent: Intent) -> Option<Applicable> {
        if !intent.is_hit() {
            return None;
        }
        let now = self.plan.now();
        let everywhere = self.everywhere.as_ref().and_then(|everywhere| everywhere.find(operation, now));
        let Some(active) = &self.plan.active else { return everywhere };
        let answering = active.rules.matches(operation, &mut self.scratch);
        let answering = answering.filter(|(_, rule)| rule.match_policy != MatchPolicy::Canary);
        let found = answering
            .map(|(index, _)| active.find_override(index, operation, everywhere.as_ref(), now, &mut self.actor));
        let found: Vec<_> = found.collect();
        let is_block = |found: &&Applicable| found.kind == OverrideKind::Block;
        match found.iter().flatten().find(is_block) {
            Some(block) => Some(block.clone()),
            None => found.into_iter().collect::<Option<Vec<_>>>()?.into_iter().next().or(everywhere),
        }
    }

    /// Adds a request whose answer does not depend on a counter.
    fn add_answered(&mut self, outcome: Outcome, intent: Intent) {
        if let Some(group) = &mut self.group {
            group.is_denied |= intent.is_hit() && !outcome.allowed;
        }
        self.plan.requests.push(Request::Barred(Box::new(outcome)));
    }

    /// Adds a request that was refused before it reached the plan.
    pub fn add_refused(&mut self, refusal: impl Into<Refusal>) {
        self.plan.requests.push(Request::Refused(refusal.into()));
    }

    /// Adds a hit, a charge or a refund under the client's idempotency `key`. If the key is invalid, the request is refused.
    pub fn add_idempotent(&mut self, operation: &Operation, intent: Intent, cost: Option<u64>, key: &[u8]) {
        let mut payload = Payload::new(intent);
        payload.add(operation, cost);
        if let Err(refusal) = self.idempotent(key, &payload, |builder| builder.add(operation, intent, cost)) {
            self.add_refused(refusal);
        }
    }

    /// Adds the requests of `add` under the client's idempotency `key`. `payload` describes all of them.
    ///
    /// # Errors
    /// The key is invalid. Then nothing is added.
    pub fn idempotent<T>(
        &mut self,
        key: &[u8],
        payload: &Payload,
        add: impl FnOnce(&mut Self) -> T,
    ) -> Result<T, Refusal> {
        if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY {
            return Err(Refusal::BadIdempotencyKey);
        }
        self.key = Some(Box::new(IdempotencyKey {
            intent: payload.intent,
            key: key.to_owned(),
            fingerprint: payload.fingerprint(),
            records: HashMap::new(),
        }));
        let added = add(self);
        self.key = None;
        Ok(added)
    }

    /// Adds the requests of `add` as a group: they take effect together or not at all, and each reports its result in
    /// either case. `describe` returns the error for a request that is refused.
    ///
    /// # Errors
    /// `add` fails, or one of the requests is refused. Then nothing is added.
    pub fn together<E>(
        &mut self,
        together: Together,
        describe: impl FnOnce(RefusedMember) -> E,
        add: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.plan.mark();
        self.group =
            Some(Box::new(OpenGroup { together, start, is_denied: false, record_id: None, apart: Vec::new() }));
        let added = add(self);
        let refused = self.group.take().and_then(|group| self.close(*group));
        let added = added.and_then(|()| refused.map_or(Ok(()), |refused| Err(describe(refused))));
        if added.is_err() {
            self.plan.return_to(start);
        }
        added
    }

    /// Closes the group. Returns the first of its requests that was refused.
    fn close(&mut self, group: OpenGroup) -> Option<RefusedMember> {
        // A charge that no rule counts fails alone, because the group takes nothing that depends on it.
        let fails = |(_, refusal): &(usize, &Refusal)| !matches!(refusal, Refusal::NothingToCharge(_));
        if let Some((index, refusal)) = self.plan.refusals(group.start.requests).find(fails) {
            // The whole group is removed.
            return Some(RefusedMember { index, refusal: refusal.clone() });
        }
        let Plan { batch, members, requests, groups, .. } = &mut self.plan;
        // The group may use credits that a settlement gives back, so the entries that are not part of it come first.
        let entries = batch.take(&group.entries(batch).collect::<Vec<_>>());
        let OpenGroup { start, is_denied, record_id, apart, .. } = group;
        let first = batch.len();
        batch.entries.extend(entries);
        if is_denied {
            batch.only_look(first);
        }
        if !(first..batch.len()).any(|entry| batch.entry(entry).is_some_and(|entry| entry.action.is_settlement())) {
            batch.group(first);
            groups.push(Group { members: start.members..members.len(), requests: start.requests..requests.len() });
        }
        let correct = |entry: &mut usize| {
            *entry = match apart.binary_search(entry) {
                Ok(place) => start.entries + place,
                Err(apart_before) => *entry + apart.len() - apart_before,
            };
        };
        members.iter_mut().skip(start.members).for_each(|member| {
            if let Source::Entry(entry) = &mut member.source {
                correct(entry);
            }
        });
        requests.iter_mut().skip(start.requests).for_each(|request| {
            if let Request::OwnLimit(entry) = request {
                correct(entry);
            }
        });
        let members = record_id.and_then(|_| self.plan.members.get(start.members..))?;
        let is_long = self.plan.id_length(members) > MAX_ID_TEXT;
        is_long.then_some(RefusedMember { index: 0, refusal: Refusal::LongReservation })
    }
}

/// Returns the scope under the rules of a plan.
fn resolve(scope: &Scope, active: Option<&ActiveRules>) -> Option<ResolvedScope> {
    match active {
        Some(active) => scope.resolve(&active.rules),
        None => scope.resolve(&RuleSet::default()),
    }
}
