//! A report about a history that breaks a promise: the counter, the smallest part of the history, and why.

use std::fmt::Write;

use super::checker::{Finding, Refusal, check};
use super::history::{History, Operation, Request};
use super::models::Model;
use super::promises::broken;

/// Columns of a timeline.
const COLUMNS: u64 = 32;

/// Returns a report if the history breaks a promise.
pub fn judge(model: &Model, history: &History) -> Option<String> {
    let promises = broken(model, &history.operations);
    let finding = match model {
        Model::Flow(_) => Finding::Linearizable,
        _ => check(model, &history.operations),
    };
    let mut text = match finding {
        Finding::Linearizable if promises.is_empty() => return None,
        Finding::Linearizable => format!("counter {}:\n{}", history.name, timeline(&history.operations, None)),
        Finding::Undecided => {
            format!(
                "counter {}: the search was given up, because too many orders are possible\n{}",
                history.name,
                timeline(&history.operations, None)
            )
        }
        Finding::Refused(refusal) => explain(history, &refusal),
    };
    for promise in promises {
        let _ = writeln!(text, "  broken promise: {promise}");
    }
    Some(text)
}

fn explain(history: &History, refusal: &Refusal) -> String {
    let culprit = &refusal.operations[refusal.culprit];
    let answer = culprit.reply.map(|reply| reply.to_string()).unwrap_or_default();
    let possible: Vec<_> = refusal.possible.iter().map(|reply| format!("`{reply}`")).collect();
    let possible = match &possible[..] {
        [] => "the answers before it exclude each other once it has returned".to_owned(),
        possible => format!("an order of the operations can explain only {}", possible.join(" or ")),
    };
    format!(
        "counter {}: no order of {} of its {} operations explains their answers\n{}  why: `{}` was answered `{answer}`, and {possible}\n",
        history.name,
        refusal.operations.len(),
        history.operations.len(),
        timeline(&refusal.operations, Some(refusal.culprit)),
        culprit.request,
    )
}

/// Draws a line for each operation: its time, its client, the request with its answer, and a bar from the call to the return.
fn timeline(operations: &[Operation], culprit: Option<usize>) -> String {
    let known = operations.iter().map(|one| if one.returned == u64::MAX { one.called } else { one.returned });
    let (begin, end) = (operations.first().map_or(0, |one| one.called), known.max().unwrap_or(0));
    let column = |time: u64| ((time.min(end) - begin) * (COLUMNS - 1) / (end - begin).max(1)) as usize;
    let mut text = String::new();
    for (place, one) in operations.iter().enumerate() {
        let (from, to) = (column(one.called), column(one.returned));
        let bar = format!("{}{}", " ".repeat(from), "=".repeat(to - from + 1));
        let bar = if one.returned == u64::MAX { format!("{bar}>") } else { bar };
        let answer = match one.reply {
            Some(reply) => reply.to_string(),
            None if one.request == Request::Failover => String::new(),
            None => one.error.as_deref().unwrap_or("(any answer)").trim_end().to_owned(),
        };
        let mark = if culprit == Some(place) { '*' } else { ' ' };
        let at = (one.called - begin) as f64 / 1e6;
        let _ = writeln!(
            text,
            "{mark} {at:>10.3} ms  client {} {:<8} {:<22} {:<24} |{bar}",
            one.client,
            one.place,
            one.request.to_string(),
            answer,
        );
    }
    text
}
