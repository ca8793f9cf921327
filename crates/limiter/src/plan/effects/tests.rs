//! The table, in the form that docs/architecture.md shows.

use super::*;
use divvy_core::algorithm::{Concurrency, FixedWindow, SlidingLog};

const COLUMNS: [(&str, Column); 10] = [
    ("plain", rule(Counter::Credits)),
    ("debt", Column { overrun: Overrun::Debt, ..rule(Counter::Credits) }),
    ("count", Column { overrun: Overrun::Count, ..rule(Counter::Credits) }),
    ("annotate, quotaGroup", Column { overrun: Overrun::Annotate, ..rule(Counter::Credits) }),
    ("counts requests", Column { counts_requests: true, ..rule(Counter::Credits) }),
    ("sliding log", rule(Counter::Log)),
    ("concurrency", rule(Counter::Leases { are_named: false })),
    ("with holdField", rule(Counter::Leases { are_named: true })),
    ("always", rule(Counter::None)),
    ("never", rule(Counter::None)),
];

type Column = RuleKind;

const fn rule(counter: Counter) -> RuleKind {
    let overrun = Overrun::Refuse;
    RuleKind { counter, overrun, is_in_quota_group: false, counts_requests: false, is_canary: false }
}

const INTENTS: [(&str, Intent, Modes); 12] = [
    ("Hit", Intent::Hit, NO_MODES),
    ("Peek", Intent::Peek, NO_MODES),
    ("Forget", Intent::Forget, NO_MODES),
    ("Charge", Intent::Charge, NO_MODES),
    ("Refund", Intent::Refund, NO_MODES),
    ("Enter", Intent::Enter, NO_MODES),
    ("EnterOrCharge", Intent::EnterOrCharge, NO_MODES),
    ("EnterOrCharge, a rule charges", Intent::EnterOrCharge, Modes { charges: true, frees_leases: false }),
    ("Leave", Intent::Leave, NO_MODES),
    ("Leave, a rule leases", Intent::Leave, Modes { charges: false, frees_leases: true }),
    ("Reserve", Intent::Reserve, NO_MODES),
    ("Share", Intent::Share, NO_MODES),
];
const NO_MODES: Modes = Modes { charges: false, frees_leases: false };

/// Returns a word for the action on a counter.
fn word(treatment: Treatment, counter: Counter) -> &'static str {
    match treatment {
        Treatment::Absent(_) => "–",
        Treatment::Ask(Ask::Take { .. }) => "take",
        Treatment::Ask(Ask::Look { .. }) => "look",
        Treatment::Ask(Ask::Overdraw { .. }) => "overdraw",
        Treatment::Ask(Ask::Charge { .. }) => "charge",
        Treatment::Ask(Ask::Tally { .. }) => "tally",
        Treatment::Ask(Ask::Refund { .. }) => "give back",
        Treatment::Ask(Ask::Share { .. }) => "take ahead",
        Treatment::Ask(
            Ask::Return { .. }
            | Ask::Show
            | Ask::Count { .. }
            | Ask::Drain { .. }
            | Ask::Replay { .. }
            | Ask::Add { .. },
        ) => {
            unreachable!()
        }
        Treatment::Forget => "forget",
        Treatment::Reserve { .. } if matches!(counter, Counter::Leases { .. }) => "take lease",
        Treatment::Reserve { .. } => "set aside",
        Treatment::FreeLease => "free lease",
        Treatment::Refused(_) => "error",
    }
}

/// Returns a cell of the table for a cost of 3: the effect on a rule, and on a canary if that differs.
fn cell(intent: Intent, kind: RuleKind, modes: Modes) -> String {
    let of = |is_canary| {
        let cost = Cost { credits: 3, is_none: false };
        match treatment(intent, RuleKind { is_canary, ..kind }, cost, modes) {
            // A peek only needs the answer, and canaries do not answer.
            _ if is_canary && intent == Intent::Peek => "–",
            Treatment::Absent(_) => "–",
            Treatment::Refused(_) => "error",
            _ if kind.counter == Counter::None => "answer",
            treatment => word(treatment, kind.counter),
        }
    };
    let (own, canary) = (of(false), of(true));
    if own == canary { own.to_owned() } else { format!("{own}; canary: {canary}") }
}

#[test]
fn rule_of_a_quota_group_is_treated_like_one_that_annotates() {
    let in_group = Column { overrun: Overrun::Count, is_in_quota_group: true, ..rule(Counter::Credits) };
    let annotates = Column { overrun: Overrun::Annotate, ..rule(Counter::Credits) };
    for (_, intent, modes) in INTENTS {
        assert_eq!(cell(intent, in_group, modes), cell(intent, annotates, modes));
    }
}

fn settlement_word(settlement: Settlement, limit: Option<Limit>, is_in_force: bool) -> &'static str {
    let Some(limit) = limit else { return "–" };
    match settlement.ask(&limit, is_in_force, None) {
        None => "–",
        Some(ReservationAsk::Commit { charges: true, .. }) => "commit, or charge",
        Some(ReservationAsk::Commit { charges: false, .. }) => "commit",
        Some(ReservationAsk::Release { .. }) => "free",
        Some(ReservationAsk::Renew { ttl_seconds: Some(7), .. }) => "renew for the rule's TTL",
        Some(ReservationAsk::Renew { ttl_seconds: Some(_), .. }) => "renew for the client's TTL",
        Some(ReservationAsk::Renew { ttl_seconds: None, .. }) => "renew for the TTL it was made for",
        Some(ReservationAsk::Reserve { .. }) => unreachable!(),
    }
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

fn printed() -> String {
    let mut text = row(["intent".to_owned()].into_iter().chain(COLUMNS.map(|(name, _)| name.to_owned())));
    text += &row(std::iter::repeat_n("---".to_owned(), COLUMNS.len() + 1));
    for (name, intent, modes) in INTENTS {
        text += &row([name.to_owned()].into_iter().chain(COLUMNS.map(|(_, kind)| cell(intent, kind, modes))));
    }
    text += "\n";
    let window = Limit::FixedWindow(FixedWindow::new(5, 1_000_000_000).unwrap());
    let log = Limit::SlidingLog(SlidingLog::new(5, 1_000_000_000).unwrap());
    let leases = Limit::Concurrency(Concurrency::new(5, 7).unwrap());
    let columns = [
        ("plain, debt", Some(window), true),
        ("sliding log", Some(log), true),
        ("concurrency", Some(leases), true),
        ("always, never", None, true),
        ("no rule in force", Some(window), false),
        ("no concurrency rule in force", Some(leases), false),
    ];
    text += &row(["settlement".to_owned()].into_iter().chain(columns.iter().map(|(name, ..)| (*name).to_owned())));
    text += &row(std::iter::repeat_n("---".to_owned(), columns.len() + 1));
    for (name, settlement) in [
        ("Commit", Settlement::Commit { cost: 3 }),
        ("Release", Settlement::Release),
        ("Renew", Settlement::Renew { ttl_seconds: Some(3) }),
    ] {
        let cells = columns.iter().map(|(_, limit, is_in_force)| settlement_word(settlement, *limit, *is_in_force));
        text += &row([name.to_owned()].into_iter().chain(cells.map(str::to_owned)));
    }
    text
}

/// DIVVY_TEST_WRITE_DOCS=1 rewrites the page.
#[test]
fn architecture_page_shows_the_table() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md");
    const BEGIN: &str = "<!-- table: begin -->\n";
    const END: &str = "<!-- table: end -->";
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    if std::env::var_os("DIVVY_TEST_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{}{END}{after}", printed())).unwrap();
    } else {
        assert_eq!(table, printed(), "run the test with DIVVY_TEST_WRITE_DOCS=1");
    }
}

#[test]
fn hit_of_cost_0_tests_for_one_credit() {
    let cost = Cost { credits: 0, is_none: true };
    for (_, kind) in COLUMNS {
        let treated = treatment(Intent::Hit, kind, cost, NO_MODES);
        let counts_denials = matches!(kind.overrun, Overrun::Count | Overrun::Annotate);
        let is_expected = match treated {
            Treatment::Ask(Ask::Tally { cost: 0 }) => counts_denials,
            Treatment::Ask(Ask::Look { cost: 1 }) => !counts_denials,
            _ => false,
        };
        assert!(is_expected, "{kind:?}");
    }
}
