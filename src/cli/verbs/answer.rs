//! Answers of a server: as a line or as JSON, and with the rules that denied an operation for people on a terminal.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde_json::Value;

use crate::cli::pairs::Pair;
use crate::cli::text::{printable, quote};

/// Exit code for a refusal with `--exit-code`. 1 stands for an error, and 2 for an invalid command line.
const REFUSED: u8 = 3;

/// An answer, and the names of its members that a line has.
pub struct Answer<'a> {
    pub members: Value,
    pub shown: &'a [&'a str],
}

impl Answer<'_> {
    /// Prints the answer on standard output.
    pub fn print(&self, as_json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if as_json {
            writeln!(out, "{}", self.members)?;
        } else {
            let shown = self.shown.iter().filter_map(|name| self.members.get(name)).filter(|value| !value.is_null());
            let words = shown.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            writeln!(out, "{}", ["OK".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" "))?;
        }
        out.flush()
    }

    /// Returns whether the operation was denied.
    pub fn is_denial(&self) -> bool {
        self.members.get("allowed") == Some(&Value::Bool(false))
    }

    /// Returns 0, or with `--exit-code` 3 for a denial, and for a reservation that did not exist anymore.
    pub fn exit_code(&self, reports_refusal: bool) -> ExitCode {
        let is_gone = match self.shown {
            [name] => self.members.get(name).is_some_and(|value| *value == false || *value == 0),
            _ => false,
        };
        if reports_refusal && (is_gone || self.is_denial()) { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS }
    }
}

/// The name of the default rule.
const DEFAULT: &str = "default";

/// Returns whether to explain denials: only to a person who reads standard error on a terminal.
pub fn explains_denials(as_json: bool) -> bool {
    !as_json && io::stderr().is_terminal()
}

/// Prints the rules that denied the operation, and the block if there is one.
pub fn explain_denial(answer: &Value, pairs: &[Pair]) {
    print_on_stderr(&printable(&describe_denial(answer, pairs)));
}

/// Prints on standard error for people.
pub fn print_on_stderr(text: &str) {
    // The answer is already printed, so a failure here must not fail the command.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn describe_denial(answer: &Value, pairs: &[Pair]) -> String {
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
        let operation: Vec<_> = pairs.iter().map(|pair| quote(&pair.to_string())).collect();
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
        let pairs = ["api=serch", "user=a b", "q=it's"].map(|pair| pair.parse().unwrap());
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
