//! Checks a file with test cases against the rules. The result is the cases to run, or a list of all problems.

use std::collections::HashSet;

use super::case::{Case, Step};
use super::elapsed::{Elapsed, LAST_TIME};
use super::file::problem;
use super::format::{CaseFile, RawCase};
use super::step_check::{Fault, StepChecker};
use crate::clock::Timestamp;
use crate::config::Problem;
use crate::json::Object;
use crate::rules::{RuleSet, Scratch};

/// Start of a case that states none: 2026-01-01, midnight UTC. Windows shorter than a day begin then, too.
const DEFAULT_START: Timestamp = Timestamp::from_nanos(1_767_225_600_000_000_000);

/// Returns the cases in `file`. `name` is its name in messages.
///
/// # Errors
/// All problems.
pub fn check(file: &CaseFile, rules: &RuleSet, name: &str) -> Result<Vec<Case>, Vec<Problem>> {
    let mut faults = Vec::new();
    if file.cases.is_empty() {
        faults.push(Fault::new("cases".to_owned(), "there are no cases", "add one, or remove the file"));
    }
    let (mut cases, mut names) = (Vec::new(), HashSet::new());
    for (index, Object(written)) in file.cases.iter().enumerate() {
        let path = format!("cases[{index}]");
        if written.name.trim().is_empty() {
            faults.push(Fault::new(format!("{path}.name"), "the name is empty", "say what the case shows"));
        } else if !names.insert(&written.name) {
            let what = format!("another case is called {:?}", written.name);
            faults.push(Fault::new(format!("{path}.name"), what, "give each case its own name"));
        }
        cases.push(check_case(written, rules, &path, &mut faults));
    }
    if faults.is_empty() {
        return Ok(cases);
    }
    Err(faults
        .into_iter()
        .map(|fault| problem(name, None, format!("{}: {}", fault.path, fault.what), &fault.fix))
        .collect())
}

fn check_case(written: &RawCase, rules: &RuleSet, path: &str, faults: &mut Vec<Fault>) -> Case {
    if written.steps.iter().all(|Object(step)| step.expect.is_none()) {
        let fix = "add a step with \"expect\", such as {\"allowed\": true}";
        faults.push(Fault::new(format!("{path}.steps"), "no step expects anything", fix));
    }
    let start = written.start.map_or(DEFAULT_START, |start| start.0);
    let mut checker = StepChecker::new(rules);
    let (mut steps, mut now): (Vec<Step>, Elapsed) = (Vec::new(), Elapsed::ZERO);
    for (index, Object(step)) in written.steps.iter().enumerate() {
        let path = format!("{path}.steps[{index}]");
        let at = step.at.unwrap_or(now);
        if at.nanos() < now.nanos() {
            let what = format!("{at} is before the step above, which is at {now}");
            faults.push(Fault::new(format!("{path}.at"), what, "write the steps in the order of their times"));
        }
        if start.as_nanos().checked_add(at.nanos()).is_none() {
            let what = format!("{at} after the start of the case is later than {LAST_TIME}, the last possible time");
            faults.push(Fault::new(format!("{path}.at"), what, "begin the case earlier, or write a shorter time"));
        }
        now = at;
        steps.extend(checker.check(step, at, &path, faults));
    }
    if written.start.is_none()
        && let Some(rule) = steps.iter().find_map(|step| calendar_rule(step, rules))
    {
        let what = format!("the window of rule {rule} follows the calendar, but the case has no start");
        faults.push(Fault::new(path.to_owned(), what, "add \"start\": \"2026-03-01T09:30:00Z\", for example"));
    }
    Case { name: written.name.clone(), start, steps }
}

/// Returns the name of a rule that has a calendar window and matches the step's operation.
fn calendar_rule(step: &Step, rules: &RuleSet) -> Option<String> {
    let mut scratch = Scratch::default();
    let mut matches = rules.matches(step.operation()?, &mut scratch);
    let (index, rule) = matches.find(|(_, rule)| rule.settings.calendar.is_some())?;
    Some(rule.name(index).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::test::file;
    use crate::config::{self, Format};

    const RULES: &str = "[user=*]\ncreditLimit = 3\nper = 1m\nactorField = user\nlabel = by-user\n\n\
                         [key=*]\ncreditLimit = 3\nwindow = day\nactorField = key\n\n[default]\ncreditLimit = 0\n";

    fn found(cases: &str) -> String {
        let rules = config::parse(RULES, Format::Ini, "rules.ini").unwrap().rules;
        let file = file::parse(&format!("{{\"version\": 1, \"cases\": {cases}}}"), "x").unwrap();
        let problems = check(&file, &rules, "x").err().unwrap_or_default();
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    }

    fn found_in(steps: &str) -> String {
        found(&format!("[{{\"name\": \"a\", \"steps\": [{steps}]}}]"))
    }

    #[test]
    fn every_problem_of_a_file_is_reported_with_its_path() {
        let step = "{\"operation\": {\"user\": \"a\"}, \"expect\": {\"allowed\": true}}";
        assert_eq!(found_in(step), "");
        let both = found(&format!(
            "[{{\"name\": \"\", \"steps\": []}}, {{\"name\": \"b\", \"steps\": [{step}]}}, {{\"name\": \"b\", \"steps\": [{step}]}}]"
        ));
        for part in [
            "x: cases[0].name: the name is empty; say",
            "x: cases[0].steps: no step expects anything; add a step",
            "x: cases[2].name: another case is called \"b\"; give",
        ] {
            assert!(both.contains(part), "{both}");
        }
        assert!(found("[]").contains("x: cases: there are no cases; add one"));
    }

    #[test]
    fn steps_that_make_no_sense_are_reported() {
        let with =
            |step: &str| found_in(&format!("{step}, {{\"operation\": {{}}, \"expect\": {{\"allowed\": false}}}}"));
        let operation = "\"operation\": {\"user\": \"a\"}";
        for (step, expected) in [
            ("{}".to_owned(), "cases[0].steps[0]: a hit needs `operation`"),
            (
                format!("{{{operation}, \"at\": \"200000d\"}}"),
                "cases[0].steps[0].at: 200000d after the start of the case is later than 2554-07-21T23:34:33Z",
            ),
            (
                format!("{{{operation}, \"intent\": \"reserve\", \"ttl\": \"1500ms\"}}"),
                "cases[0].steps[0].ttl: 1500ms is not a whole number of seconds",
            ),
            (
                format!("{{\"operation\": {{{}}}}}", (0..257).map(|n| format!("\"{n}\": \"\"")).collect::<Vec<_>>().join(", ")),
                "cases[0].steps[0].operation: it has 257 pairs, but a server accepts at most 256",
            ),
            (
                format!("{{\"operation\": {{\"user\": \"{}\"}}}}", "x".repeat(70_000)),
                "cases[0].steps[0].operation: it has 70011 bytes of JSON, but a server accepts at most 65536 by default",
            ),
            (
                "{\"limit\": {\"rule\": \"x\", \"credits\": 1}}".to_owned(),
                "cases[0].steps[0].limit.rule: no rule is called \"x\"; the names are by-user, rule-2, default",
            ),
            ("{\"operation\": {\"user\": 1}}".to_owned(), "cases[0].steps[0].operation.user: the value is not a string"),
            (format!("{{{operation}, \"ttl\": 1}}"), "cases[0].steps[0].ttl: a hit has no `ttl`; remove it"),
            (format!("{{{operation}, \"at\": 5}}, {{{operation}, \"at\": 4}}"), "cases[0].steps[1].at: 4s is before the step"),
            (format!("{{{operation}, \"intent\": \"release\"}}"), "cases[0].steps[0].operation: a release has no"),
            ("{\"intent\": \"release\"}".to_owned(), "cases[0].steps[0]: a release needs `id`"),
            ("{\"intent\": \"commit\", \"id\": \"a\"}".to_owned(), "cases[0].steps[0]: a commit needs `cost`"),
            ("{\"intent\": \"release\", \"id\": \"a\"}".to_owned(), "steps[0].id: no step above reserves \"a\""),
            (
                format!("{{{operation}, \"intent\": \"reserve\", \"id\": \"a\", \"ttl\": 9}}, ").repeat(2) + "{\"operation\": {}}",
                "cases[0].steps[1].id: a step above reserves \"a\", too",
            ),
            (format!("{{{operation}, \"expect\": {{}}}}"), "cases[0].steps[0].expect: it is empty"),
            (
                format!("{{{operation}, \"expect\": {{\"rule\": \"x\"}}}}"),
                "expect.rule: no rule is called \"x\"; the names are by-user, rule-2, default",
            ),
            (
                format!("{{{operation}, \"expect\": {{\"error\": \"x\", \"allowed\": true}}}}"),
                "expect.allowed: an error has no `allowed`",
            ),
            (
                "{\"limit\": {\"rule\": \"by-user\", \"actor\": \"a\", \"credits\": 1}, \"expect\": {\"allowed\": true}}".to_owned(),
                "expect.allowed: a limit has no `allowed`",
            ),
            (format!("{{{operation}, \"limit\": {{\"rule\": \"by-user\"}}}}"), "steps[0].operation: a limit has no"),
            ("{\"operation\": {\"key\": \"a\"}}".to_owned(), "cases[0]: the window of rule rule-2 follows the calendar"),
        ] {
            let found = with(&step);
            assert!(found.contains(expected), "{step}: {found}");
        }
    }
}
