//! Blocks that rules set.

use std::time::Duration;

use super::*;
use crate::exceptions::ExceptionKind::Block;
use crate::register::owner::ExceptionOwner;
use crate::store::Exception;
use divvy_core::algorithm::OutcomeSource;

const MINUTE: u64 = 60;
pub(crate) const LOGIN: &str = "
[path=/login user=*]; creditLimit = 1; resetSeconds = 31536000; actorField = user; blockAfter = 3
blockWindow = 1m; blockSeconds = 15m; blockMax = 80m; blockForget = 3h; label = login
[default]; creditLimit = 0
";

/// A limiter with these rules, whose blocks are not longer or shorter at random.
fn scene(rules: &str) -> TestLimiter {
    scene_of(limiter_of(rules))
}

fn scene_of(limiter: Limiter) -> TestLimiter {
    let started = Timestamp::from_secs(1_800_000_000).unwrap();
    TestLimiter { limiter: limiter.with_jitter(Jitter::Off), started, seconds: 0 }
}

impl TestLimiter {
    fn wait(&mut self, seconds: u64) {
        self.seconds += seconds;
    }

    /// Applies the request, and counts its denial.
    fn answer(&self, pairs: &str, intent: Intent, cost: Option<u64>) -> Verdict {
        let applied = self.ask(|builder| builder.add(&operation(pairs), intent, cost));
        run(self.limiter.count_denials(false));
        applied.report().verdict(0).unwrap()
    }

    fn hit(&self) -> Verdict {
        self.answer("path=/login user=eve", Intent::Hit, None)
    }

    /// Hits until a block is set, and returns the number of denials before it, and its length in seconds.
    fn blocked(&self) -> (usize, u64) {
        for denials in 0..20 {
            if let Some(ends) = self.block_of("login", "eve").and_then(|block| block.ends) {
                return (denials, ends.since(self.now()) / NANOS_PER_SECOND);
            }
            assert!(!self.hit().allowed);
        }
        panic!("never blocked");
    }

    fn block_of(&self, label: &str, actor: &str) -> Option<Exception> {
        let owner = ExceptionOwner::of_rule(Block, label).to_string();
        self.limiter.exceptions.memory.find(&owner, actor, self.now())
    }
}

#[test]
fn each_block_is_longer_until_the_actor_is_forgiven() {
    let mut scene = scene(LOGIN);
    assert!(scene.hit().allowed);
    for minutes in [15, 30, 60, 80, 80] {
        assert_eq!(scene.blocked(), (3, minutes * MINUTE));
        let during = scene.hit();
        assert_eq!((during.allowed, during.retry_ns), (false, Some(minutes * MINUTE * NANOS_PER_SECOND)));
        scene.wait(minutes * MINUTE - 1);
        assert!(scene.block_of("login", "eve").is_some(), "denials during the block do not count");
        scene.wait(1);
        assert_eq!(scene.block_of("login", "eve"), None);
    }
    scene.wait(3 * 60 * MINUTE - 1);
    assert_eq!(scene.blocked(), (3, 80 * MINUTE), "not forgotten yet");
    scene.wait(80 * MINUTE + 3 * 60 * MINUTE);
    assert_eq!(scene.blocked(), (3, 15 * MINUTE), "forgotten");
}

#[test]
fn only_denials_within_the_window_count() {
    let mut scene = scene(LOGIN);
    assert!(scene.hit().allowed);
    for _ in 0..10 {
        scene.hit();
        scene.wait(30);
    }
    assert_eq!(scene.block_of("login", "eve"), None, "never three within a minute");
    scene.hit();
    scene.wait(29);
    scene.hit();
    assert!(scene.block_of("login", "eve").is_some());
}

#[test]
fn looks_charges_and_the_denials_of_other_actors_do_not_count() {
    let scene = scene(LOGIN);
    scene.hit();
    for _ in 0..5 {
        assert!(!scene.answer("path=/login user=eve", Intent::Peek, None).allowed);
        scene.answer("path=/login user=eve", Intent::Charge, None);
        scene.answer("path=/login user=eve", Intent::Refund, Some(1));
    }
    scene.answer("path=/login user=eve", Intent::Hit, Some(2));
    scene.answer("path=/login user=bob", Intent::Hit, Some(2));
    assert_eq!((scene.block_of("login", "eve"), scene.block_of("login", "bob")), (None, None));
    // A service that asks before each password, and charges wrong ones.
    scene.answer("path=/login user=eve", Intent::Hit, Some(0));
    scene.answer("path=/login user=eve", Intent::Hit, Some(0));
    assert!(scene.block_of("login", "eve").is_some());
}

#[test]
fn repeated_answers_to_one_request_count_once() {
    let scene = scene(LOGIN);
    scene.hit();
    for _ in 0..5 {
        scene.ask(|builder| builder.add_idempotent(&operation("path=/login user=eve"), Intent::Hit, None, b"one"));
        run(scene.limiter.count_denials(false));
    }
    assert_eq!(scene.block_of("login", "eve"), None);
}

#[test]
fn denials_are_noted_by_what_denied() {
    let scene = scene(LOGIN);
    use OutcomeSource::{DenialCache, FailurePolicy, Store};
    for (source, noted, cached) in [(Store, 1, 0), (DenialCache, 0, 1), (FailurePolicy, 0, 0)] {
        let mut plan = scene.plan(|builder| builder.add(&operation("path=/login user=eve"), Intent::Hit, None));
        plan.batch.outcomes = vec![Ok(Outcome { source, ..Outcome::default() })];
        plan.report().note_denials(&scene.limiter.has_denials, scene.limiter.metrics());
        let active = scene.limiter.active_rules().unwrap();
        let penalty = active.penalties[0].as_ref().unwrap();
        let found = [false, true].map(|are_cached| penalty.notes(are_cached).lock().take().len());
        assert_eq!(found, [noted, cached], "{source:?}");
    }
}

#[test]
fn block_by_an_operator_stays_and_a_removed_block_is_forgiven() {
    let mut scene = scene(LOGIN);
    scene.hit();
    scene.hit();
    scene.hit();
    // Its denial waits to be counted.
    let denied = scene.ask(|builder| builder.add(&operation("path=/login user=eve"), Intent::Hit, None));
    assert!(!denied.report().verdict(0).unwrap().allowed);
    set(&scene.limiter, Block, "login", "eve");
    run(scene.limiter.count_denials(false));
    let block = scene.block_of("login", "eve").unwrap();
    assert_eq!((block.ends, block.repetition()), (None, None), "the operator's block has no end");
    remove(&scene.limiter, Block, "login", "eve");
    assert_eq!(scene.blocked(), (3, 15 * MINUTE));
    scene.wait(15 * MINUTE);
    // It is remembered.
    remove(&scene.limiter, Block, "login", "eve");
    assert_eq!(scene.blocked(), (3, 15 * MINUTE));
}

#[test]
fn in_a_stack_only_the_rule_that_denies_blocks() {
    let scene = scene(
        "
[path=* user=*]; creditLimit = 1; resetSeconds = 31536000; actorField = user; blockAfter = 2; blockSeconds = 60
matchPolicy = and; label = narrow
[path=*]; creditLimit = 1000; resetSeconds = 31536000; actorField = path; blockAfter = 2; blockSeconds = 60
label = wide
[default]; creditLimit = 0
",
    );
    for _ in 0..3 {
        scene.answer("path=/ user=eve", Intent::Hit, None);
    }
    assert!(scene.block_of("narrow", "eve").is_some());
    assert_eq!(scene.block_of("wide", "/"), None);
}

/// Otherwise a blocked client could get others blocked, by hits that name them.
#[test]
fn denials_of_a_request_that_a_block_denies_do_not_count() {
    let rules = LOGIN.replace("label = login", "matchPolicy = and\nlabel = login").replace(
        "[default]",
        "[path=/login ip=*]\ncreditLimit = 100\nper = 1h\nactorField = ip\nlabel = address\n\n[default]",
    );
    let scene = scene(&rules);
    let hit = |ip: &str| scene.answer(&format!("path=/login user=eve ip={ip}"), Intent::Hit, None);
    assert!(hit("192.0.2.1").allowed);
    set(&scene.limiter, Block, "address", "192.0.2.6");
    for _ in 0..5 {
        assert!(!hit("192.0.2.6").allowed);
    }
    assert_eq!(scene.block_of("login", "eve"), None);
    for _ in 0..3 {
        hit("192.0.2.1");
    }
    assert!(scene.block_of("login", "eve").is_some());
}

#[test]
fn rules_leave_a_tenth_of_the_blocks_to_operators() {
    let mut scene = scene_of(limiter_of(LOGIN).with_max_overrides(10));
    let be_blocked = |scene: &TestLimiter, user: usize| {
        for _ in 0..4 {
            scene.answer(&format!("path=/login user={user}"), Intent::Hit, None);
        }
        scene.block_of("login", &user.to_string()).is_some()
    };
    let blocked: Vec<_> = (0..12).filter(|user| be_blocked(&scene, *user)).collect();
    assert_eq!(blocked, (0..9).collect::<Vec<_>>());
    set(&scene.limiter, Block, "login", "eve");
    let numbers = scene.limiter.metrics().numbers(scene.limiter.store_metrics());
    let number = |name: &str| numbers.iter().find(|(known, _)| known == name).map(|(_, number)| *number);
    let numbers = ["divvy_rule_blocks_total", "divvy_rule_blocks_failed_total"].map(number);
    assert_eq!(numbers, [Some(9.0), Some(3.0)]);
    // Blocks that have ended, and are only remembered, give way to others.
    scene.wait(15 * MINUTE);
    assert!(be_blocked(&scene, 20));
}

#[test]
fn actor_with_a_long_name_is_not_blocked() {
    let scene = scene(LOGIN);
    let be_denied = |actor: &str| {
        for _ in 0..5 {
            scene.answer(&format!("path=/login user={actor}"), Intent::Hit, None);
        }
        scene.block_of("login", actor).is_some()
    };
    assert!(be_denied(&"a".repeat(256)) && !be_denied(&"a".repeat(257)));
}

#[test]
fn denial_that_the_store_cannot_count_is_lost_and_counted() {
    let store = MemoryStore::new(Bounds { max_counters: 1, ..Bounds::default() });
    let scene = scene_of(limiter_on(Backend::Memory(store), parse_rules(LOGIN)));
    assert!(scene.hit().allowed);
    for _ in 0..5 {
        assert!(!scene.hit().allowed);
    }
    assert_eq!((scene.limiter.metrics().rule_blocks.lost_denials.get(), scene.block_of("login", "eve")), (5, None));
}

#[test]
fn denials_beyond_the_room_for_notes_are_lost_and_counted() {
    let scene = scene(LOGIN);
    let hits = |from: u32, to: u32| {
        scene.ask(|builder| {
            for user in from..to {
                let hit = operation(&format!("path=/login user={user}"));
                (0..2).for_each(|_| builder.add(&hit, Intent::Hit, None));
            }
        })
    };
    hits(0, 10_500);
    assert_eq!(scene.limiter.metrics().rule_blocks.lost_denials.get(), 500);
    run(scene.limiter.count_denials(false));
    hits(0, 9_000);
    assert_eq!(scene.limiter.metrics().rule_blocks.lost_denials.get(), 500);
}

#[test]
fn block_keeps_its_length_when_the_clock_is_set_back() {
    const BACK: u64 = 3_600 * NANOS_PER_SECOND;
    let mut scene = scene(LOGIN);
    assert!(scene.hit().allowed);
    assert_eq!(scene.blocked(), (3, 15 * MINUTE));
    let of = ExceptionTarget { kind: Block, rule: "login", actor: "mallory" };
    let terms = ExceptionTerms { lasts: Some(Duration::from_secs(60)), ..ExceptionTerms::default() };
    run(scene.limiter.set_exception(of, terms, &Scope::EVERYTHING)).unwrap();
    let by_hand = || scene.limiter.exceptions.memory.find("block:login", "mallory", Timestamp::EPOCH).unwrap();
    let until = by_hand();
    run(scene.limiter.exceptions.set_back(BACK, &scene.limiter.store, Timestamp::EPOCH)).unwrap();
    assert_eq!(by_hand(), until, "an operator's block ends at its time");
    scene.started = scene.started.minus(BACK);
    assert_eq!(scene.blocked(), (0, 15 * MINUTE));
    scene.wait(15 * MINUTE);
    assert_eq!(scene.block_of("login", "eve"), None);
}
