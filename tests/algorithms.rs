//! Every algorithm with all its settings, from a rules file to the replies.

use std::thread::sleep;
use std::time::Duration;

use crate::support::{LineClient, RespClient, RulesFile, Server, divvy, parse_verdict};

#[path = "../examples/burst_plot/plot.rs"]
mod burst_plot;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/algorithms.ini");

/// Maximum difference between the seconds left and the expected ones.
const TOLERANCE: u64 = 5;

const RULES: &str = "
[algorithm=default]
creditLimit = 2
resetSeconds = 3600

[algorithm=fixed-window]
creditLimit = 2
resetSeconds = 3600
algorithm = fixed-window

; So long a window that no test comes to its end.
[algorithm=sliding-window]
creditLimit = 2
resetSeconds = 3155760000
algorithm = sliding-window

[algorithm=sliding-log]
creditLimit = 2
resetSeconds = 3600
algorithm = sliding-log

[algorithm=token-bucket]
creditLimit = 2
resetSeconds = 3600
algorithm = token-bucket

[algorithm=refilled]
creditLimit = 4
resetSeconds = 3600
algorithm = token-bucket
refillCredits = 1
refillSeconds = 1800.5

[algorithm=leaky-bucket]
creditLimit = 2
resetSeconds = 3600
algorithm = leaky-bucket

[algorithm=bursting]
creditLimit = 2
resetSeconds = 3600
algorithm = leaky-bucket
burst = 3

[algorithm=quick]
creditLimit = 2
resetSeconds = 0.25
algorithm = token-bucket

[algorithm=short]
creditLimit = 2
resetSeconds = 0.25

[algorithm=trial]
creditLimit = 7
resetSeconds = 60
matchPolicy = canary

[algorithm=trial]
creditLimit = 100
resetSeconds = 3600
algorithm = sliding-log
costField = bytes

[default]
creditLimit = 0
resetSeconds = 0
";

fn served() -> (Server, RulesFile) {
    let rules = RulesFile::ini(RULES);
    (Server::in_memory(rules.path()), rules)
}

/// Returns the answers to hits sent in one write, which therefore have the same time.
fn hits<const N: usize>(client: &mut LineClient, pairs: &str) -> [(bool, u64, u64); N] {
    client.send(format!("HIT {pairs}\n").repeat(N).as_bytes());
    std::array::from_fn(|_| parse_verdict(&client.read_line()).expect("an OK reply"))
}

/// Asserts that answers are as expected. Allows for the seconds since the first hit.
#[track_caller]
fn assert_answers<const N: usize>(answers: [(bool, u64, u64); N], expected: [(bool, u64, u64); N]) {
    let numbers = |(allowed, credit, _)| (allowed, credit);
    assert_eq!(answers.map(numbers), expected.map(numbers));
    for ((_, _, reset), (_, _, expected)) in answers.into_iter().zip(expected) {
        assert!((expected.saturating_sub(TOLERANCE)..=expected).contains(&reset), "{reset}, not {expected}");
    }
}

#[test]
fn every_algorithm_counts_by_its_own_rules() {
    let (server, _rules) = served();
    let mut client = LineClient::connect(server.line);
    let mut three = |algorithm: &str| hits::<3>(&mut client, &format!("algorithm={algorithm}"));
    for algorithm in ["default", "fixed-window", "sliding-log", "token-bucket"] {
        assert_answers(three(algorithm), [(true, 1, 3600), (true, 0, 3600), (false, 0, 3600)]);
    }
    assert_answers(three("leaky-bucket"), [(true, 1, 1800), (true, 0, 3600), (false, 0, 3600)]);
    assert_answers(three("bursting"), [(true, 2, 1800), (true, 1, 3600), (true, 0, 5400)]);
    assert_answers(three("bursting"), [(false, 0, 5400); 3]);
    assert_answers(three("refilled"), [(true, 3, 1801), (true, 2, 1801), (true, 1, 1801)]);
    assert_answers(three("refilled"), [(true, 0, 1801), (false, 0, 1801), (false, 0, 1801)]);
    // The windows are aligned, so the time left depends on the time of day.
    assert_eq!(three("sliding-window").map(|(allowed, left, _)| (allowed, left)), [(true, 1), (true, 0), (false, 0)]);
}

#[test]
fn reset_may_be_a_fraction_of_a_second() {
    let (server, _rules) = served();
    let mut client = LineClient::connect(server.line);
    for algorithm in ["algorithm=quick", "algorithm=short"] {
        let first = hits::<3>(&mut client, algorithm);
        assert_eq!(first, [(true, 1, 1), (true, 0, 1), (false, 0, 1)], "{algorithm}: rounded up");
        sleep(Duration::from_millis(260));
        assert_eq!(hits::<3>(&mut client, algorithm), first, "{algorithm}");
    }
}

#[test]
fn cost_is_part_of_the_request() {
    let (server, _rules) = served();
    let mut line = LineClient::connect(server.line);
    let mut resp = RespClient::connect(server.resp);
    assert_answers([line.hit("algorithm=trial bytes=60")], [(true, 40, 3600)]);
    assert_answers([line.hit("algorithm=trial bytes=41")], [(false, 40, 3600)]);
    let peek = |resp: &mut RespClient, bytes: u64| resp.command(&format!("DIVVY.PEEK algorithm=trial bytes={bytes}"));
    assert!(peek(&mut resp, 41).starts_with("[0 40 "));
    assert!(peek(&mut resp, 40).starts_with("[1 40 "));

    let wrong = "the field 'bytes' is the cost of the hit and must be a whole number from 0 to 18446744073709551615, \
                 not 'many'";
    line.send(b"HIT algorithm=trial bytes=many\n");
    assert_eq!(line.read_line(), format!("ERR unknown \"{wrong}\"\n"));
    assert_eq!(resp.command("DIVVY.HIT algorithm=trial bytes=many"), format!("-ERR {wrong}"));
    // Nothing was taken, and the connection stays open.
    assert_answers([line.hit("algorithm=trial")], [(true, 39, 3600)]);
    // These are the counters of the canary and of the rule.
    assert_eq!(resp.command("DIVVY.RESET algorithm=trial bytes=many"), "2");
    assert_eq!(resp.command("DIVVY.PEEK algorithm=trial"), "[1 100 0]");
}

#[test]
fn rules_and_explanations_name_the_algorithm() {
    let (server, _rules) = served();
    let mut client = RespClient::connect(server.resp);
    let rules = client.command("DIVVY.RULES");
    for expected in [
        "[rule algorithm=default creditLimit 2 resetSeconds 3600 algorithm fixed-window matchPolicy stop name rule-1 allowed 0",
        "creditLimit 4 resetSeconds 3600 algorithm token-bucket refillCredits 1 refillSeconds 1800.5 matchPolicy",
        "creditLimit 2 resetSeconds 3600 algorithm leaky-bucket burst 3 matchPolicy",
        "algorithm sliding-log costField bytes matchPolicy",
        "resetSeconds 0.25 algorithm fixed-window",
    ] {
        assert!(rules.contains(expected), "{expected:?} in {rules}");
    }
    let explanation = client.command("DIVVY.EXPLAIN algorithm=trial bytes=5");
    let expected = "matches and answers: allows 100 in 3600 s (sliding-log), at the cost in bytes: 5";
    assert!(explanation.contains(expected), "{explanation}");
}

#[test]
fn algorithms_example_is_served() {
    let server = Server::in_memory(EXAMPLE);
    let mut client = LineClient::connect(server.line);
    assert_eq!(client.hit("api=orders user=ada"), (true, 19, 1));
    assert!(!client.hit("api=upload user=ada bytes=1000001").0);
    assert_eq!(client.hit("api=reports user=ada"), (true, 9, 30));
}

/// Returns the output of a `divvy` command that must succeed.
fn printed(args: &[&str]) -> String {
    let output = divvy().args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn algorithms_example_is_checked_explained_and_converted_without_loss() {
    let checked = printed(&["check", EXAMPLE]);
    for expected in [
        "[api=status] allows 100 in 0.25 s (fixed-window)\n",
        "allows 100 in 60 s (sliding-window), by user (sliding-window)\n",
        "allows 10 at once, then 5 every 30 s (token-bucket), by user",
        "allows 20 at once, then 60 in 60 s, evenly (leaky-bucket), by user",
        "allows 1000000 in 3600 s (sliding-window), by user, at the cost in bytes (bytes)\n",
    ] {
        assert!(checked.contains(expected), "{expected:?} in {checked}");
    }
    let explained = printed(&["explain", "--file", EXAMPLE, "api=upload", "user=ada", "bytes=512"]);
    assert!(explained.ends_with("by user, at the cost in bytes: 512\n"), "{explained}");

    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, ini, json_again) = (path("1.json"), path("2.ini"), path("3.json"));
    printed(&["convert", EXAMPLE, &json]);
    printed(&["convert", &json, &ini]);
    printed(&["convert", &ini, &json_again]);
    let written = std::fs::read_to_string(&json).unwrap();
    assert!(written.contains("\"resetSeconds\": 0.25,") && written.contains("\"costField\": \"bytes\""), "{written}");
    assert_eq!(std::fs::read_to_string(&json_again).unwrap(), written);
}

#[test]
fn committed_plot_shows_the_algorithms() {
    assert_eq!(burst_plot::burst_plot().unwrap(), include_str!("../docs/burst.svg"));
}
