//! The answer to a hit or a peek.

use std::fmt;

use serde_json::{Value, json};

use super::answer::Answer;
use crate::cli::resp::{number, text};
use crate::protocol::resp::client::Frame;

/// Whether a hit is allowed, and the state of the counter.
#[derive(Debug)]
pub struct Verdict {
    pub allowed: bool,
    /// Credits left.
    pub credit: u64,
    /// Seconds until more credits are available.
    pub reset_seconds: u64,
    /// The answer of the HTTP API. `None` if the server was not asked for it.
    pub answer: Option<Value>,
}

impl Verdict {
    /// Reads the three parts of a reply.
    pub fn read_parts(allowed: &Frame, credit: &Frame, reset: &Frame) -> Option<Self> {
        Some(Self {
            allowed: number(allowed)? != 0,
            credit: number(credit)?,
            reset_seconds: number(reset)?,
            answer: None,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.allowed, self.credit, self.reset_seconds)
    }
}

impl Answer for Verdict {
    fn read(reply: &Frame) -> Option<Self> {
        let answer: Value = serde_json::from_str(&text(reply)?).ok()?;
        let count = |name: &str| answer.get(name)?.as_u64();
        Some(Self {
            allowed: answer.get("allowed")?.as_bool()?,
            credit: count("remaining")?,
            reset_seconds: count("reset")?,
            answer: Some(answer),
        })
    }

    fn to_json(&self) -> Value {
        let fields = || json!({ "allowed": self.allowed, "remaining": self.credit, "reset": self.reset_seconds });
        self.answer.clone().unwrap_or_else(fields)
    }

    fn denial(&self) -> Option<&Value> {
        self.answer.as_ref().filter(|_| !self.allowed)
    }

    fn is_refusal(&self) -> bool {
        !self.allowed
    }
}
