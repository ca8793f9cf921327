//! Test cases, checked and ready to run.

use std::fmt;

use super::file::StepKeyword;
use super::times::Elapsed;
use divvy_core::clock::Timestamp;
use divvy_core::rules::{self, Operation};
use divvy_limiter::Settlement;

/// A sequence of requests to an empty store.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub start: Timestamp,
    pub steps: Vec<Step>,
}

/// A step of a case: a request with its time and its expected answer. Displays as the request.
#[derive(Debug)]
pub struct Step {
    /// Time since the start of the case.
    pub at: Elapsed,
    pub word: Option<StepKeyword>,
    pub action: Action,
    pub expect: Expectation,
}

/// The request of a step.
#[derive(Debug)]
pub enum Action {
    Ask { operation: Operation, cost: Option<u64>, idempotency_key: Option<String> },
    Reserve { operation: Operation, credits: u64, ttl_seconds: Option<u32>, id: Option<String> },
    Settle { id: String, settlement: Settlement },
    SetLimit { rule: String, actor: String, credits: u64 },
    RemoveLimit { rule: String, actor: String },
}

/// The expected answer. A step with `error` states nothing else.
#[derive(Debug, Default)]
pub struct Expectation {
    /// The parts that the step states.
    pub answer: Answer,
    /// A part of the expected error.
    pub error: Option<String>,
}

/// An answer. Fields that the step's intent does not have are `None`.
#[derive(Debug, Default)]
pub struct Answer {
    pub allowed: Option<bool>,
    pub remaining: Option<u64>,
    pub balance: Option<i64>,
    /// Seconds until the reset, rounded up.
    pub reset: Option<u64>,
    /// The index of the rule that answers.
    pub rule: Option<usize>,
}

impl Step {
    /// Returns the pairs of the step's operation, if it has one.
    pub fn operation(&self) -> Option<&Operation> {
        match &self.action {
            Action::Ask { operation, .. } | Action::Reserve { operation, .. } => Some(operation),
            Action::Settle { .. } | Action::SetLimit { .. } | Action::RemoveLimit { .. } => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.word {
            Some(word) => write!(f, "{word} ")?,
            None => f.write_str("limit ")?,
        }
        match &self.action {
            Action::Ask { operation, cost, idempotency_key } => {
                f.write_str(&pairs(operation))?;
                write_option(f, "cost", cost.as_ref())?;
                write_option(f, "idempotency key", idempotency_key.as_deref().map(Name))
            }
            Action::Reserve { operation, credits, ttl_seconds, id } => {
                f.write_str(&pairs(operation))?;
                write_option(f, "cost", Some(credits))?;
                write_option(f, "ttl", ttl_seconds.as_ref())?;
                write_option(f, "id", id.as_deref().map(Name))
            }
            Action::Settle { id, settlement } => {
                write!(f, "{}", Name(id))?;
                match settlement {
                    Settlement::Commit { cost } => write_option(f, "cost", Some(cost)),
                    Settlement::Renew { ttl_seconds } => write_option(f, "ttl", ttl_seconds.as_ref()),
                    Settlement::Release => Ok(()),
                }
            }
            Action::SetLimit { rule, actor, credits } => write!(f, "{rule} {} {credits}", Name(actor)),
            Action::RemoveLimit { rule, actor } => write!(f, "{rule} {}, removed", Name(actor)),
        }
    }
}

/// A name for people: in quotes if it is empty, or if its end would not be clear without them.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_clear = |c: char| !c.is_whitespace() && !c.is_control() && c != '"' && c != ',';
        if !self.0.is_empty() && self.0.chars().all(is_clear) { f.write_str(self.0) } else { write!(f, "{:?}", self.0) }
    }
}

/// Formats an operation for people.
fn pairs(operation: &Operation) -> String {
    if operation.iter().len() == 0 { "(no pairs)".to_owned() } else { rules::header(operation.iter()) }
}

fn write_option(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, ", {name} {value}"))
}
