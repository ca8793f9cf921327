//! Linearizability of one counter's history, by the search of Wing and Gong with Lowe's memory of configurations, as in
//! porcupine. An operation whose answer is unknown may take effect at any time after its call, or never.

use std::collections::HashSet;

use super::history::{Operation, Reply};
use super::models::{Model, State};

/// Most operations in a history.
pub const MOST: usize = 128;
/// Most configurations that the search in a history visits.
const PATIENCE: usize = 1_000_000;
/// Most configurations that the search in a part of a refused history visits. Without some answers, there are many more.
const PATIENCE_FOR_PARTS: usize = 5_000;

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    Linearizable,
    /// There is no order of the operations that explains the answers.
    Refused(Refusal),
    /// The search had to be given up.
    Undecided,
}

/// The smallest part of a history that shows that it is not linearizable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub operations: Vec<Operation>,
    /// Place of the first operation whose answer no order explains.
    pub culprit: usize,
    /// The answers that it could have had.
    pub possible: Vec<Reply>,
}

struct Search<'a> {
    model: &'a Model,
    operations: &'a [Operation],
    /// Bits of the operations whose answers are known.
    known: u128,
    patience: usize,
    visited: HashSet<(u128, State)>,
    /// Answers of this operation in the configurations where it may take effect.
    watched: Option<usize>,
    possible: Vec<Reply>,
}

/// Checks a history, and reduces it if it is not linearizable.
pub fn check(model: &Model, operations: &[Operation]) -> Finding {
    assert!(operations.len() <= MOST, "{} operations", operations.len());
    match Search::new(model, operations, PATIENCE).run() {
        Some(true) => Finding::Linearizable,
        Some(false) => reduce(model, operations).map_or(Finding::Undecided, Finding::Refused),
        None => Finding::Undecided,
    }
}

impl<'a> Search<'a> {
    fn new(model: &'a Model, operations: &'a [Operation], patience: usize) -> Self {
        let known = operations.iter().enumerate().filter(|(_, one)| one.reply.is_some());
        let known = known.fold(0, |known, (place, _)| known | bit(place));
        Self { model, operations, known, patience, visited: HashSet::new(), watched: None, possible: Vec::new() }
    }

    /// Returns whether an order explains all known answers; `None` if there are too many to try.
    fn run(&mut self) -> Option<bool> {
        self.explore(0, State::default())
    }

    /// Tries every operation that may be next, after those in `done`.
    fn explore(&mut self, done: u128, state: State) -> Option<bool> {
        if done & self.known == self.known {
            return Some(true);
        }
        if self.visited.len() >= self.patience {
            return None;
        }
        if !self.visited.insert((done, state.clone())) {
            return Some(false);
        }
        let operations = self.operations;
        let left = operations.iter().enumerate().filter(|(place, _)| done & bit(*place) == 0);
        // An operation that returned before another one was called took effect before it.
        let first_return = left.clone().map(|(_, operation)| operation.returned).min().unwrap_or(u64::MAX);
        for (place, operation) in left.filter(|(_, operation)| operation.called <= first_return) {
            if self.watched == Some(place) {
                self.possible.extend(self.model.apply(&state, operation).into_iter().map(|(_, reply)| reply));
            }
            for next in self.model.step(&state, operation) {
                if self.explore(done | bit(place), next)? {
                    return Some(true);
                }
            }
        }
        Some(false)
    }
}

fn bit(place: usize) -> u128 {
    1 << place
}

/// Returns the smallest refused part; `None` if a search was given up. Only what cannot turn a linearizable history into
/// another one is left out: operations after the first answer that no order explains, answers, and operations that changed
/// nothing.
fn reduce(model: &Model, operations: &[Operation]) -> Option<Refusal> {
    let mut ends: Vec<_> = operations.iter().map(|one| one.returned).filter(|end| *end < u64::MAX).collect();
    ends.sort_unstable();
    let mut part = Vec::new();
    let mut end = 0;
    for candidate in ends {
        end = candidate;
        part = until(operations, end);
        if !Search::new(model, &part, PATIENCE).run()? {
            break;
        }
    }
    let is_refused = |part: &[Operation]| Search::new(model, part, PATIENCE_FOR_PARTS).run() == Some(false);
    let is_culprit = |one: &Operation| one.returned == end;
    let possible = possible_answers(model, &part, part.iter().position(is_culprit)?);
    let mut place = 0;
    while place < part.len() {
        if is_culprit(&part[place]) {
            place += 1;
            continue;
        }
        if changed_nothing(&part[place]) {
            let mut shorter = part.clone();
            shorter.remove(place);
            if is_refused(&shorter) {
                part = shorter;
                continue;
            }
        }
        if part[place].reply.is_some() && !names_a_reservation(&part[place]) {
            let mut weaker = part.clone();
            weaker[place] = weaker[place].unanswered();
            if is_refused(&weaker) {
                part = weaker;
            }
        }
        place += 1;
    }
    let culprit = part.iter().position(is_culprit)?;
    Some(Refusal { operations: part, culprit, possible })
}

/// Returns the answers that an operation could have had, after any order that explains the answers before it.
fn possible_answers(model: &Model, operations: &[Operation], place: usize) -> Vec<Reply> {
    let mut search = Search::new(model, operations, PATIENCE);
    search.watched = Some(place);
    search.run();
    let mut possible = search.possible;
    possible.sort_unstable();
    possible.dedup();
    possible
}

/// Returns the history as it looked at this time.
fn until(operations: &[Operation], end: u64) -> Vec<Operation> {
    let called = operations.iter().filter(|one| one.called <= end);
    called.map(|one| if one.returned <= end { one.clone() } else { one.unanswered() }).collect()
}

/// Returns whether other operations depend on an id in the answer.
fn names_a_reservation(operation: &Operation) -> bool {
    matches!(operation.reply, Some(Reply::Reserved { id: Some(_), .. }))
}

fn changed_nothing(operation: &Operation) -> bool {
    use super::history::Request::{Hit, Peek, Renew};
    match (operation.request, operation.reply) {
        (Peek { .. } | Renew { .. }, _) => true,
        (Hit { key: None, .. }, Some(Reply::Verdict { allowed, .. })) => !allowed,
        _ => false,
    }
}
