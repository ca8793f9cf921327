use super::super::tests::with_command;
use super::*;
use proptest::prelude::*;

const MAX: &str = "9223372036854775807";
const OUT_OF_RANGE: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

/// Splits `request` into words. `MAX` stands for the largest number.
fn words(request: &str) -> Vec<&str> {
    request.split(' ').map(|word| if word == "MAX" { MAX } else { word }).collect()
}

fn error(request: &str) -> String {
    with_command(&words(request), |command| command.expect_err(request).to_string())
}

/// Returns the limit, the ask and the time of a request with one of these commands.
fn asked(request: &str) -> (Limit, Ask, Option<Timestamp>) {
    with_command(&words(request), |command| match command.expect(request) {
        Command::Tokens(asked) | Command::Session(asked) | Command::Throttle(asked) | Command::Increment(asked) => {
            assert_eq!(asked.key, b"k");
            (asked.limit, asked.ask, asked.at)
        }
        other => panic!("{other:?}"),
    })
}

fn tokens(capacity: u64, refill: u64, interval_ns: u64) -> Limit {
    Limit::TokenBucket(TokenBucket::new(capacity, refill, interval_ns).unwrap())
}

fn leaky(capacity: u64, count: u64, period_ns: u64) -> Limit {
    Limit::LeakyBucket(LeakyBucket::new(capacity, count, period_ns).unwrap())
}

#[test]
fn options_come_in_any_order_and_case() {
    let expected = (
        tokens(5, 2, 60 * NANOS_PER_SECOND),
        Ask::Replay { cost: 3, strict: true },
        Some(Timestamp::from_nanos(7 * NANOS_PER_SECOND)),
    );
    assert_eq!(asked("RL.REDUCE k 5 60 REFILL 2 TAKE 3 AT 7 STRICT"), expected);
    assert_eq!(asked("rl.reduce k 5 60 strict at 7 take 3 Refill 2"), expected);
}

#[test]
fn missing_options_have_defaults() {
    let drain = |strict| Ask::Drain { cost: 1, strict };
    let limit = tokens(5, 5, 60 * NANOS_PER_SECOND);
    assert_eq!(asked("RL.REDUCE k 5 60"), (limit, drain(false), None));
    assert_eq!(asked("RL.SESSIONIZE k 5 60"), (limit, drain(true), None));
    assert_eq!(asked("RL.SESSIONIZE k 5 60 STRICT"), (limit, drain(true), None));
    assert_eq!(asked("RL.GET k 5 60"), (limit, Ask::Drain { cost: 0, strict: false }, None));
    assert_eq!(asked("CL.THROTTLE k 14 30 60"), (leaky(15, 30, 60 * NANOS_PER_SECOND), Ask::Take { cost: 1 }, None));
}

#[test]
fn long_times_saturate_and_keep_their_rate() {
    let largest = i64::MAX as u64;
    assert_eq!(asked("RL.REDUCE k MAX MAX").0, tokens(largest, largest, u64::MAX));
    assert_eq!(asked("CL.THROTTLE k MAX 1 MAX").0, leaky(largest + 1, 1, u64::MAX));
    // The rate is one credit per second, and u64::MAX nanoseconds are 18,446,744,073 whole seconds.
    assert_eq!(asked("CL.THROTTLE k 0 MAX MAX").0, leaky(1, 18_446_744_073, u64::MAX));
}

#[test]
fn clients_time_is_used_up_to_the_year_2554() {
    assert_eq!(asked("RL.GET k 5 60 AT 0").2, Some(Timestamp::EPOCH));
    assert_eq!(asked("RL.GET k 5 60 AT 18446744073").2, Timestamp::from_secs(18_446_744_073));
    assert_eq!(error("RL.GET k 5 60 AT 18446744074"), OUT_OF_RANGE);
    assert_eq!(asked("RL.PGET k 5 60 AT 18446744073709").2, Timestamp::from_millis(18_446_744_073_709));
    assert_eq!(error("RL.PGET k 5 60 AT 18446744073710"), OUT_OF_RANGE);
}

#[test]
fn invalid_numbers_are_refused() {
    for nonsense in ["0", "-1", "-9223372036854775808", "9223372036854775808", "x", "1.5", "+1", "01", "", "1\r\n"] {
        for request in [
            format!("RL.REDUCE k {nonsense} 60"),
            format!("RL.SESSIONIZE k 5 {nonsense}"),
            format!("RL.GET k 5 60 REFILL {nonsense}"),
            format!("CL.THROTTLE k 5 {nonsense} 60"),
            format!("CL.THROTTLE k 5 1 {nonsense}"),
        ] {
            assert_eq!(error(&request), OUT_OF_RANGE, "{request:?}");
        }
    }
    for request in [
        "RL.REDUCE k 5 60 TAKE -1",
        "RL.REDUCE k 5 60 AT -1",
        "RL.REDUCE k 5 60 AT now",
        "CL.THROTTLE k -1 1 60",
        "CL.THROTTLE k 5 1 60 -1",
    ] {
        assert_eq!(error(request), OUT_OF_RANGE, "{request}");
    }
}

#[test]
fn options_that_are_unknown_unfinished_or_repeated_are_syntax_errors() {
    for request in [
        "RL.REDUCE k 5 60 NX",
        "RL.REDUCE k 5 60 7",
        "RL.REDUCE k 5 60 TAKE",
        "RL.REDUCE k 5 60 STRICT AT",
        "RL.REDUCE k 5 60 TAKE 1 take 1",
        "RL.REDUCE k 5 60 AT 1 AT 2",
        "RL.REDUCE k 5 60 REFILL 1 REFILL 1",
        "RL.REDUCE k 5 60 STRICT STRICT",
        "RL.GET k 5 60 STRICT",
        "RL.PGET k 5 60 TAKE 1",
    ] {
        assert_eq!(error(request), SYNTAX, "{request}");
    }
}

#[test]
fn increment_has_bounds_and_an_expiry() {
    let usual = Counter::default();
    let expiry = |expiry| Counter { expiry, ..usual };
    let add = |limit, by| (Limit::Counter(limit), Ask::Add { by }, None);
    let at = |nanos| Expiry::At(Timestamp::from_nanos(nanos));
    assert_eq!(asked("INCREX k"), add(usual, 1));
    assert_eq!(asked("increx k byint -9223372036854775808"), add(usual, i64::MIN));
    let bounded = Counter {
        lower: -1,
        upper: 9,
        saturates: true,
        keeps_expiry: true,
        expiry: Expiry::After(2 * NANOS_PER_SECOND),
    };
    assert_eq!(asked("INCREX k ENX Ex 2 SATURATE ubound 9 LBOUND -1 BYINT MAX"), add(bounded, i64::MAX));
    assert_eq!(asked("INCREX k PX 7"), add(expiry(Expiry::After(7 * NANOS_PER_MILLI)), 1));
    assert_eq!(asked("INCREX k EX 9223372036854775"), add(expiry(Expiry::After(LONGEST_EXPIRY_NS)), 1));
    assert_eq!(asked("INCREX k EXAT 7"), add(expiry(at(7 * NANOS_PER_SECOND)), 1));
    assert_eq!(asked("INCREX k PXAT 7"), add(expiry(at(7 * NANOS_PER_MILLI)), 1));
    assert_eq!(asked("INCREX k PXAT MAX"), add(expiry(at(u64::MAX - 1)), 1));
    assert_eq!(asked("INCREX k PERSIST"), add(expiry(at(u64::MAX)), 1));
}

/// The texts are Valkey's.
#[test]
fn mistakes_in_an_increment_are_described_as_in_valkey() {
    for (options, expected) in [
        ("BYINT abc", "ERR Increment is not an integer or out of range"),
        ("BYINT 9223372036854775808", "ERR Increment is not an integer or out of range"),
        ("LBOUND 1.5", "ERR LBOUND is not an integer or out of range"),
        ("UBOUND inf", "ERR UBOUND is not an integer or out of range"),
        ("LBOUND 20 UBOUND 0", "ERR LBOUND can't be greater than UBOUND"),
        ("LBOUND 20 UBOUND 0 SATURATE", "ERR LBOUND can't be greater than UBOUND"),
        ("ENX", "ERR ENX flag requires an expiration"),
        ("EX 0", "ERR invalid expire time in 'increx' command"),
        ("PX -1", "ERR invalid expire time in 'increx' command"),
        ("EXAT MAX", "ERR invalid expire time in 'increx' command"),
        ("PXAT x", OUT_OF_RANGE),
    ] {
        assert_eq!(error(&format!("INCREX k {options}")), expected, "{options}");
    }
    for options in [
        "7",
        "NX",
        "XX",
        "BYFLOAT 1.5",
        "BYINT",
        "LBOUND",
        "UBOUND",
        "EX",
        "PXAT",
        "BYINT abc FOO",
        "BYINT 1 BYINT 2",
        "LBOUND 0 LBOUND 1",
        "UBOUND 0 UBOUND 1",
        "SATURATE SATURATE",
        "ENX ENX EX 1",
        "PERSIST PERSIST",
        "EX 1 EX 2",
        "EX 1 PX 2",
        "EXAT 1 PXAT 2",
        "EX 1 PERSIST",
        "PERSIST EX 1",
        "PERSIST ENX",
        "ENX PERSIST",
    ] {
        assert_eq!(error(&format!("INCREX k {options}")), SYNTAX, "{options}");
    }
    assert_eq!(error("INCREX"), "ERR wrong number of arguments for 'increx' command");
}

proptest! {
    #[test]
    fn period_of_any_length_keeps_its_rate(count in 1..=i64::MAX as u64, seconds in 1..=i64::MAX as u64) {
        let (share, period_ns) = rate(count, seconds);
        let exact = count as f64 / (seconds as f64 * 1e9);
        let kept = share as f64 / period_ns as f64;
        // The rate is rounded down to whole credits in 584 years, but never to 0.
        let one = 1.0 / u64::MAX as f64;
        prop_assert!(kept <= (exact * 1.000_000_1).max(one) && kept >= exact * 0.999_999_9 - one, "{kept} for {exact}");
    }
}
