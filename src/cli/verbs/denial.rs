//! Explains on a terminal which rule denied an operation. The reply to a hit does not name the rule, so this sends
//! `DIVVY.EXPLAIN`.

use std::io::{self, IsTerminal, Write};

use crate::cli::printable::printable;
use crate::cli::resp::{RespClient, parts, text};
use crate::cli::shell::quote;
use crate::rules::explain::PossibleDenier;

/// The default rule in an explanation.
const DEFAULT: &str = "[default]";

/// Returns whether to explain denials: only to a person who reads standard error on a terminal.
pub fn is_explained(as_json: bool) -> bool {
    !as_json && io::stderr().is_terminal()
}

/// Prints the rule that denied the operation, and the block if there is one. Prints nothing if the server does not explain it.
pub fn explain(client: &mut RespClient, pairs: &[String]) {
    let request: Vec<_> = std::iter::once("DIVVY.EXPLAIN").chain(pairs.iter().map(String::as_str)).collect();
    let Ok(reply) = client.ask(&request) else { return };
    let lines: Vec<_> = parts(&reply).unwrap_or_default().iter().filter_map(text).collect();
    let deniers: Vec<_> = lines.iter().filter_map(|line| PossibleDenier::read(line)).collect();
    print_on_stderr(&printable(&describe(&deniers, pairs)));
}

/// Prints that the line protocol does not name the rule.
pub fn suggest_resp() {
    print_on_stderr("denied; to see by which rule, use --server instead of --addr\n");
}

fn print_on_stderr(text: &str) {
    // The answer is already printed, so a failure here must not fail the command.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Describes the denial. `deniers` are all rules that had to allow the operation.
fn describe(deniers: &[PossibleDenier<'_>], pairs: &[String]) -> String {
    if let Some((rule, block)) = deniers.iter().find_map(|denier| Some((denier.rule, denier.block?))) {
        return format!("denied by {rule}: this actor is {block}\n");
    }
    let rules: Vec<_> = deniers.iter().map(|denier| denier.rule).collect();
    match rules.as_slice() {
        [] => String::new(),
        [rule] if rule.starts_with(DEFAULT) => {
            let operation: Vec<_> = pairs.iter().map(|pair| quote(pair)).collect();
            format!(
                "denied by {rule}: no other rule answers this operation; to see why, run: divvy explain RULES_FILE {}\n",
                operation.join(" ")
            )
        }
        [rule] => format!("denied by {rule}\n"),
        // The explanation lists all rules that had to allow the operation, but does not say which of them denied it.
        rules => format!("denied by one or more of {}\n", rules.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(rules: &[&str], pairs: &[&str]) -> String {
        let deniers: Vec<_> = rules.iter().map(|rule| PossibleDenier { rule, block: None }).collect();
        describe(&deniers, &pairs.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn denial_names_the_rules() {
        assert_eq!(described(&["[api=search] (rule-1)"], &["api=search"]), "denied by [api=search] (rule-1)\n");
        let stack = ["[key=*] (burst)", "[default]"];
        assert_eq!(described(&stack, &["key=a"]), "denied by one or more of [key=*] (burst), [default]\n");
        assert_eq!(described(&[], &["key=a"]), "");
    }

    #[test]
    fn denial_names_the_block() {
        let burst = PossibleDenier { rule: "[key=*] (burst)", block: None };
        let day = PossibleDenier { rule: "[key=*] (day)", block: Some("blocked for another 60 s: scraping") };
        assert_eq!(
            describe(&[burst, day], &[]),
            "denied by [key=*] (day): this actor is blocked for another 60 s: scraping\n"
        );
    }

    #[test]
    fn denial_by_default_suggests_a_command_for_the_shell() {
        for rule in ["[default]", "[default] (rest)"] {
            let text = described(&[rule], &["api=serch", "user=a b", "q=it's"]);
            assert!(text.starts_with(&format!("denied by {rule}: ")), "{text}");
            assert!(text.trim_end().ends_with(r"divvy explain RULES_FILE api=serch 'user=a b' 'q=it'\''s'"), "{text}");
        }
    }
}
