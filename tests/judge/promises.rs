//! Promises of a limit that do not depend on the order of operations: sums over a history, without a search. They also hold where
//! a failover may lose changes, as far as its bound goes.

use std::collections::HashMap;

use super::history::{Operation, Reply, Request};
use super::models::{Credits, Flow, Model, Refills, TOLERANCE};

/// Returns a sentence for each promise that the history breaks.
pub fn broken(model: &Model, operations: &[Operation]) -> Vec<String> {
    match model {
        Model::Credits(credits) => [
            too_much_granted(credits, operations),
            denied_too_early(credits, operations),
            risen(credits, operations),
            counted_again(operations),
        ]
        .into_iter()
        .flatten()
        .collect(),
        Model::Refills(refills) => too_many_tokens(refills, operations).into_iter().collect(),
        Model::Flow(flow) => {
            [too_much_in_a_span(flow, operations), denied_when_full(flow, operations)].into_iter().flatten().collect()
        }
    }
}

/// Grants exceed the limit and what was given back. A request with an idempotency key counts once, and operations with an
/// unknown answer count as not granted.
fn too_much_granted(credits: &Credits, operations: &[Operation]) -> Option<String> {
    let mut granted = HashMap::new();
    let (mut given_back, mut largest, mut fresh) = (0, 1, 1);
    for (place, operation) in operations.iter().enumerate() {
        let is_allowed = matches!(
            operation.reply,
            Some(Reply::Verdict { allowed: true, .. } | Reply::Reserved { allowed: true, .. })
        );
        match operation.request {
            Request::Hit { cost, key } if is_allowed => {
                granted.insert(key.map_or((0, place), |key| (1, usize::from(key))), cost);
                largest = largest.max(cost);
            }
            Request::Reserve { amount, name } if is_allowed => {
                granted.insert(name.map_or((0, place), |name| (2, usize::from(name))), amount);
            }
            Request::Refund { cost, .. } => given_back += cost,
            Request::Commit { id, .. } | Request::Release { id } => {
                given_back += operations.iter().filter_map(|one| reserved_as(one, id)).max().unwrap_or(0);
            }
            Request::Reset | Request::Failover => fresh += 1,
            _ => {}
        }
    }
    if let (Some(length), Some(first)) = (credits.window, operations.first()) {
        let last = operations.iter().map(|one| if one.reply.is_some() { one.returned } else { one.called }).max()?;
        fresh += (last - first.called + 2 * TOLERANCE) / length + 1;
    }
    let debt = if credits.debt { (largest - 1) * fresh } else { 0 };
    let granted: u64 = granted.values().sum();
    let bound = credits.limit * fresh + given_back + debt;
    (granted > bound).then(|| {
        format!(
            "{granted} credits were granted, and at most {bound} could be: {} of the limit, {given_back} given back",
            bound - given_back
        )
    })
}

/// Returns the amount of the reservation with this id, if the operation made it.
fn reserved_as(operation: &Operation, id: usize) -> Option<u64> {
    match (operation.request, operation.reply) {
        (Request::Reserve { amount, .. }, Some(Reply::Reserved { id: made, .. })) => {
            (made == Some(id)).then_some(amount)
        }
        _ => None,
    }
}

/// A denial although all that may have been taken before it leaves enough.
fn denied_too_early(credits: &Credits, operations: &[Operation]) -> Option<String> {
    operations.iter().find_map(|denial| {
        let asked = match (denial.request, denial.reply) {
            (Request::Hit { cost, .. } | Request::Peek { cost }, Some(Reply::Verdict { allowed: false, .. })) => {
                if credits.debt {
                    1
                } else {
                    cost.max(1)
                }
            }
            (Request::Reserve { amount, .. }, Some(Reply::Reserved { allowed: false, .. })) => amount,
            _ => return None,
        };
        let before = operations.iter().filter(|one| one.called <= denial.returned);
        let taken: u64 = before.map(most_taken).sum();
        (taken + asked <= credits.limit).then(|| {
            format!(
                "`{}` was denied, and operations before its answer can have taken at most {taken} of {}",
                denial.request, credits.limit
            )
        })
    })
}

/// Returns the most that an operation can have taken.
fn most_taken(operation: &Operation) -> u64 {
    let is_denied =
        matches!(operation.reply, Some(Reply::Verdict { allowed: false, .. } | Reply::Reserved { allowed: false, .. }));
    match operation.request {
        Request::Hit { cost, .. } | Request::Charge { cost, .. } | Request::Commit { cost, .. } if !is_denied => cost,
        Request::Reserve { amount, .. } if !is_denied => amount,
        _ => 0,
    }
}

/// More is left than before, although nothing was given back in between; or more than the limit.
fn risen(credits: &Credits, operations: &[Operation]) -> Option<String> {
    let left = |operation: &Operation| match (operation.request, operation.reply) {
        (Request::Hit { key: None, .. } | Request::Peek { .. }, Some(Reply::Verdict { left, .. })) => Some(left),
        _ => None,
    };
    let gives_back = |one: &&Operation| {
        use Request::{Commit, Failover, Refund, Release, Reset};
        matches!(one.request, Refund { .. } | Commit { .. } | Release { .. } | Reset | Failover)
    };
    let gifts: Vec<_> = operations.iter().filter(gives_back).collect();
    for later in operations {
        let Some(now) = left(later) else { continue };
        if now > credits.limit {
            return Some(format!(
                "{now} credits are left after `{}`, and the limit is {}",
                later.request, credits.limit
            ));
        }
        for earlier in operations.iter().filter(|one| one.returned < later.called) {
            let Some(before) = left(earlier) else { continue };
            let ends =
                credits.window.is_some_and(|length| later.returned + TOLERANCE >= first_call(operations) + length);
            let is_given = gifts.iter().any(|gift| gift.called <= later.returned && gift.returned >= earlier.called);
            if now > before && !ends && !is_given {
                return Some(format!(
                    "{before} credits were left after `{}`, and later {now} after `{}`, with nothing given back",
                    earlier.request, later.request
                ));
            }
        }
    }
    None
}

fn first_call(operations: &[Operation]) -> u64 {
    operations.first().map_or(0, |one| one.called)
}

/// Two answers to one request with an idempotency key differ.
fn counted_again(operations: &[Operation]) -> Option<String> {
    if operations.iter().any(|one| one.request == Request::Failover) {
        return None;
    }
    let mut answers: HashMap<Request, Reply> = HashMap::new();
    operations.iter().find_map(|one| {
        let (
            Request::Hit { key: Some(_), .. }
            | Request::Charge { key: Some(_), .. }
            | Request::Refund { key: Some(_), .. },
            Some(reply),
        ) = (one.request, one.reply)
        else {
            return None;
        };
        let first = *answers.entry(one.request).or_insert(reply);
        (first != reply).then(|| format!("retries of `{}` have two answers: {first}, and {reply}", one.request))
    })
}

fn too_many_tokens(refills: &Refills, operations: &[Operation]) -> Option<String> {
    let mut granted = 0;
    let (mut first, mut last) = (u64::MAX, 0);
    for operation in operations {
        let Request::Reduce { take, at } = operation.request else { continue };
        (first, last) = (first.min(at), last.max(at));
        if let Some(Reply::Tokens(tokens)) = operation.reply {
            granted += take.min(tokens);
        }
    }
    let lives = 1 + operations.iter().filter(|one| one.request == Request::Failover).count() as u64;
    let bound = (refills.max + (last.saturating_sub(first) / refills.every + 1) * refills.tokens) * lives;
    (granted > bound).then(|| format!("{granted} tokens were granted, and at most {bound} could be"))
}

/// Hits that were granted within a span exceed its bound.
fn too_much_in_a_span(flow: &Flow, operations: &[Operation]) -> Option<String> {
    let is_granted = |one: &&Operation| matches!(one.reply, Some(Reply::Verdict { allowed: true, .. }));
    let granted: Vec<_> = operations.iter().filter(is_granted).collect();
    let spans = granted.iter().flat_map(|first| granted.iter().map(|last| (first.called, last.returned)));
    spans.filter(|(begin, end)| begin <= end).find_map(|(begin, end)| {
        let within = granted.iter().filter(|one| one.called >= begin && one.returned <= end);
        let taken: u64 = within.map(|one| most_taken(one)).sum();
        let length = end - begin;
        let bound = flow.burst + flow.credits * ((length + 2 * TOLERANCE) / flow.every + 1);
        (taken > bound).then(|| {
            format!("{taken} credits were granted within {} ms, and at most {bound} could be", length / 1_000_000)
        })
    })
}

/// A denial although few hits can have taken anything since all credits were back.
fn denied_when_full(flow: &Flow, operations: &[Operation]) -> Option<String> {
    operations.iter().find_map(|denial| {
        let (Request::Hit { cost, .. } | Request::Peek { cost }, Some(Reply::Verdict { allowed: false, .. })) =
            (denial.request, denial.reply)
        else {
            return None;
        };
        let since = denial.called.saturating_sub(flow.full_after + TOLERANCE);
        let recent = operations.iter().filter(|one| one.called <= denial.returned && one.returned >= since);
        let taken: u64 = recent.map(most_taken).sum();
        (taken + cost <= flow.limit).then(|| {
            format!(
                "`{}` was denied, and operations can have taken at most {taken} of {} lately",
                denial.request, flow.limit
            )
        })
    })
}

#[test]
fn sums_over_times_find_too_many_grants_and_early_denials() {
    let second = 1_000_000_000;
    let flow = Model::Flow(Flow { burst: 2, credits: 1, every: second, limit: 2, full_after: 2 * second });
    let hit = |moment: u64, allowed| Operation {
        client: 0,
        place: String::new(),
        request: Request::Hit { cost: 1, key: None },
        called: moment * second / 10,
        returned: moment * second / 10 + 1,
        reply: Some(Reply::Verdict { allowed, left: 0 }),
        error: None,
    };
    let [fine, many, early] = [
        vec![hit(0, true), hit(1, true), hit(2, false), hit(11, true), hit(35, true)],
        vec![hit(0, true), hit(1, true), hit(2, true), hit(3, true)],
        vec![hit(0, true), hit(1, true), hit(35, false)],
    ];
    assert_eq!(broken(&flow, &fine), Vec::<String>::new());
    assert_eq!(broken(&flow, &many), ["4 credits were granted within 300 ms, and at most 3 could be"]);
    assert_eq!(broken(&flow, &early), ["`hit 1` was denied, and operations can have taken at most 0 of 2 lately"]);
}
