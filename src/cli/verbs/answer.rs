//! Answers of a server: as a line or as JSON, and with the rules that denied an operation for people on a terminal.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::cli::resp::{number, text};
use crate::cli::text::{printable, quote};
use divvy_server::protocol::resp::client::Frame;

/// Exit code for a refusal with `--exit-code`. 1 stands for an error, and 2 for an invalid command line.
const REFUSED: u8 = 3;

/// An answer. Displays as the words after `OK`.
pub trait Answer: Display + Sized {
    /// Reads the reply to the command. Returns `None` if the reply has another form.
    fn read(reply: &Frame) -> Option<Self>;

    fn to_json(&self) -> Value;

    /// Returns the answer of the HTTP API, if it is known and denies the request.
    fn denial(&self) -> Option<&Value> {
        None
    }

    /// Returns whether the server refused the request.
    fn is_refusal(&self) -> bool {
        false
    }
}

/// Prints the answer on standard output.
pub fn print(answer: &impl Answer, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        writeln!(out, "{}", answer.to_json())?
    } else {
        writeln!(out, "OK {answer}")?
    }
    out.flush()
}

/// Returns 0, or with `--exit-code` 3 for a refusal.
pub fn exit_code(answer: &impl Answer, reports_refusal: bool) -> ExitCode {
    if reports_refusal && answer.is_refusal() { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS }
}

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

/// The name of the default rule.
const DEFAULT: &str = "default";

/// Returns whether to explain denials: only to a person who reads standard error on a terminal.
pub fn explains_denials(as_json: bool) -> bool {
    !as_json && io::stderr().is_terminal()
}

/// Prints the rules that denied the operation, and the block if there is one. `answer` is the answer of the HTTP API.
pub fn explain_denial(answer: &Value, pairs: &[String]) {
    print_on_stderr(&printable(&describe_denial(answer, pairs)));
}

/// Prints that the line protocol does not name the rule.
pub fn suggest_resp() {
    print_on_stderr("denied; to see by which rule, use --server instead of --addr\n");
}

fn print_on_stderr(text: &str) {
    // The answer is already printed, so a failure here must not fail the command.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn describe_denial(answer: &Value, pairs: &[String]) -> String {
    let word = |name: &str| answer.get(name).and_then(Value::as_str);
    let all = answer.get("violatedPolicies").and_then(Value::as_array);
    let all: Vec<_> = all.map(|names| names.iter().filter_map(Value::as_str).collect()).unwrap_or_default();
    let rule = word("rule").unwrap_or_default();
    if let Some(block) = answer.get("blocked") {
        let seconds = answer.get("retryAfter").and_then(Value::as_u64);
        let lasts = seconds.map(|seconds| format!(" for another {seconds} s")).unwrap_or_default();
        let reason = block.get("reason").and_then(Value::as_str).map(|reason| format!(": {reason}"));
        return format!("denied by {rule}: this actor is blocked{lasts}{}\n", reason.unwrap_or_default());
    }
    if rule == DEFAULT && all.len() < 2 {
        let operation: Vec<_> = pairs.iter().map(|pair| quote(pair)).collect();
        return format!(
            "denied by {rule}: no other rule answers this operation; to see why, run: divvy explain {}\n",
            operation.join(" ")
        );
    }
    if all.is_empty() { format!("denied by {rule}\n") } else { format!("denied by {}\n", all.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn denial_names_the_rules_and_the_block() {
        let pairs = ["api=serch", "user=a b", "q=it's"].map(str::to_owned);
        for (answer, expected) in [
            (json!({ "rule": "search" }), "denied by search\n"),
            (json!({ "rule": "burst", "violatedPolicies": ["burst"] }), "denied by burst\n"),
            (json!({ "rule": "burst", "violatedPolicies": ["burst", "default"] }), "denied by burst and default\n"),
            (json!({ "rule": "day", "blocked": { "reason": null } }), "denied by day: this actor is blocked\n"),
            (
                json!({ "rule": "day", "retryAfter": 60, "blocked": { "reason": "scraping" } }),
                "denied by day: this actor is blocked for another 60 s: scraping\n",
            ),
            (
                json!({ "rule": "default" }),
                "denied by default: no other rule answers this operation; to see why, run: divvy explain api=serch 'user=a b' \
                 'q=it'\\''s'\n",
            ),
        ] {
            assert_eq!(describe_denial(&answer, &pairs), expected);
        }
    }
}
