//! Turns a request into members of the plan, one for each rule that has a part in it.
//!
//! Canaries get entries that are not part of a group. A single rule that answers gets one entry. Several rules that
//! must all allow the request get a group.

use std::borrow::Cow;
use std::cell::Cell;

use super::builder::PlanBuilder;
use super::effects::{Cost, Intent, Modes, RuleKind, Treatment, hit, treatment};
use super::entries::{Entries, Together};
use super::{
    Block, FixedActors, Group, Member, Part, Plan, Purpose, Source, Terms, Veto, is_client_id, write_client_record_id,
};
use crate::active_rules::{ActiveRules, CounterNames, RuleCounter};
use crate::refusal::Refusal;
use crate::register::overrides::Applicable;
use crate::store::Action;
use crate::store::record_key::{self, RecordSpace};
use divvy_core::algorithm::{Ask, Limit, ReservationAsk};
use divvy_core::clock::Timestamp;
use divvy_core::rules::{ActorFields, MAX_STACK, MatchPolicy, Operation, OverrideKind, Overrun, Quota, Rule, Scratch};

/// The answer to an actor that may take nothing.
const NOTHING: Source = Source::Fixed { allowed: false, credit: 0 };

/// The destination of new members and their entries.
struct Members<'a> {
    entries: Entries<'a>,
    list: &'a mut Vec<Member>,
    fixed_actors: &'a mut FixedActors,
    blocks: &'a mut Vec<Block>,
    groups: &'a mut Vec<Group>,
    /// Buffer for an actor.
    actor: &'a mut Vec<u8>,
}

/// A request, and its context while its rules are added.
struct Context<'a> {
    active: &'a ActiveRules,
    operation: &'a Operation,
    intent: Intent,
    cost: Option<u64>,
    modes: Modes,
    /// The terms of a reservation.
    terms: Option<&'a Terms>,
    is_idempotent: bool,
    now: Timestamp,
    /// The override of all rules that decides about the request, if there is one.
    everywhere: Option<Applicable>,
}

impl PlanBuilder {
    /// Adds a member for each rule that has a part in the request.
    ///
    /// # Errors
    /// The request is refused. The caller removes what was added for it.
    #[inline]
    pub(super) fn add_members(
        &mut self,
        active: &ActiveRules,
        operation: &Operation,
        intent: Intent,
        cost: Option<u64>,
        terms: Option<&Terms>,
    ) -> Result<(), Refusal> {
        let Self { plan, group, key, stack, scratch, scope, everywhere, actor, .. } = self;
        let modes = match intent {
            Intent::EnterOrCharge | Intent::Leave => modes(active, operation, intent, cost, scratch),
            _ => Modes::default(),
        };
        let (is_idempotent, now) = (key.is_some(), plan.now());
        let everywhere = everywhere.as_ref().and_then(|everywhere| everywhere.find(operation, now));
        let context = Context { active, operation, intent, cost, modes, terms, is_idempotent, now, everywhere };
        let Plan { batch, members, fixed_actors, blocks, groups, .. } = plan;
        let entries = Entries { batch, group: group.as_deref_mut(), key: key.as_deref_mut() };
        let members = &mut Members { entries, list: members, fixed_actors, blocks, groups, actor };
        let first = members.list.len();
        let mut absent = None;
        let mut answering = 0;
        stack.clear();
        for (index, rule) in active.rules.matches(operation, scratch) {
            if scope.as_ref().is_some_and(|scope| !scope.covers(index, operation)) {
                return Err(Refusal::OutOfScope);
            }
            let part = context.part(index, rule)?;
            let is_alone = answering == 0 && members.entries.group.is_none();
            match rule.match_policy {
                // A peek needs only the answer, and canaries do not answer.
                MatchPolicy::Canary if part.is_absent || intent == Intent::Peek => {}
                MatchPolicy::Canary => context.ask(part, rule, members)?,
                _ if part.is_absent => absent = Some((part, rule)),
                MatchPolicy::Stop if is_alone => return context.ask(part, rule, members),
                MatchPolicy::And | MatchPolicy::Stop => {
                    answering += 1;
                    if part.action.is_tally() && !may_tally(rule, &members.entries) {
                        return Err(Refusal::CountsDenials(rule.to_string()));
                    }
                    // Usage that has already happened counts even if another rule denies.
                    if part.action.is_settlement() || part.action.is_tally() {
                        context.ask(part, rule, members)?;
                    } else {
                        stack.push(part);
                    }
                }
            }
        }
        match absent {
            Some((_, rule)) if answering == 0 && intent == Intent::Charge && members.list.len() == first => {
                Err(Refusal::NothingToCharge(rule.to_string()))
            }
            Some((part, rule)) if answering == 0 => context.ask(part, rule, members),
            _ if answering > 1 && intent == Intent::Share => Err(Refusal::SharesTogether),
            _ if answering > MAX_STACK => Err(Refusal::TooManyRules),
            _ => context.ask_stack(stack, first, members),
        }
    }
}

/// Returns whether the rule may count a hit that the rest of an open group denies, although it may deny what the rest counts. A quota group
/// does so for the operations of one request, as in a stack.
fn may_tally(rule: &Rule, entries: &Entries<'_>) -> bool {
    match (&entries.group, rule.overrun) {
        (None, _) | (_, Overrun::Annotate) => true,
        (Some(group), _) => rule.quota_group.is_some() && group.together == Together::AsOne,
    }
}

/// Returns the modes of a gateway's request.
#[cold]
fn modes(
    active: &ActiveRules,
    operation: &Operation,
    intent: Intent,
    cost: Option<u64>,
    scratch: &mut Scratch,
) -> Modes {
    let mut modes = Modes::default();
    for (_, rule) in active.rules.matches(operation, scratch) {
        let kind = RuleKind::of(rule);
        modes.charges |= intent == Intent::EnterOrCharge && cost != Some(0) && kind.charges_on_enter();
        modes.frees_leases |= intent == Intent::Leave && kind.leases_to_gateways();
    }
    modes
}

impl Context<'_> {
    /// Returns the action of the request on the rule.
    #[inline]
    fn part(&self, index: usize, rule: &Rule) -> Result<Part, Refusal> {
        // Fast path: a plain hit on a rule without costs, debt and leases.
        let is_hit = matches!(self.intent, Intent::Hit | Intent::Enter);
        if is_hit && rule.takes_given_cost() && rule.overrun == Overrun::Refuse && !rule.is_concurrency_limit() {
            let action = Action::Ask(hit(self.cost.unwrap_or(1)));
            return Ok(Part { rule: index, action, is_absent: false });
        }
        self.part_by_table(index, rule)
    }

    #[inline(never)]
    fn part_by_table(&self, index: usize, rule: &Rule) -> Result<Part, Refusal> {
        // An invalid cost does not prevent a counter from being forgotten.
        let credits = if self.intent == Intent::Forget { 0 } else { rule.cost(self.operation, self.cost)? };
        // A lease lasts as long as its rule says.
        if let Some(&Terms { ttl_seconds: Some(ttl_seconds), max_ttl_seconds: max, .. }) = self.terms
            && ttl_seconds > max
            && !rule.is_concurrency_limit()
        {
            return Err(Refusal::BadTtl { ttl_seconds, max });
        }
        let (kind, cost) = (RuleKind::of(rule), Cost { credits, is_none: self.cost == Some(0) });
        let treatment = treatment(self.intent, kind, cost, self.modes);
        let action = match treatment {
            Treatment::Absent(ask) | Treatment::Ask(ask) => Action::Ask(ask),
            Treatment::Forget => Action::Forget,
            Treatment::FreeLease => Action::Reservation(ReservationAsk::Release { run: None }),
            Treatment::Reserve { credits } => {
                Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds: self.ttl_seconds(rule)? })
            }
            Treatment::Refused(reason) => return Err(reason(rule.to_string())),
        };
        Ok(Part { rule: index, action, is_absent: matches!(treatment, Treatment::Absent(_)) })
    }

    /// Returns the TTL of what the request sets aside at the rule.
    fn ttl_seconds(&self, rule: &Rule) -> Result<u32, Refusal> {
        match (rule.quota, self.terms) {
            (Quota::Limited(Limit::Concurrency(limit)), _) => Ok(limit.ttl_seconds.get()),
            (_, Some(&Terms { ttl_seconds: Some(ttl_seconds), .. })) => Ok(ttl_seconds),
            (Quota::Limited(_), _) => Err(Refusal::NoTtl(rule.to_string())),
            // Nothing is set aside.
            (Quota::Never | Quota::Always { .. }, _) => Ok(0),
        }
    }

    /// Adds the rules of `stack`, which must all allow the request, whose members begin at `first`.
    fn ask_stack(&self, stack: &[Part], first: usize, members: &mut Members<'_>) -> Result<(), Refusal> {
        let (first_entry, first_member) = (members.entries.batch.len(), members.list.len());
        for part in stack {
            let Some(rule) = self.active.rules.rules().get(part.rule) else { continue };
            self.ask(*part, rule, members)?;
        }
        // A canary that always denies, such as for an actor whose own limit is 0, denies nothing.
        let denies = |member: &Member| {
            let never_allows = matches!(member.source, Source::Fixed { allowed: false, .. } | Source::Blocked(_));
            never_allows && !member.is_canary && member.veto != Veto::WithGroup
        };
        let is_denied = members.list.iter().skip(first).any(denies);
        if let Some(group) = &mut members.entries.group {
            group.is_denied |= is_denied;
            return Ok(());
        }
        if is_denied {
            // Nothing may be taken, regardless of the counters.
            members.entries.batch.only_look(first_entry);
        }
        if self.intent.is_hit() {
            members.entries.batch.group(first_entry);
            members.groups.push(Group { members: first_member..members.list.len(), requests: 0..0 });
        }
        Ok(())
    }

    /// Adds a rule's entry, and its member.
    #[inline]
    fn ask(&self, part: Part, rule: &Rule, members: &mut Members<'_>) -> Result<(), Refusal> {
        let Part { rule: index, action, .. } = part;
        let entries = &mut members.entries;
        let is_alone = entries.are_alone();
        let is_plain = self.everywhere.is_none() && self.terms.is_none() && !action.is_about_reservation();
        // Fast path: an entry alone, for an actor without a block or an allow. Its key is written in one place only, so that
        // it needs no call.
        if let Some(counter) = self.active.counter(index).filter(|_| is_alone && is_plain) {
            let may_override = Cell::new(false);
            let entry = entries.batch.push_if(self.may_share(action, rule), self.now, |key| {
                let start = counter.write_actor(self.operation, key);
                let actor = key.get(start..).unwrap_or_default();
                may_override.set(counter.may_override(actor));
                if may_override.get() { None } else { self.limit(counter, action, actor) }
            });
            if !may_override.get() {
                self.push_member(index, rule, action, entry.map_or(NOTHING, Source::Entry), members);
                return Ok(());
            }
        }
        self.ask_with_care(part, rule, members)
    }

    /// Returns the action of a hit that is alone. If the rule has shares, and its counter is in Redis, it may use this server's share.
    #[inline]
    fn may_share(&self, action: Action, rule: &Rule) -> Action {
        match (rule.share, action) {
            (Some(most), Action::Ask(Ask::Take { cost })) if self.active.counter_names != CounterNames::Usual => {
                Action::Ask(Ask::Share { cost, extra: most.get(), parts: 1 })
            }
            _ => action,
        }
    }

    /// Does the same as [`Context::ask`], for every request and every actor.
    #[inline(never)]
    fn ask_with_care(&self, part: Part, rule: &Rule, members: &mut Members<'_>) -> Result<(), Refusal> {
        let Part { rule: index, action, .. } = part;
        let is_canary = rule.match_policy == MatchPolicy::Canary;
        let entries = &mut members.entries;
        let (action, source) = match (self.find_override(index, action, members.actor), self.active.counter(index)) {
            (Some(Applicable { kind: OverrideKind::Block, ends, reason, .. }), counter) => {
                if let Some(counter) = counter.filter(|_| action.is_settlement()) {
                    // The usage counts, and the block answers.
                    entries.add(action, self.now, is_canary, |key| self.write_key(counter, action, key));
                }
                members.blocks.push(Block { ends_ns: ends.map(|ends| ends.since(self.now)), reason });
                (action, Source::Blocked(members.blocks.len() - 1))
            }
            (Some(_), _) => self.count_allowed(part, rule, entries),
            (None, None) => (action, fixed(rule)),
            (None, Some(counter)) => {
                let action = if entries.are_alone() { self.may_share(action, rule) } else { action };
                let write_key = |key: &mut Vec<u8>| self.write_key(counter, action, key);
                let entry = self.add_entry(action, rule, is_canary, write_key, entries)?;
                (action, entry.map_or(NOTHING, Source::Entry))
            }
        };
        self.push_member(index, rule, action, source, members);
        Ok(())
    }

    #[inline]
    fn push_member(&self, index: usize, rule: &Rule, action: Action, source: Source, members: &mut Members<'_>) {
        if let Source::Fixed { .. } | Source::Blocked(_) = source {
            self.note_actor(index, rule, action, members);
        }
        let is_canary = rule.match_policy == MatchPolicy::Canary;
        let veto = match (rule.overrun, &rule.quota_group, source) {
            (_, Some(_), Source::Fixed { .. } | Source::Entry(_)) => Veto::WithGroup,
            (Overrun::Annotate, ..) => Veto::None,
            _ => Veto::Alone,
        };
        members.list.push(Member { rule: index, is_canary, veto, purpose: self.purpose(action), source });
    }

    /// Notes the actor and the cost of a member without an entry, if they count.
    #[inline(never)]
    fn note_actor(&self, index: usize, rule: &Rule, action: Action, members: &mut Members<'_>) {
        let actor = match self.active.tops.get(index) {
            Some(of_rule) => Cow::Borrowed(&of_rule.actor),
            None if self.active.has_statistics(index) => Cow::Owned(ActorFields::of(rule)),
            None => return,
        };
        let write_actor = |out: &mut Vec<u8>| actor.write(self.operation, out);
        members.fixed_actors.push(members.list.len(), credits(action), write_actor);
    }

    /// Returns the block or the allow that decides about the action on the rule. Neither prevents usage from being counted,
    /// nor counters from being forgotten. A gateway's charge is also its hit.
    #[inline(never)]
    fn find_override(&self, index: usize, action: Action, actor: &mut Vec<u8>) -> Option<Applicable> {
        if matches!(action, Action::Forget) || (action.is_settlement() && !self.intent.is_hit()) {
            return None;
        }
        self.active.find_override(index, self.operation, self.everywhere.as_ref(), self.now, actor)
    }

    /// Adds the rule's entry for an actor that is never denied, and returns the action and the source of the answer. Credits are
    /// counted at once, even if they are reserved.
    #[inline(never)]
    fn count_allowed(&self, part: Part, rule: &Rule, entries: &mut Entries<'_>) -> (Action, Source) {
        let is_canary = rule.match_policy == MatchPolicy::Canary;
        let action = Action::Ask(Ask::Count { cost: credits(part.action) });
        let source = match self.active.counter(part.rule) {
            Some(counter) => {
                let write_key = |key: &mut Vec<u8>| self.write_key(counter, action, key);
                let entry = entries.add(action, self.now, is_canary, write_key);
                // An actor whose own limit is 0 has nothing to count.
                entry.map_or(Source::Fixed { allowed: true, credit: 0 }, Source::Entry)
            }
            None => match fixed(rule) {
                Source::Fixed { credit, .. } => Source::Fixed { allowed: true, credit },
                source => source,
            },
        };
        (action, source)
    }

    /// Adds an entry, under the name of the reservation or the lease if it is about one. See [`Entries::add`].
    #[inline(never)]
    fn add_entry(
        &self,
        action: Action,
        rule: &Rule,
        is_canary: bool,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
        entries: &mut Entries<'_>,
    ) -> Result<Option<usize>, Refusal> {
        let entry = if action.is_about_reservation() {
            let id = match self.terms {
                Some(terms) => Cow::Borrowed(terms.record_id.as_slice()),
                None => {
                    let mut id = Vec::new();
                    write_client_record_id(hold(rule, self.operation)?, &mut id);
                    Cow::Owned(id)
                }
            };
            let write_key = |key: &mut Vec<u8>| record_key::write(RecordSpace::Reservations, &id, key, write_key);
            entries.add(action, self.now, is_canary, write_key)
        } else {
            entries.add(action, self.now, is_canary, write_key)
        };
        let Some(index) = entry else { return Ok(None) };
        if entries.group.is_some() && rule.is_concurrency_limit() && entries.has_other_lease(index) {
            return Err(Refusal::LeasesTogether(rule.to_string()));
        }
        if self.terms.is_some_and(|terms| terms.is_clamped) {
            entries.batch.clamp(index);
        }
        Ok(entry)
    }

    /// Appends the key of the rule's counter. Returns its limit, unless the actor may take nothing.
    #[inline]
    fn write_key(&self, counter: &RuleCounter, action: Action, key: &mut Vec<u8>) -> Option<Limit> {
        let start = counter.write_actor(self.operation, key);
        self.limit(counter, action, key.get(start..).unwrap_or_default())
    }

    /// Returns the limit of the actor at the rule's counter, unless the actor may take nothing.
    #[inline(always)]
    fn limit(&self, counter: &RuleCounter, action: Action, actor: &[u8]) -> Option<Limit> {
        match counter.limit_of(actor, self.now) {
            // Usage counts, and can be forgotten, even if the actor may take nothing more.
            None if matches!(action, Action::Forget) || action.is_settlement() => Some(counter.limit_at(self.now)),
            limit => limit,
        }
    }

    fn purpose(&self, action: Action) -> Purpose {
        match self.intent {
            Intent::Hit if self.is_idempotent => Purpose::IdempotentHit,
            Intent::Hit | Intent::Enter | Intent::EnterOrCharge | Intent::Reserve => Purpose::Hit,
            Intent::Charge => Purpose::Charge,
            Intent::Leave if action.is_about_reservation() => Purpose::Release,
            Intent::Refund | Intent::Leave => Purpose::Refund,
            Intent::Peek | Intent::Forget | Intent::Share => Purpose::Other,
        }
    }
}

/// Returns the credits that the action takes or sets aside.
fn credits(action: Action) -> u64 {
    match action {
        Action::Reservation(ReservationAsk::Reserve { credits, .. }) => credits,
        action => action.ask().map_or(0, Ask::cost),
    }
}

/// Returns the request's name for the lease that it takes from the rule or frees.
fn hold<'a>(rule: &Rule, operation: &'a Operation) -> Result<&'a [u8], Refusal> {
    let Some(field) = &rule.hold_field else { return Err(Refusal::NoHoldField(rule.to_string())) };
    let lease = operation.get(field).unwrap_or_default().as_bytes();
    if is_client_id(lease) {
        return Ok(lease);
    }
    Err(Refusal::BadHold { rule: rule.to_string(), field: field.clone() })
}

/// Returns the answer of a rule without a counter.
fn fixed(rule: &Rule) -> Source {
    match rule.quota {
        Quota::Always { credit } => Source::Fixed { allowed: true, credit },
        Quota::Never | Quota::Limited(_) => NOTHING,
    }
}
