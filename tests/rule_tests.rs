//! `divvy test`: cases that pass, cases that fail, and files that cannot be used.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Place, divvy_with, output};

const RULES: &str = "[api=search user=*]\ncreditLimit = 3\nper = 1m\nactorField = user\nlabel = search\n\n\
                     [job=export]\nalgorithm = concurrency\ncreditLimit = 1\nper = 10m\n\n\
                     [plan=free customer=*]\ncreditLimit = 10\nwindow = month\ntimezone = Europe/Berlin\nactorField = customer\n\n\
                     [default]\ncreditLimit = 0\n";

/// Returns a directory with these rules and their cases.
fn files(rules: &str, cases: &str) -> Place {
    Place::with(rules, &[("rules.test.json", cases)])
}

fn with_steps(steps: &Value) -> Place {
    files(RULES, &cases(&[("a case", None, steps)]).to_string())
}

/// Runs `divvy test` in the directory. Returns its exit code, standard output and standard error.
fn test(files: &Place, args: &str) -> (i32, String, String) {
    output(divvy_with(&format!("test {args}")).current_dir(files.dir()))
}

fn cases(cases: &[(&str, Option<&str>, &Value)]) -> Value {
    let case = |(name, start, steps): &(&str, Option<&str>, &Value)| match start {
        None => json!({"name": name, "steps": steps}),
        Some(start) => json!({"name": name, "start": start, "steps": steps}),
    };
    json!({"version": 1, "cases": cases.iter().map(case).collect::<Vec<_>>()})
}

/// Runs the steps, which must pass.
fn pass(steps: &Value) {
    let (code, out, error) = test(&with_steps(steps), "rules.ini");
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
}

#[test]
fn cases_pass_at_simulated_times() {
    let search = json!([
        {"operation": {"api": "search", "user": "ann"}, "expect": {"allowed": true, "remaining": 2, "balance": 2, "reset": 60, "rule": "search"}},
        {"at": "10s", "intent": "peek", "operation": {"api": "search", "user": "ann"}, "expect": {"remaining": 2, "reset": "50s"}},
        {"operation": {"api": "search", "user": "ann"}, "cost": 2, "expect": {"allowed": true, "remaining": 0}},
        {"operation": {"api": "search", "user": "ann"}, "expect": {"allowed": false, "reset": 50}},
        {"at": 59.5, "operation": {"api": "search", "user": "ann"}, "expect": {"allowed": false, "reset": 1}},
        {"at": 60, "operation": {"api": "search", "user": "ann"}, "expect": {"allowed": true}},
    ]);
    let month = json!([
        {"operation": {"plan": "free", "customer": "a"}, "cost": 10, "expect": {"remaining": 0, "reset": "1h", "rule": "rule-3"}},
        {"at": "59m", "operation": {"plan": "free", "customer": "a"}, "expect": {"allowed": false}},
        {"at": "1h", "operation": {"plan": "free", "customer": "a"}, "expect": {"allowed": true, "remaining": 9}},
    ]);
    let other = json!([{"operation": {"api": "search", "user": "ann"}, "expect": {"remaining": 2}}]);
    let text = cases(&[
        ("search", None, &search),
        ("month", Some("2026-03-31T23:00:00+02:00"), &month),
        ("each case has an empty store", None, &other),
    ]);
    let place = files(RULES, &text.to_string());
    let passed = (0, "rules.test.json: 3 cases, 10 steps: all passed\n".to_owned(), String::new());
    assert_eq!(test(&place, "rules.ini"), passed);
    fs::rename(place.path("rules.test.json"), place.path("other.json")).unwrap();
    assert_eq!(test(&place, "rules.ini --cases other.json").0, 0);
}

#[test]
fn every_intent_has_the_answer_that_a_server_gives() {
    pass(&json!([
        {"intent": "charge", "operation": {"api": "search", "user": "ann"}, "cost": 5, "expect": {"remaining": 0, "balance": -2, "rule": "search"}},
        {"intent": "refund", "operation": {"api": "search", "user": "ann"}, "cost": 4, "expect": {"balance": 2}},
        {"intent": "reserve", "id": "r", "operation": {"api": "search", "user": "ann"}, "cost": 2, "ttl": "30s", "expect": {"allowed": true, "remaining": 0}},
        {"at": "10s", "intent": "renew", "id": "r", "ttl": 30, "expect": {"allowed": true}},
        {"at": "35s", "intent": "commit", "id": "r", "cost": 1, "expect": {"remaining": 1, "balance": 1, "reset": 25}},
        {"intent": "release", "id": "r", "expect": {"allowed": false}},
        {"operation": {"api": "search", "user": "bob"}, "idempotencyKey": "k", "expect": {"remaining": 2}},
        {"operation": {"api": "search", "user": "bob"}, "idempotencyKey": "k", "expect": {"remaining": 2}},
        {"operation": {"api": "search", "user": "bob"}, "idempotencyKey": "k", "cost": 2, "expect": {"error": "used for another request"}},
        {"intent": "reserve", "id": "one", "operation": {"job": "export"}, "expect": {"allowed": true, "rule": "rule-2"}},
        {"intent": "reserve", "id": "two", "operation": {"job": "export"}, "expect": {"allowed": false}},
        {"intent": "release", "id": "two", "expect": {"error": "was not granted"}},
        {"intent": "release", "id": "one", "expect": {"allowed": true}},
        {"intent": "reserve", "operation": {"job": "export"}, "expect": {"allowed": true}},
        {"limit": {"rule": "search", "actor": "cy", "credits": 9}},
        {"operation": {"api": "search", "user": "cy"}, "expect": {"remaining": 8}},
        {"limit": {"rule": "search", "actor": "cy"}},
        {"operation": {"api": "search", "user": "cy"}, "expect": {"remaining": 1}},
        {"limit": {"rule": "rule-2", "credits": 9}, "expect": {"error": "set `label = NAME` in the rule"}},
        {"operation": {"job": "export"}, "expect": {"error": "take a lease with POST /v1/reservations"}},
        {"intent": "reserve", "operation": {"api": "search", "user": "dan"}, "ttl": "11m", "expect": {"error": "(--max-reservation-ttl)"}},
    ]));
}

#[test]
fn failing_step_shows_its_differences_and_the_rule_that_answered() {
    let place = with_steps(&json!([
        {"operation": {"api": "search", "user": "ann"}, "expect": {"remaining": 2}},
        {"at": "90s", "operation": {"api": "search", "user": "b c"}, "cost": 2, "expect": {"allowed": false, "remaining": 1, "reset": 30, "rule": "default"}},
        {"operation": {"job": "export"}},
        {"operation": {}, "expect": {"error": "no such thing"}},
        {"operation": {"api": "search", "user": "ann"}, "idempotencyKey": ""},
        {"limit": {"rule": "search", "actor": "", "credits": 9}, "expect": {"error": "no such thing"}},
    ]));
    let (code, out, error) = test(&place, "rules.ini");
    assert_eq!((code, error.as_str()), (1, ""));
    let expected = "\
FAILED: a case, step 2 at 90s: hit api=search user=\"b c\", cost 2
  allowed: expected false, got true
  reset: expected 30, got 60
  rule: expected \"default\", got \"search\"
  answered by search (line 1: [api=search user=*])
FAILED: a case, step 3 at 90s: hit job=export
  error: expected none, got";
    assert!(out.starts_with(expected) && out.ends_with("rules.test.json: 1 case, 6 steps: 1 case failed\n"), "{out}");
}

#[test]
fn json_has_the_same_for_programs() {
    let pass = json!([{"operation": {"api": "search", "user": "ann"}, "expect": {"remaining": 2}}]);
    let fail = json!([{"at": "0.5s", "operation": {"api": "search", "user": "ann"}, "expect": {"remaining": 1}}]);
    let place = files(RULES, &cases(&[("one", None, &pass), ("two", None, &fail)]).to_string());
    let (code, out, error) = test(&place, "rules.ini --json");
    assert_eq!((code, error.as_str()), (1, ""));
    let expected = json!({
        "rules": "rules.ini",
        "cases": "rules.test.json",
        "passed": 1,
        "failed": 1,
        "results": [
            {"name": "one", "passed": true, "steps": 1, "failures": []},
            {"name": "two", "passed": false, "steps": 1, "failures": [{
                "step": 1,
                "at": 0.5,
                "request": "hit api=search user=ann",
                "differences": [{"field": "remaining", "expected": 1, "got": 2}],
                "rule": "search",
                "line": 1,
            }]},
        ],
    });
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), expected);
}

#[test]
fn unusable_files_say_what_is_wrong_and_exit_with_2() {
    let missing = files(RULES, "");
    fs::remove_file(missing.path("rules.test.json")).unwrap();
    let step = json!([{"operation": {"api": "search", "user": "ann"}, "ttl": 1, "expect": {"rule": "search"}}]);
    let broken_rules = files("[a=1]\ncreditLimit = x\n", "");
    for (place, args, expected) in [
        (&missing, "rules.ini", "error: rules.test.json: cannot read the test cases: No such file"),
        (&missing, "none.ini", "error: none.ini: cannot read the file"),
        (&missing, "rules.ini --cases .", "it is a directory, but must be a regular file; check its path"),
        (&broken_rules, "rules.ini", "error: rules.ini:2: [a=1]"),
        (&with_steps(&step), "rules.ini", "error: rules.test.json: cases[0].steps[0]: a hit has no `ttl`"),
    ] {
        let (code, out, error) = test(place, args);
        assert_eq!((code, out.as_str()), (2, ""), "{error}");
        assert!(error.contains(expected), "{expected}:\n{error}");
    }
    assert_eq!(test(&missing, "").0, 2);
}
