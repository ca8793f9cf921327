//! Explains on a terminal which rules denied an operation.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::cli::text::printable;
use crate::cli::text::quote;

/// The name of the default rule.
const DEFAULT: &str = "default";

/// Returns whether to explain denials: only to a person who reads standard error on a terminal.
pub fn is_explained(as_json: bool) -> bool {
    !as_json && io::stderr().is_terminal()
}

/// Prints the rules that denied the operation, and the block if there is one. `answer` is the answer of the HTTP API.
pub fn explain(answer: &Value, pairs: &[String]) {
    print_on_stderr(&printable(&describe(answer, pairs)));
}

/// Prints that the line protocol does not name the rule.
pub fn suggest_resp() {
    print_on_stderr("denied; to see by which rule, use --server instead of --addr\n");
}

fn print_on_stderr(text: &str) {
    // The answer is already printed, so a failure here must not fail the command.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn describe(answer: &Value, pairs: &[String]) -> String {
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
            assert_eq!(describe(&answer, &pairs), expected);
        }
    }
}
