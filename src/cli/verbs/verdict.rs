//! The answer to a hit or a peek.

use std::fmt;

use serde_json::{Value, json};

use super::answer::Answer;
use crate::cli::resp::{number, parts};
use crate::protocol::resp::client::Frame;

/// Whether a hit is allowed, and the state of the counter.
#[derive(Debug)]
pub struct Verdict {
    pub allowed: bool,
    /// Credits left.
    pub credit: u64,
    /// Seconds until more credits are available.
    pub reset_seconds: u64,
}

impl Verdict {
    /// Reads the three parts of a reply.
    pub fn read_parts(allowed: &Frame, credit: &Frame, reset: &Frame) -> Option<Self> {
        Some(Self { allowed: number(allowed)? != 0, credit: number(credit)?, reset_seconds: number(reset)? })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.allowed, self.credit, self.reset_seconds)
    }
}

impl Answer for Verdict {
    fn read(reply: &Frame) -> Option<Self> {
        let [allowed, credit, reset] = parts(reply)? else { return None };
        Self::read_parts(allowed, credit, reset)
    }

    fn to_json(&self) -> Value {
        json!({ "allowed": self.allowed, "credit": self.credit, "resetSeconds": self.reset_seconds })
    }

    fn is_refusal(&self) -> bool {
        !self.allowed
    }
}
