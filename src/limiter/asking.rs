//! How a request asks the rules that it matches: which of them it asks apart, and which must all allow. What it is answered
//! is not here.

use std::borrow::Cow;
use std::cell::RefCell;

use super::once::{AskedOnce, Named};
use super::policy::{Bucket, Policy};
use super::reservations::{Reserving, client_id, is_client_id};
use super::together::{Gathered, Set};
use super::{Answer, CountedAs, Intent, Matched, Refusal, Requests};
use crate::algorithm::{Ask, Concurrency, Limit, ReservationAsk};
use crate::clock::Timestamp;
use crate::rules::{MAX_STACK, MatchPolicy, Operation, Overrun, Quota, Rule};
use crate::store::record_key::{self, RecordSpace};
use crate::store::{Action, Batch};

impl Requests {
    /// # Errors
    /// The request is refused, and what was pushed for it has to be taken back.
    pub(super) fn push_matches(
        &mut self,
        policy: &Policy,
        operation: &Operation,
        intent: Intent,
        cost: Option<u64>,
    ) -> Result<(), Refusal> {
        let is_about_costs = match intent {
            Intent::Charge | Intent::Refund | Intent::Leave => true,
            Intent::EnterOrCharge => self.settles(policy, operation, cost),
            Intent::Hit | Intent::Enter | Intent::Peek | Intent::Forget | Intent::Reserve => false,
        };
        if self.named.is_some() {
            return self.push_named(policy, operation, intent, cost, is_about_costs);
        }
        let now = self.batch.now();
        let frees_leases = intent == Intent::Leave && self.frees_leases(policy, operation);
        let (reserving, once) = (None, None);
        self.ask(&Asking { policy, operation, intent, is_about_costs, frees_leases, cost, reserving, once, now })
    }

    /// As [`Requests::push_matches`], for a request with a name.
    #[cold]
    fn push_named(
        &mut self,
        policy: &Policy,
        operation: &Operation,
        intent: Intent,
        cost: Option<u64>,
        is_about_costs: bool,
    ) -> Result<(), Refusal> {
        let mut named = self.named.take();
        let (reserving, once) = match named.as_deref_mut() {
            Some(Named::Reservation(reserving)) => (Some(&*reserving), None),
            Some(Named::Once(once)) => {
                once.request = self.asked.len();
                (None, Some(RefCell::new(once)))
            }
            None => (None, None),
        };
        let (once, now) = (once.as_ref(), self.batch.now());
        let frees_leases = false;
        let asked =
            self.ask(&Asking { policy, operation, intent, is_about_costs, frees_leases, cost, reserving, once, now });
        self.named = named;
        asked
    }

    #[inline]
    fn ask(&mut self, asking: &Asking<'_>) -> Result<(), Refusal> {
        let &Asking { policy, operation, intent, .. } = asking;
        let Self { batch, matched, stack, scratch, together, .. } = self;
        let first = matched.len();
        let mut left_out = None;
        stack.clear();
        for (index, rule) in policy.rules.matches(operation, scratch) {
            let action = asking.action(rule)?;
            match rule.match_policy {
                // A peek is about the answer alone, and canaries do not answer.
                MatchPolicy::Canary if intent == Intent::Peek || !asking.concerns(rule) || asking.passes_by(rule) => {}
                MatchPolicy::Canary => matched.push(asking.push(index, rule, action, batch)),
                _ if !asking.concerns(rule) => left_out = Some((index, rule, action)),
                MatchPolicy::Stop if stack.is_empty() && together.is_none() => {
                    matched.push(asking.push(index, rule, action, batch));
                    return Ok(());
                }
                MatchPolicy::And | MatchPolicy::Stop => stack.push(index),
            }
        }
        match left_out {
            // Nobody else answers.
            Some((_, rule, _)) if self.stack.is_empty() && intent == Intent::Charge && self.matched.len() == first => {
                Err(Refusal::NothingToCharge { rule: rule.to_string() })
            }
            Some((index, rule, action)) if self.stack.is_empty() => {
                self.matched.push(asking.push(index, rule, action, &mut self.batch));
                Ok(())
            }
            _ => self.push_stack(asking),
        }
    }

    /// Whether any of the rules counts a cost that has arisen already: then it is about that, and not about the request.
    #[cold]
    fn settles(&mut self, policy: &Policy, operation: &Operation, cost: Option<u64>) -> bool {
        let settles = |rule: &Rule| {
            let is_canary = rule.match_policy == MatchPolicy::Canary;
            rule.overrun == Overrun::Debt && !rule.counts_requests() && !is_canary
        };
        cost != Some(0) && policy.rules.matches(operation, &mut self.scratch).any(|(_, rule)| settles(rule))
    }

    /// Whether any of the rules gives leases to gateways: then it is about the end of a request, which gives nothing else back.
    #[cold]
    fn frees_leases(&mut self, policy: &Policy, operation: &Operation) -> bool {
        let gives_leases = |rule: &Rule| rule.limits_what_runs() && rule.hold_field.is_some();
        policy.rules.matches(operation, &mut self.scratch).any(|(_, rule)| gives_leases(rule))
    }

    /// Asks the rules of `stack`, which must all allow. Canaries are asked already, apart.
    fn push_stack(&mut self, asking: &Asking<'_>) -> Result<(), Refusal> {
        let Self { batch, matched, stack, sets, together, .. } = self;
        if stack.len() > MAX_STACK {
            return Err(Refusal::TooManyRules);
        }
        let rules = stack.iter().filter_map(|index| Some((*index, asking.policy.rules.rules().get(*index)?)));
        if asking.is_about_costs {
            // What has happened counts, whatever other rules say.
            for (index, rule) in rules.clone() {
                let action = asking.action(rule)?;
                if action.is_settlement() {
                    matched.push(match &mut *together {
                        Some(gathered) if gathered.is_once => asking.gather(index, rule, action, gathered)?,
                        _ => asking.push(index, rule, action, batch),
                    });
                }
            }
        }
        let denies = |matched: &Matched| matches!(matched.answer, Answer::Uncounted { allowed: false, .. });
        let (first_entry, first) = (batch.len(), matched.len());
        let mut is_denied = false;
        for (index, rule) in rules {
            let action = asking.action(rule)?;
            if action.is_settlement() {
                continue;
            }
            let asked = match &mut *together {
                Some(gathered) => asking.gather(index, rule, action, gathered)?,
                None => asking.push(index, rule, action, batch),
            };
            is_denied |= denies(&asked);
            matched.push(asked);
        }
        if let Some(gathered) = together {
            gathered.is_denied |= is_denied;
            return Ok(());
        }
        if is_denied {
            // Nothing can be taken, whatever the counters say.
            batch.only_look(first_entry);
        }
        if asking.intent.is_hit() {
            batch.group(first_entry);
            sets.push(Set { matched: first..matched.len(), asked: 0..0 });
        }
        Ok(())
    }
}

/// A request, on its way to the rules that it matches.
struct Asking<'a> {
    policy: &'a Policy,
    operation: &'a Operation,
    intent: Intent,
    /// It tells what things cost: the request itself was counted when it was asked for.
    is_about_costs: bool,
    /// It tells the end of a request, which may have been denied: what else that took stays taken.
    frees_leases: bool,
    cost: Option<u64>,
    /// What makes it a reservation.
    reserving: Option<&'a Reserving>,
    /// What makes it one that is answered once.
    once: Option<&'a RefCell<&'a mut AskedOnce>>,
    now: Timestamp,
}

impl Asking<'_> {
    /// What it asks of the rule's counter.
    #[inline]
    fn action(&self, rule: &Rule) -> Result<Action, Refusal> {
        // As nearly always.
        let is_hit = matches!(self.intent, Intent::Hit | Intent::Enter);
        if is_hit && rule.cost_field.is_none() && rule.overrun == Overrun::Refuse && !rule.limits_what_runs() {
            return Ok(Action::Ask(hit(self.cost.unwrap_or(1))));
        }
        self.any_action(rule)
    }

    /// As [`Asking::action`], whatever the intent and the rule are.
    #[inline(never)]
    fn any_action(&self, rule: &Rule) -> Result<Action, Refusal> {
        if self.intent == Intent::Forget {
            return Ok(Action::Forget);
        }
        let cost = rule.cost(self.operation, self.cost)?;
        if let Quota::Limited(Limit::Concurrency(limit)) = rule.quota {
            return self.lease(rule, limit, cost);
        }
        if let Some(reserving) = self.reserving {
            return self.reserve(rule, cost, reserving);
        }
        Ok(Action::Ask(match (self.intent, rule.overrun) {
            (Intent::EnterOrCharge, Overrun::Debt) if cost > 0 && !rule.counts_requests() => Ask::Charge { cost },
            (Intent::Hit | Intent::Enter | Intent::EnterOrCharge, Overrun::Debt) if cost > 0 => Ask::Overdraw { cost },
            (Intent::Peek, Overrun::Debt) => look(1),
            (Intent::Peek, Overrun::Refuse) => look(cost),
            (Intent::Charge, _) if !self.concerns(rule) => Ask::Charge { cost: 0 },
            (Intent::Refund | Intent::Leave, _) if !self.concerns(rule) => Ask::Refund { cost: 0 },
            (Intent::Charge, _) => self.charge(rule, cost)?,
            (Intent::Refund | Intent::Leave, _) => Ask::Refund { cost },
            _ => hit(cost),
        }))
    }

    /// Whether the rule has a part in the request.
    #[inline]
    fn concerns(&self, rule: &Rule) -> bool {
        !self.is_about_costs || self.has_costs(rule)
    }

    fn has_costs(&self, rule: &Rule) -> bool {
        match rule.limits_what_runs() {
            true => self.intent == Intent::Leave,
            false => {
                !self.frees_leases
                    && !rule.counts_requests()
                    && (self.intent == Intent::EnterOrCharge || matches!(rule.quota, Quota::Limited(_)))
            }
        }
    }

    /// Whether the request cannot take a lease, or free one, of a rule where leases are on trial: it goes on as before.
    fn passes_by(&self, rule: &Rule) -> bool {
        let takes_none = match self.intent {
            Intent::Hit => true,
            Intent::Enter | Intent::EnterOrCharge | Intent::Leave => rule.hold_field.is_none(),
            Intent::Peek | Intent::Forget | Intent::Charge | Intent::Refund | Intent::Reserve => false,
        };
        takes_none && rule.match_policy == MatchPolicy::Canary && rule.limits_what_runs()
    }

    /// What it asks of a rule about what runs at once. Costs are no matter of it.
    fn lease(&self, rule: &Rule, limit: Concurrency, credits: u64) -> Result<Action, Refusal> {
        let ttl_seconds = limit.ttl_seconds.get();
        let take = Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds });
        match self.intent {
            _ if !self.concerns(rule) || self.passes_by(rule) => Ok(Action::Ask(Ask::Refund { cost: 0 })),
            Intent::Reserve => Ok(take),
            // It takes nothing.
            Intent::Hit if self.cost == Some(0) => Ok(Action::Ask(look(0))),
            Intent::Hit => Err(Refusal::TakesLeases { rule: rule.to_string() }),
            Intent::Enter | Intent::EnterOrCharge | Intent::Leave => {
                hold(rule, self.operation)?;
                Ok(match self.intent {
                    Intent::Leave => Action::Reservation(ReservationAsk::Release),
                    _ if credits == 0 => Action::Ask(look(0)),
                    _ => take,
                })
            }
            Intent::Peek | Intent::Forget | Intent::Charge | Intent::Refund => Ok(Action::Ask(look(credits))),
        }
    }

    /// Rules that count requests count this one, and canaries what it asks for.
    fn reserve(&self, rule: &Rule, credits: u64, reserving: &Reserving) -> Result<Action, Refusal> {
        let max = reserving.max_ttl_seconds;
        if reserving.ttl_seconds.is_some_and(|seconds| seconds > max) {
            return Err(Refusal::BadReservation { max });
        }
        if rule.counts_requests() || rule.match_policy == MatchPolicy::Canary {
            return Ok(Action::Ask(hit(credits)));
        }
        if matches!(rule.quota, Quota::Limited(Limit::SlidingLog(_))) {
            return Err(Refusal::CannotReserve { rule: rule.to_string() });
        }
        let ttl_seconds = match (reserving.ttl_seconds, rule.quota) {
            (Some(ttl_seconds), _) => ttl_seconds,
            (None, Quota::Limited(_)) => return Err(Refusal::NoTtl { rule: rule.to_string() }),
            // Nothing is set aside.
            (None, Quota::Never | Quota::Always { .. }) => 0,
        };
        Ok(Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }))
    }

    fn charge(&self, rule: &Rule, cost: u64) -> Result<Ask, Refusal> {
        let is_log = matches!(rule.quota, Quota::Limited(Limit::SlidingLog(_)));
        // A canary counts what it can.
        if is_log && rule.match_policy != MatchPolicy::Canary {
            return Err(Refusal::CannotCharge { rule: rule.to_string() });
        }
        Ok(Ask::Charge { cost })
    }

    /// Asks the rule with this index, in the batch if it has counters.
    #[inline]
    fn push(&self, index: usize, rule: &Rule, action: Action, batch: &mut Batch) -> Matched {
        let answer = match self.policy.bucket(index) {
            Some(bucket) => {
                let limit = |key: &mut Vec<u8>| self.write_key(bucket, action, key);
                let entry = match (action, self.once) {
                    (Action::Reservation(ask), _) => batch.push_reservation(ask, &self.record_id(rule), limit),
                    (_, Some(once)) => once.borrow_mut().push(action, self.now, batch, limit),
                    _ => batch.push_if(action, self.now, limit),
                };
                if let (Some(entry), Some(Reserving { is_clamped: true, .. })) = (entry, self.reserving) {
                    batch.clamp(entry);
                }
                entry.map_or(NOTHING, Answer::Counted)
            }
            None => uncounted(rule),
        };
        self.matched(index, rule, action, answer)
    }

    /// As [`Asking::push`], for a hit that is taken together with others.
    fn gather(&self, index: usize, rule: &Rule, action: Action, gathered: &mut Gathered) -> Result<Matched, Refusal> {
        let answer = match self.policy.bucket(index) {
            Some(bucket) => {
                let limit = |key: &mut Vec<u8>| self.write_key(bucket, action, key);
                let write_key = |key: &mut Vec<u8>| match action {
                    Action::Reservation(_) => {
                        record_key::write(RecordSpace::Reservations, &self.record_id(rule), key, limit)
                    }
                    Action::Ask(_) | Action::Idempotent { .. } | Action::Forget => limit(key),
                };
                if rule.limits_what_runs() && gathered.has_other(write_key) {
                    return Err(Refusal::LeasesTogether { rule: rule.to_string() });
                }
                gathered.add(action, self.now, write_key).map_or(NOTHING, Answer::Gathered)
            }
            None => uncounted(rule),
        };
        Ok(self.matched(index, rule, action, answer))
    }

    /// Appends the key of the rule's counter; its limit, if the actor may use anything.
    #[inline]
    fn write_key(&self, bucket: &Bucket, action: Action, key: &mut Vec<u8>) -> Option<Limit> {
        match bucket.write_key(self.operation, self.now, key) {
            // What an actor has used counts, and is forgotten, also if it may use nothing more.
            None if action == Action::Forget || action.is_settlement() => Some(bucket.limit_at(self.now)),
            limit => limit,
        }
    }

    /// What the record of the reservation is called that the request is about.
    fn record_id(&self, rule: &Rule) -> Cow<'_, [u8]> {
        match self.reserving {
            Some(reserving) => Cow::Borrowed(&reserving.id),
            None => Cow::Owned(client_id(hold(rule, self.operation).unwrap_or_default())),
        }
    }

    fn matched(&self, index: usize, rule: &Rule, action: Action, answer: Answer) -> Matched {
        let is_canary = rule.match_policy == MatchPolicy::Canary;
        let counted_as = match self.intent {
            Intent::Hit if self.once.is_some() => CountedAs::HitOnce,
            Intent::Hit | Intent::Enter | Intent::EnterOrCharge | Intent::Reserve => CountedAs::Hit,
            Intent::Charge => CountedAs::Charge,
            Intent::Leave if action.is_about_reservation() => CountedAs::Release,
            Intent::Refund | Intent::Leave => CountedAs::Refund,
            Intent::Peek | Intent::Forget => CountedAs::Nothing,
        };
        Matched { rule: index, is_canary, counted_as, answer }
    }
}

/// What the request calls the lease that it takes from the rule, or frees.
fn hold<'a>(rule: &Rule, operation: &'a Operation) -> Result<&'a [u8], Refusal> {
    let Some(field) = &rule.hold_field else { return Err(Refusal::NoHoldField { rule: rule.to_string() }) };
    let lease = operation.get(field).unwrap_or_default().as_bytes();
    if is_client_id(lease) {
        return Ok(lease);
    }
    Err(Refusal::BadHold { rule: rule.to_string(), field: field.clone() })
}

/// The answer to an actor that may take nothing.
const NOTHING: Answer = Answer::Uncounted { allowed: false, credit: 0 };

/// The answer of a rule without counters.
fn uncounted(rule: &Rule) -> Answer {
    match rule.quota {
        Quota::Always { credit } => Answer::Uncounted { allowed: true, credit },
        Quota::Never | Quota::Limited(_) => NOTHING,
    }
}

/// What a rule's hit asks of its counter. A gateway that charges afterwards asks first with a cost of 0: to take nothing
/// is always possible, so the hit looks whether one credit is left instead.
pub(super) fn hit(cost: u64) -> Ask {
    if cost == 0 { look(0) } else { Ask::Take { cost } }
}

/// What a peek at such a hit asks.
fn look(cost: u64) -> Ask {
    Ask::Look { cost: cost.max(1) }
}
