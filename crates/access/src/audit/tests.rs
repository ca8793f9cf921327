use std::fs;
use std::path::Path;
use std::pin::pin;

use futures_util::poll;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::audit::Action;
use divvy_core::clock::NANOS_PER_SECOND;

fn in_file(path: &Path, is_required: bool) -> (Arc<AuditLog>, Arc<Metrics>) {
    let metrics = Metrics::new();
    (AuditLog::new(Some(path.to_owned()), is_required, Clock::system(), Arc::clone(&metrics)).unwrap(), metrics)
}

/// An audit log in a file of its own.
struct Fixture {
    log: Arc<AuditLog>,
    metrics: Arc<Metrics>,
    path: PathBuf,
    _dir: TempDir,
}

fn fixture(is_required: bool) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let (log, metrics) = in_file(&path, is_required);
    Fixture { log, metrics, path, _dir: dir }
}

fn user(name: &str) -> Caller {
    Caller::client("resp", Some(([127, 0, 0, 1], 5).into()), Some(name.into()))
}

fn operator() -> Caller {
    user("default")
}

fn stranger() -> Caller {
    Caller::client("resp", Some(([127, 0, 0, 1], 5).into()), None)
}

fn customer() -> Caller {
    user("token:user=ann").as_stranger()
}

fn change() -> Change {
    Change::new(Action::LimitDelete).with("rule", "by-user").with("actor", "ann")
}

/// Returns the number and the status of each line.
fn lines(path: &Path) -> Vec<(u64, String)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let parse = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        (line["change"].as_u64().unwrap(), line["status"].as_str().unwrap().to_owned())
    };
    text.lines().map(parse).collect()
}

fn line(number: u64, status: &str) -> (u64, String) {
    (number, status.to_owned())
}

fn state(metrics: &Metrics) -> (f64, f64) {
    let numbers = metrics.numbers(Vec::new());
    let value = |name: &str| numbers.iter().find(|(found, _)| found == name).unwrap().1;
    (value("divvy_audit_log_failing"), value("divvy_audit_lines_lost_total"))
}

#[tokio::test]
async fn every_change_has_one_outcome_even_if_it_is_dropped() {
    let Fixture { log, metrics, path, _dir } = fixture(false);
    log.begin(operator(), change()).await.unwrap().complete(Some(State::exception(Some(3), None, None, None)), None);
    log.begin(operator(), change()).await.unwrap().refuse("no such rule");
    log.begin(operator(), change()).await.unwrap().fail(None, "the disk is full");
    drop(log.begin(operator(), change()).await.unwrap());
    log.refuse(operator(), change(), "wrong arguments");
    log.finish().await;
    let expected = [line(1, "done"), line(2, "refused"), line(3, "failed"), line(4, "failed"), line(5, "refused")];
    assert_eq!(lines(&path), expected);
    assert_eq!(state(&metrics), (0.0, 0.0));
}

#[tokio::test]
async fn required_log_has_the_attempt_before_the_change_begins() {
    let Fixture { log, path, _dir, .. } = fixture(true);
    let pending = log.begin(operator(), change()).await.unwrap();
    assert_eq!(lines(&path), [line(1, "attempted")]);
    pending.complete(None, None);
    {
        let mut begun = pin!(log.begin(operator(), change()));
        let _ = poll!(begun.as_mut());
        // The caller leaves while the line is being written.
    }
    let other = Arc::clone(&log);
    tokio::task::spawn_blocking(move || {
        other.begin_blocking(Caller::other("file"), change()).unwrap().complete(None, None)
    })
    .await
    .unwrap();
    log.finish().await;
    let expected = [(1, "attempted"), (1, "done"), (2, "attempted"), (2, "failed"), (3, "attempted"), (3, "done")]
        .map(|(n, s)| line(n, s));
    let mut found = lines(&path);
    found.sort();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn failing_log_is_counted_and_refuses_changes_only_if_it_is_required() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let path = missing.join("audit.log");
    let (log, metrics) = in_file(&path, false);
    log.begin(operator(), change()).await.unwrap().complete(None, None);
    log.finish().await;
    assert_eq!(state(&metrics), (1.0, 1.0));

    let (required, of_required) = in_file(&path, true);
    assert_eq!(required.begin(operator(), change()).await.unwrap_err(), Unavailable);
    required.finish().await;
    assert_eq!(state(&of_required), (1.0, 2.0), "the attempt and the outcome are lost");

    fs::create_dir(&missing).unwrap();
    log.begin(operator(), change()).await.unwrap().complete(None, None);
    required.begin(operator(), change()).await.unwrap().complete(None, None);
    for log in [log, required] {
        log.finish().await;
    }
    assert_eq!((state(&metrics), state(&of_required)), ((0.0, 1.0), (0.0, 2.0)));
    let mut found = lines(&path);
    found.sort();
    assert_eq!(found, [line(2, "attempted"), line(2, "done"), line(2, "done")]);
}

#[tokio::test]
async fn refused_attempts_cannot_fill_the_disk() {
    let Fixture { log, metrics, path, _dir } = fixture(false);
    // A flood that takes n seconds may fall into n + 1. The last line stands for the attempts that have none.
    let (clock, started) = (Clock::system(), Clock::system().now());
    let most = |rate: u64| {
        let seconds = (clock.now().as_nanos() - started.as_nanos()) / NANOS_PER_SECOND + 2;
        (seconds * rate) as usize + 1
    };
    let mut before = 0;
    let mut added = || {
        let count = lines(&path).len();
        count - std::mem::replace(&mut before, count)
    };
    (0..500).for_each(|_| {
        log.refuse(stranger(), change(), "NOAUTH");
        log.refuse(customer(), change(), "403");
    });
    log.finish().await;
    let count = added();
    assert!((1..=most(STRANGERS_PER_SECOND)).contains(&count), "{count}");
    for _ in 0..250 {
        log.refuse(user("ann"), change(), "NOPERM");
        log.begin(user("ann"), change()).await.unwrap().refuse("no such rule");
    }
    log.finish().await;
    let count = added();
    assert!((1..=most(USER_PER_SECOND)).contains(&count), "{count}");
    log.refuse(user("bob"), change(), "NOPERM");
    (0..100).for_each(|_| log.begin_unconditionally(user("ann"), change()).complete(None, None));
    (0..100).for_each(|_| log.refuse(Caller::other("file"), change(), "a mistake in the file"));
    log.finish().await;
    assert_eq!(added(), 201, "another user's attempt, and everything that is not one");
    let numbers: Vec<_> = lines(&path).into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "omitted lines leave no gaps");
    assert_eq!(state(&metrics), (0.0, 0.0));
}

#[tokio::test]
async fn omitted_attempts_are_reported_even_if_no_line_follows() {
    let Fixture { log, path, _dir, .. } = fixture(false);
    let found = || {
        let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        fs::read_to_string(&path).unwrap().lines().map(parse).collect::<Vec<_>>()
    };
    // Attempts with a line, and those that a line counts.
    let told = |lines: &[Value]| lines.iter().map(|line| 1 + line["omitted"].as_u64().unwrap_or(0)).sum::<u64>();
    for _ in 0..500 {
        log.refuse(operator(), change(), "NOPERM");
        log.refuse(stranger(), change(), "NOAUTH");
    }
    log.report_omitted(log.clock.now().plus(5_000_000_000));
    log.writer.as_ref().unwrap().flush().await;
    let lines = found();
    assert_eq!(told(&lines), 1_000);
    let last = lines.iter().rev().find(|line| line["user"] == "default").unwrap();
    assert_eq!((&last["status"], &last["request"]["actor"]), (&"refused".into(), &"ann".into()));
    log.report_omitted(log.clock.now().plus(9_000_000_000));
    (0..300).for_each(|_| log.refuse(operator(), change(), "NOPERM"));
    log.finish().await;
    let lines = found();
    assert_eq!(told(&lines), 1_300, "at the shutdown, too");
}

#[tokio::test]
async fn changes_that_must_not_wait_have_their_lines_when_the_log_can_be_written() {
    let Fixture { log, metrics, path, _dir } = fixture(true);
    let hold = log.hold_up();
    log.begin_at_once(Caller::other("file"), change()).complete(None, None);
    assert_eq!(lines(&path), []);
    drop(hold);
    log.finish().await;
    assert_eq!(lines(&path), [line(1, "attempted"), line(1, "done")]);
    assert_eq!(state(&metrics), (0.0, 0.0));
}

#[tokio::test]
async fn required_log_has_the_outcome_of_every_attempt() {
    let Fixture { log, path, _dir, .. } = fixture(true);
    for _ in 0..30 {
        log.begin(operator(), change()).await.unwrap().refuse("no such rule");
    }
    log.finish().await;
    let mut found = lines(&path);
    found.sort();
    let expected: Vec<_> = (1..=30).flat_map(|number| [line(number, "attempted"), line(number, "refused")]).collect();
    assert_eq!(found, expected);
}

#[test]
fn each_user_has_a_throttle_and_their_number_is_bounded() {
    let log = AuditLog::new(None, false, Clock::system(), Metrics::new()).unwrap();
    let refuse = |caller: Caller| log.refuse(caller, change(), "NOPERM");
    [stranger(), customer(), Caller::other("file"), Caller::other("signal"), user("ann")].into_iter().for_each(refuse);
    assert_eq!(log.refusals.lock().len(), 2, "strangers and customers share one, and files have none");
    (0..2 * MAX_THROTTLES).for_each(|number| refuse(user(&number.to_string())));
    let refusals = log.refusals.lock();
    assert!((MAX_THROTTLES..=MAX_THROTTLES + 1).contains(&refusals.len()));
    assert!(refusals.contains_key(&Some("ann".into())) && refusals.contains_key(&Some("".into())));
}
