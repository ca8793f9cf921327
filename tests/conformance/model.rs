//! Random actions compared with a model: the algorithms alone.
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use divvy::algorithm::record::Replay;
use divvy::algorithm::{Decision, Record, RecordChange, State};

use super::*;

/// Generates requests to reservations. If time can be passed, some reservations end before their windows.
pub fn about_reservation(buckets: Buckets) -> impl Strategy<Value = ReservationAsk> {
    let longest = if buckets == Buckets::ByPassedTime { 1 } else { 10_000 };
    let ttl_seconds = move || prop_oneof![Just(longest), longest..longest + 40];
    prop_oneof![
        4 => (1u64..4, ttl_seconds()).prop_map(|(credits, ttl_seconds)| ReservationAsk::Reserve { credits, ttl_seconds }),
        2 => (0u64..5, any::<bool>()).prop_map(|(cost, charges)| ReservationAsk::Commit { cost, charges, run: None }),
        1 => Just(ReservationAsk::Release { run: None }),
        1 => prop::option::of(ttl_seconds()).prop_map(|ttl_seconds| ReservationAsk::Renew { ttl_seconds, run: None }),
    ]
}

/// Generates idempotent requests, some of them equal.
pub fn once() -> impl Strategy<Value = Action> {
    (0u8..11, any::<bool>(), 0u64..4).prop_map(|(kind, strict, cost)| {
        let ask = match kind {
            0..4 => Ask::Take { cost },
            4 => Ask::Look { cost },
            5 => Ask::Overdraw { cost },
            6 => Ask::Charge { cost },
            7 => Ask::Refund { cost },
            8 => Ask::Drain { cost, strict },
            9 => Ask::Tally { cost },
            _ => Ask::Replay { cost, strict },
        };
        Action::Idempotent { ask, fingerprint: u64::MAX - cost / 3 }
    })
}

/// Returns the action on that bucket, with this record if the action has one. Logs have no reservations, and only
/// reservations take leases.
pub fn named(bucket: String, limit: Limit, action: Action, id: u8) -> (String, Limit, Action) {
    match (action, limit) {
        (Action::Ask(Ask::Show), _) => (bucket, limit, action),
        (Action::Reservation(_), Limit::SlidingLog(_))
        | (Action::Ask(_) | Action::Idempotent { .. }, Limit::Concurrency(_)) => (bucket, limit, LOOK),
        (Action::Reservation(_) | Action::Idempotent { .. }, _) => (format!("{bucket}#{id}"), limit, action),
        _ => (bucket, limit, action),
    }
}

/// The expected content of the store.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub buckets: HashMap<String, State>,
    /// Records by bucket and reservation.
    records: HashMap<String, Record>,
    /// Answers by bucket and idempotency key.
    answers: HashMap<String, Record>,
    /// Generation of the last request to a reservation.
    generation: u64,
}

impl Model {
    fn set(&mut self, bucket: &str, limit: &Limit, ask: Ask, state: Option<State>, now: Timestamp) {
        // A refund may have returned all credits.
        let is_full = |state: &State| ask.gives_back() && limit.lifetime_ns(state, now) == 0;
        match state {
            Some(state) if is_full(&state) => drop(self.buckets.remove(bucket)),
            Some(state) => drop(self.buckets.insert(bucket.to_owned(), state)),
            None => {}
        }
    }
}

/// Applies an action to the model. An action with a record names bucket and record: `bucket#record`.
pub fn expected(model: &mut Model, key: String, limit: Limit, action: Action, now: Timestamp) -> Outcome {
    let limit = dated(limit, now);
    match action {
        Action::Ask(ask) => {
            let decision = limit.decide(model.buckets.get(&key), ask, now);
            model.set(&key, &limit, ask, decision.state, now);
            decision.outcome
        }
        Action::Idempotent { ask, fingerprint } => {
            let (name, _) = split_key(&key, action);
            let (bucket, record) = (model.buckets.get(name), model.answers.get(&key));
            let (Decision { outcome, state }, record) =
                limit.decide_idempotent(bucket, record, (ask, fingerprint), now);
            model.set(name, &limit, ask, state, now);
            if let RecordChange::Set(answered) = record {
                model.answers.insert(key, answered);
            }
            outcome
        }
        Action::Forget => {
            // A bucket that is equivalent to a fresh one may stay.
            let held = model.buckets.get(&key).is_some_and(|state| limit.lifetime_ns(state, now) > 0);
            if held {
                model.buckets.remove(&key);
            }
            Outcome { allowed: held, ..Outcome::default() }
        }
        Action::Reservation(ask) => reserved(model, key, limit, now, |bucket, record, generation| {
            limit.decide_reservation(bucket, record, ask, generation, now)
        }),
    }
}

/// Applies a decision about a reservation to the model.
fn reserved(
    model: &mut Model,
    key: String,
    limit: Limit,
    now: Timestamp,
    decide: impl FnOnce(Option<&State>, Option<&Record>, u64) -> (Decision, RecordChange),
) -> Outcome {
    let (name, _) = split_key(&key, RELEASE);
    model.generation += 1;
    let (Decision { outcome, state }, record) =
        decide(model.buckets.get(name), model.records.get(&key), model.generation);
    match state {
        Some(state) if limit.lifetime_ns(&state, now) == 0 => drop(model.buckets.remove(name)),
        Some(state) => drop(model.buckets.insert(name.to_owned(), state)),
        None => {}
    }
    match record {
        RecordChange::Keep => {}
        RecordChange::Set(record) => drop(model.records.insert(key, record)),
        RecordChange::Clear => drop(model.records.remove(&key)),
    }
    without_run(outcome)
}

fn expected_together(model: &mut Model, group: Vec<(String, Limit, Action)>, now: Timestamp) -> Vec<Option<Outcome>> {
    let mut after = model.clone();
    let decide =
        |model: &mut _, (key, limit, action): &(String, _, _)| expected(model, key.clone(), *limit, *action, now);
    let mut outcomes: Vec<_> = group.iter().map(|entry| decide(&mut after, entry)).collect();
    // If one part of a reservation is made, all parts are: those that their buckets still know, too.
    let wanted = |(_, _, action): &(String, Limit, Action)| match *action {
        Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }) => Some((credits, ttl_seconds)),
        _ => None,
    };
    let has_part = |outcomes: &[Outcome], resolution| {
        group.iter().zip(outcomes).any(|(entry, outcome)| wanted(entry).is_some() && outcome.resolution == resolution)
    };
    if outcomes.iter().all(|outcome| outcome.allowed)
        && has_part(&outcomes, Resolution::Done)
        && has_part(&outcomes, Resolution::Repeated)
    {
        after = model.clone();
        for (entry, outcome) in group.iter().zip(&mut outcomes) {
            let (key, limit, _) = entry;
            *outcome = match wanted(entry) {
                Some(wanted) if outcome.resolution == Resolution::Repeated => {
                    let limit = dated(*limit, now);
                    reserved(&mut after, key.clone(), limit, now, |bucket, record, generation| {
                        limit.decide_next_run(bucket, record, wanted, generation, now)
                    })
                }
                _ => decide(&mut after, entry),
            };
        }
    }
    let differs = |((_, _, action), outcome): (&(_, _, Action), &Outcome)| {
        matches!(action, Action::Idempotent { .. }) && outcome.resolution == Resolution::Different
    };
    if group.iter().zip(&outcomes).any(differs) {
        return outcomes
            .into_iter()
            .map(|outcome| Some(outcome).filter(|it| it.resolution == Resolution::Different))
            .collect();
    }
    if outcomes.iter().all(|outcome| outcome.allowed) {
        *model = after;
        return outcomes.into_iter().map(Some).collect();
    }
    let known = |model: &Model, (key, _, action): &(String, _, _)| match action {
        Action::Idempotent { fingerprint, .. } => Replay::find(model.answers.get(key), *fingerprint, now),
        _ => Replay::None,
    };
    let was_denied = group.iter().any(|entry| matches!(known(model, entry), Replay::Answered(first) if !first.allowed));
    let held_back = |(entry, decided): ((String, Limit, Action), Outcome)| {
        match known(model, &entry) {
            Replay::Answered(outcome) => return outcome,
            Replay::HeldBack(outcome) if decided.allowed || was_denied => return outcome,
            _ => {}
        }
        let (key, limit, action) = entry;
        let (cost, once) = match action {
            Action::Idempotent { fingerprint, .. } if !decided.allowed => {
                model.answers.insert(key, Record::new_answer(fingerprint, decided, false, now));
                return decided;
            }
            _ if !decided.allowed => return decided,
            Action::Ask(Ask::Take { cost } | Ask::Look { cost }) => (cost, None),
            Action::Ask(Ask::Overdraw { .. }) => (1, None),
            Action::Ask(Ask::Count { .. }) => (0, None),
            Action::Reservation(ReservationAsk::Reserve { credits, .. }) => (credits, None),
            Action::Idempotent { ask: Ask::Overdraw { .. }, fingerprint } => (1, Some(fingerprint)),
            Action::Idempotent { ask: Ask::Take { cost } | Ask::Look { cost }, fingerprint } => {
                (cost, Some(fingerprint))
            }
            _ => panic!("{action:?}"),
        };
        let (bucket, _) = split_key(&key, action);
        let look = expected(model, bucket.to_owned(), limit, Action::Ask(Ask::Look { cost }), now);
        if let Some(fingerprint) = once {
            model.answers.insert(key, Record::new_answer(fingerprint, look, true, now));
        }
        look
    };
    group.into_iter().zip(outcomes).map(held_back).map(Some).collect()
}

/// Returns the outcome without the run, which differs from store to store.
pub fn without_run(outcome: Outcome) -> Outcome {
    Outcome { run: None, ..outcome }
}

pub fn any_sequence_agrees_with_the_bare_algorithms(open: &dyn Fn() -> StoreFixture) {
    let opened = open();
    let action = prop_oneof![
        4 => (0u64..4).prop_map(|cost| Action::Ask(Ask::Take { cost })),
        1 => (0u64..4).prop_map(|cost| Action::Ask(Ask::Look { cost })),
        2 => Just(Action::Ask(Ask::Show)),
        1 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Overdraw { cost })),
        1 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Charge { cost })),
        1 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Tally { cost })),
        1 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Count { cost })),
        2 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Refund { cost })),
        2 => (0u64..4, any::<bool>()).prop_map(|(cost, strict)| Action::Ask(Ask::Drain { cost, strict })),
        1 => (0u64..4, any::<bool>()).prop_map(|(cost, strict)| Action::Ask(Ask::Replay { cost, strict })),
        1 => Just(Action::Forget),
        6 => about_reservation(opened.buckets).prop_map(Action::Reservation),
        6 => once(),
    ];
    // There are two buckets per limit, so that all cases together stay below the number of buckets at which the memory
    // store drops full ones. That would shift the refills of drained token buckets, which the model ignores.
    let which = (0..limits(opened.buckets).len(), prop::option::weighted(0.3, 1u64..12));
    let actions = prop::collection::vec((0u8..2, which, action, 0u8..3), 1..24);
    let batches = prop::collection::vec((0u64..40, actions), 1..12);
    let runtime = Runtime::new().unwrap();
    let cases = AtomicU64::new(0);
    proptest!(ProptestConfig::with_cases(46), |(batches in batches)| {
        let case = cases.fetch_add(1, Relaxed);
        let mut model = Model::default();
        let mut now = at(0);
        for (pause, actions) in batches {
            now = now.plus(opened.later(pause) * SECOND);
            let named: Vec<_> = actions
                .iter()
                .map(|(key, (which, credits), action, id)| {
                    // The limit may change while the counter stays.
                    let limit = limits(opened.buckets)[*which];
                    let limit = credits.map_or(limit, |credits| resized(limit, credits));
                    named(format!("{case}:{key}:{which}"), limit, *action, *id)
                })
                .collect();
            let outcomes = runtime.block_on(opened.apply_named(now, &named));
            for ((key, limit, action), outcome) in named.into_iter().zip(outcomes) {
                prop_assert_eq!(without_run(outcome), expected(&mut model, key, limit, action, now));
            }
        }
    });
}

pub fn any_sequence_of_groups_agrees_with_the_bare_algorithms(open: &dyn Fn() -> StoreFixture) {
    let opened = open();
    let limits = limits(opened.buckets);
    let ttl_seconds = if opened.buckets == Buckets::ByPassedTime { 9 } else { 10_000 };
    let ask = (0u64..4, 0..6, 0u8..4).prop_map(move |(cost, kind, id)| {
        let fingerprint = u64::from(cost == 3);
        let action = match kind {
            3 => Action::Idempotent { ask: Ask::Take { cost }, fingerprint },
            4 if cost > 0 => Action::Idempotent { ask: Ask::Look { cost }, fingerprint },
            5 => Action::Idempotent { ask: Ask::Overdraw { cost }, fingerprint },
            0 if id == 0 => Action::Ask(Ask::Count { cost }),
            0 => Action::Ask(Ask::Overdraw { cost }),
            1 if cost > 0 => Action::Ask(Ask::Look { cost }),
            2 if cost > 0 => Action::Reservation(ReservationAsk::Reserve { credits: cost, ttl_seconds }),
            _ => Action::Ask(Ask::Take { cost }),
        };
        (action, id)
    });
    // One entry per bucket.
    let group = prop::collection::btree_map((0u8..2, 0..limits.len()), ask, 1..5);
    let batches = prop::collection::vec((0u64..40, prop::collection::vec(group, 1..8)), 1..12);
    let runtime = Runtime::new().unwrap();
    let cases = AtomicU64::new(0);
    proptest!(ProptestConfig::with_cases(64), |(batches in batches)| {
        let case = cases.fetch_add(1, Relaxed);
        let mut model = Model::default();
        let mut now = at(0);
        for (pause, groups) in batches {
            now = now.plus(opened.later(pause) * SECOND);
            // All buckets are in one slot of a cluster.
            let name = |((key, which), (action, id))| {
                named(format!("{{groups {case}}}:{key}:{which}"), limits[which], action, id)
            };
            let groups: Vec<Vec<_>> = groups.into_iter().map(|group| group.into_iter().map(name).collect()).collect();
            let borrowed: Vec<Vec<(&str, _, _)>> = groups
                .iter()
                .map(|group| group.iter().map(|(key, limit, action)| (key.as_str(), *limit, *action)).collect())
                .collect();
            let borrowed: Vec<_> = borrowed.iter().map(Vec::as_slice).collect();
            let mut outcomes = runtime.block_on(opened.apply_groups(now, &borrowed)).into_iter();
            for group in groups {
                for expected in expected_together(&mut model, group, now) {
                    let outcome = outcomes.next();
                    // If another request had the same idempotency key, the other outcomes have no meaning.
                    if expected.is_some() {
                        prop_assert_eq!(outcome.map(without_run), expected);
                    }
                }
            }
        }
    });
}
