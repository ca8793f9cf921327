//! Every algorithm with all its settings, from a rules file to the replies.

use std::thread::sleep;
use std::time::Duration;

use crate::support::{LineClient, Server, parse_verdict};

#[path = "../examples/burst_plot/plot.rs"]
mod burst_plot;

/// Maximum difference between the seconds left and the expected ones.
const TOLERANCE: u64 = 5;

const RULES: &str = "
[algorithm=default] creditLimit=2 resetSeconds=3600
[algorithm=fixed-window] creditLimit=2 resetSeconds=3600 algorithm=fixed-window
; So long a window that no test comes to its end.
[algorithm=sliding-window] creditLimit=2 resetSeconds=3155760000 algorithm=sliding-window
[algorithm=sliding-log] creditLimit=2 resetSeconds=3600 algorithm=sliding-log
[algorithm=token-bucket] creditLimit=2 resetSeconds=3600 algorithm=token-bucket
[algorithm=refilled] creditLimit=4 resetSeconds=3600 algorithm=token-bucket refillCredits=1 refillSeconds=1800.5
[algorithm=leaky-bucket] creditLimit=2 resetSeconds=3600 algorithm=leaky-bucket
[algorithm=bursting] creditLimit=2 resetSeconds=3600 algorithm=leaky-bucket burst=3
[algorithm=quick] creditLimit=2 resetSeconds=0.25 algorithm=token-bucket
[algorithm=short] creditLimit=2 resetSeconds=0.25
[algorithm=trial] creditLimit=7 resetSeconds=60 matchPolicy=canary
[algorithm=trial] creditLimit=100 resetSeconds=3600 algorithm=sliding-log costField=bytes
[default] creditLimit=0 resetSeconds=0
";

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
    let server = Server::serving(RULES, &[]);
    let mut client = server.line();
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
    let server = Server::serving(RULES, &[]);
    let mut client = server.line();
    for algorithm in ["algorithm=quick", "algorithm=short"] {
        let first = hits::<3>(&mut client, algorithm);
        assert_eq!(first, [(true, 1, 1), (true, 0, 1), (false, 0, 1)], "{algorithm}: rounded up");
        sleep(Duration::from_millis(260));
        assert_eq!(hits::<3>(&mut client, algorithm), first, "{algorithm}");
    }
}

#[test]
fn committed_plot_shows_the_algorithms() {
    assert_eq!(burst_plot::burst_plot().unwrap(), include_str!("../docs/burst.svg"));
}
