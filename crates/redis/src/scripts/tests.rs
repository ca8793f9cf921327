//! Arbitrary replies of scripts, compared with the outcomes that are decoded from them.

use proptest::prelude::*;

use super::*;
use divvy_core::algorithm::{Ask, FixedWindow, Limit, ReservationAsk, Resolution, TokenBucket};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_store::key::{Prefix, Space};
use divvy_store::{Action, record_key};

const CREDITS: u64 = 100;

/// An element of a reply.
#[derive(Debug, Clone)]
enum Element {
    Number(i64),
    Text(String),
    Error,
    Nothing,
    List(Vec<Element>),
}

impl Element {
    fn write(&self) -> String {
        match self {
            Self::Number(number) => format!(":{number}\r\n"),
            Self::Text(text) => format!("${}\r\n{text}\r\n", text.len()),
            Self::Error => "-ERR no\r\n".to_owned(),
            Self::Nothing => "$-1\r\n".to_owned(),
            Self::List(elements) => list(elements),
        }
    }
}

fn list(elements: &[Element]) -> String {
    let elements: Vec<_> = elements.iter().map(Element::write).collect();
    format!("*{}\r\n{}", elements.len(), elements.concat())
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -3_i64..3, 1 => any::<i64>()]
}

/// Generates the words of a bucket's outcome, mostly in order.
fn text() -> impl Strategy<Value = String> {
    let number = || prop_oneof![(0_u64..9).prop_map(|n| n.to_string()), any::<u64>().prop_map(|n| n.to_string())];
    let word = || prop_oneof![8 => number(), 1 => "-|-[1-9]|[+]1|x||18446744073709551616"];
    let optional = || prop_oneof![Just("-".to_owned()), (1_u64..99).prop_map(|n| n.to_string())];
    let resolution = prop_oneof![8 => Just(String::new()), 8 => " ((late|repeated|gone|different)|(done|repeated) [1-9][0-9]{0,8})", 1 => " (held|done x|done 0|late \\+5| )"];
    let words = ("[01]|2|-1|", word(), word(), word(), optional(), optional(), resolution);
    words.prop_map(|(allowed, before, balance, reset, retry, session, resolution)| {
        format!("{allowed} {before} {balance} {reset} {retry} {session}{resolution}")
    })
}

fn element() -> impl Strategy<Value = Element> {
    let leaf = prop_oneof![
        6 => number().prop_map(Element::Number),
        6 => text().prop_map(Element::Text),
        1 => "[ -~]{0,9}".prop_map(Element::Text),
        2 => Just(Element::Error),
        1 => Just(Element::Nothing),
    ];
    prop_oneof![20 => leaf.clone(), 1 => prop::collection::vec(leaf, 0..3).prop_map(Element::List)]
}

/// Generates the elements of a reply, often only outcomes.
fn elements() -> impl Strategy<Value = Vec<Element>> {
    prop::collection::vec(prop_oneof![12 => text().prop_map(Element::Text), 1 => element()], 0..5)
}

fn window() -> Limit {
    Limit::FixedWindow(FixedWindow::new(CREDITS, NANOS_PER_SECOND).unwrap())
}

fn bucket() -> Limit {
    Limit::TokenBucket(TokenBucket::new(CREDITS, 1, NANOS_PER_SECOND).unwrap())
}

fn action() -> impl Strategy<Value = Action> {
    prop::sample::select(vec![
        Action::Ask(Ask::Take { cost: 1 }),
        Action::Ask(Ask::Refund { cost: 2 }),
        Action::Ask(Ask::Take { cost: CREDITS + 1 }),
        Action::Reservation(ReservationAsk::Release { run: None }),
        Action::Idempotent { ask: Ask::Take { cost: 1 }, fingerprint: 7 },
    ])
}

/// Returns a batch with these actions on one counter.
fn batch(limit: Limit, actions: &[Action]) -> Batch {
    let prefix = Prefix::new(Space::Rule, [("a", "b")], &limit);
    let mut batch = Batch::default();
    for action in actions {
        let write_key = |out: &mut Vec<u8>| prefix.write_key("actor", out);
        batch.push(limit, *action, Timestamp::EPOCH, |out| match action.record_space() {
            Some(space) => record_key::write(space, b"id", out, write_key),
            None => write_key(out),
        });
    }
    batch
}

fn read(batch: &Batch, reply: &str) -> Result<Vec<Result<Outcome, Failure>>, Failure> {
    let plans = plan_calls(batch, Layout::OneServer);
    read_outcomes(batch, &plans[0], &Reply::from_line(reply))
}

/// Returns the text that a script writes for this outcome of a bucket.
fn text_of(outcome: &Outcome) -> String {
    let Outcome { allowed, before, left, owed, reset_ns, retry_ns, session, run, resolution, source: _ } = outcome;
    let balance = if *owed > 0 { format!("-{owed}") } else { left.to_string() };
    let retry = retry_ns.map_or("-".to_owned(), |ns| ns.to_string());
    let session = if *session == Timestamp::EPOCH { "-".to_owned() } else { session.as_nanos().to_string() };
    let resolution = match resolution {
        Resolution::Done if run.is_some() => " done",
        Resolution::Done => "",
        Resolution::Late => " late",
        Resolution::Repeated => " repeated",
        Resolution::Gone => " gone",
        Resolution::Different => " different",
    };
    let run = run.map_or(String::new(), |run| format!(" {run}"));
    format!("{} {before} {balance} {reset_ns} {retry} {session}{resolution}{run}", u8::from(*allowed))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Reads a reply of arbitrary elements for arbitrary actions. Either the outcomes contain everything in the reply,
    /// or it is refused.
    #[test]
    fn reply_is_read_in_full_or_refused(
        is_window in any::<bool>(),
        actions in prop::collection::vec(action(), 1..4),
        elements in prop_oneof![4 => elements(), 1 => prop::collection::vec(element(), 0..13)],
    ) {
        let batch = batch(if is_window { window() } else { bucket() }, &actions);
        let Ok(outcomes) = read(&batch, &list(&elements)) else { return Ok(()) };
        prop_assert_eq!(outcomes.len(), actions.len());
        let mut rest = elements.as_slice();
        for (outcome, action) in outcomes.iter().zip(&actions) {
            rest = match (outcome, rest) {
                (Err(_), [Element::Error, rest @ ..]) => rest,
                (Ok(outcome), [Element::Text(text), rest @ ..]) => {
                    prop_assert_eq!(&text_of(outcome), text);
                    prop_assert!(action.has_record() || outcome.resolution == Resolution::Done);
                    rest
                }
                other => return Err(TestCaseError::fail(format!("{other:?}"))),
            };
        }
        prop_assert!(rest.is_empty());
    }

    /// Tests replies that are not a list of outcomes, or only a part of one.
    #[test]
    fn any_bytes_are_read_without_a_panic(
        is_window in any::<bool>(),
        actions in prop::collection::vec(action(), 1..4),
        elements in elements(),
        cut in any::<prop::sample::Index>(),
        bytes in "[*$:+_,#(!=%~>|0-9\\r\\n -]{0,40}",
    ) {
        let batch = batch(if is_window { window() } else { bucket() }, &actions);
        let whole = list(&elements);
        prop_assert!(read(&batch, &whole[..cut.index(whole.len())]).is_err());
        if !bytes.starts_with('*') {
            prop_assert!(read(&batch, &bytes).is_err());
        }
        let _ = read(&batch, &format!("{}{bytes}", &whole[..cut.index(whole.len())]));
    }
}
