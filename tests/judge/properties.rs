//! The checker accepts what can be explained, refuses the rest, and agrees with a search without any cleverness.

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use super::checker::{Finding, check};
use super::history::{Operation, Reply, Request};
use super::models::{Credits, Loss, Model, State};
use crate::support::seed;

const ROUNDS: usize = 400;

fn model(loss: Loss) -> Model {
    Model::Credits(Credits { limit: 5, window: None, debt: false, leases: false, loss })
}

fn draw(rng: &mut Rng) -> Request {
    let cost = rng.random_range(1..=3);
    match rng.random_range(0..10) {
        0..5 => Request::Hit { cost, key: None },
        5 => Request::Hit { cost: 1, key: Some(rng.random_range(0..2)) },
        6 => Request::Peek { cost },
        7 => Request::Refund { cost, key: None },
        8 => Request::Charge { cost: 1, key: None },
        _ => Request::Reset,
    }
}

/// Runs requests one after the other. Operation n takes effect at 100 n, and lasts up to `overlap` before and after that.
fn run(model: &Model, rng: &mut Rng, count: usize, overlap: u64) -> Vec<Operation> {
    let mut state = State::default();
    let mut operations = Vec::new();
    for place in 0..count {
        let moment = 100 * (place as u64 + 1) + overlap;
        let called = moment - rng.random_range(0..=overlap);
        let returned = moment + rng.random_range(0..=overlap);
        let request = draw(rng);
        let mut operation =
            Operation { client: 0, place: String::new(), request, called, returned, reply: None, error: None };
        let (next, reply) = model.apply(&state, &operation).remove(0);
        // Some lose their answer, and some of these have no effect.
        let lost = if overlap == 0 { 9 } else { rng.random_range(0..10) };
        if lost != 0 {
            state = next;
        }
        if lost < 2 {
            operation = operation.unanswered();
        } else {
            operation.reply = Some(reply);
        }
        operations.push(operation);
    }
    operations
}

#[test]
fn histories_of_a_sequential_run_are_accepted() {
    let (mut rng, model) = (Rng::seed_from_u64(seed()), model(Loss::Nothing));
    for _ in 0..ROUNDS {
        let history = run(&model, &mut rng, 24, 250);
        assert_eq!(check(&model, &history), Finding::Linearizable, "{history:#?}");
    }
}

/// Changes an answer to one that the model cannot give there.
fn change_an_answer(history: &mut [Operation], rng: &mut Rng) -> bool {
    let verdict = |one: &&mut Operation| matches!(one.reply, Some(Reply::Verdict { .. }));
    let mut verdicts: Vec<_> = history.iter_mut().filter(verdict).collect();
    if verdicts.is_empty() {
        return false;
    }
    let place = rng.random_range(0..verdicts.len());
    if let Some(Reply::Verdict { allowed, left }) = &mut verdicts[place].reply {
        match rng.random_range(0..2) {
            0 => *left += 1,
            _ => *allowed = !*allowed,
        }
    }
    true
}

#[test]
fn changed_answer_of_a_sequential_run_is_refused() {
    let (mut rng, model) = (Rng::seed_from_u64(seed()), model(Loss::Nothing));
    for _ in 0..ROUNDS / 4 {
        let mut history = run(&model, &mut rng, 16, 0);
        if change_an_answer(&mut history, &mut rng) {
            let Finding::Refused(refusal) = check(&model, &history) else { panic!("accepted: {history:#?}") };
            assert!(refusal.operations.len() <= history.len() && refusal.culprit < refusal.operations.len());
        }
    }
}

#[test]
fn search_agrees_with_trying_all_orders() {
    let mut rng = Rng::seed_from_u64(seed());
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let model = model([Loss::Nothing, Loss::Latest, Loss::Unacknowledged][round % 3]);
        let mut history = run(&model, &mut rng, 6, 250);
        if round % 3 > 0 {
            let called = rng.random_range(100..700);
            let failover = Operation { request: Request::Failover, called, ..history[0].unanswered() };
            history.push(failover);
        }
        change_an_answer(&mut history, &mut rng);
        let is_explained = try_all(&model, &history, &mut Vec::new(), &State::default());
        let finding = check(&model, &history);
        assert_eq!(finding == Finding::Linearizable, is_explained, "{finding:?} of {history:#?}");
        if is_explained { accepted += 1 } else { refused += 1 }
    }
    assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
}

/// Tries every order of every subset that contains the answered operations.
fn try_all(model: &Model, history: &[Operation], order: &mut Vec<usize>, state: &State) -> bool {
    let is_done = (0..history.len()).all(|place| order.contains(&place) || history[place].reply.is_none());
    if is_done {
        return true;
    }
    (0..history.len()).any(|place| {
        let overtakes =
            |other: usize| !order.contains(&other) && other != place && history[other].returned < history[place].called;
        if order.contains(&place) || (0..history.len()).any(overtakes) {
            return false;
        }
        order.push(place);
        let is_explained = model.step(state, &history[place]).iter().any(|next| try_all(model, history, order, next));
        order.pop();
        is_explained
    })
}
