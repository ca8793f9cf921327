//! Blocks that rules set.

use std::time::Duration;

use super::*;
use crate::exceptions::ExceptionKind::{Allow, Block};
use crate::register::owner::ExceptionOwner;
use crate::store::Exception;
use divvy_core::algorithm::OutcomeSource;

const MINUTE: u64 = 60;
const LOGIN: &str = "
[path=/login user=*]; creditLimit = 1; resetSeconds = 31536000; actorField = user; blockAfter = 3
blockWindow = 1m; blockSeconds = 15m; blockMax = 80m; blockForget = 3h; label = login
[default]; creditLimit = 0
";

/// Limiter with these rules, and a time that only the test moves.
struct Scene {
    limiter: Limiter,
    now: Timestamp,
}

impl Scene {
    fn new(rules: &str) -> Self {
        let limiter = limiter_of(rules).with_jitter(Jitter::Off);
        Self { limiter, now: Timestamp::from_secs(1_800_000_000).unwrap() }
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now.plus(seconds * NANOS_PER_SECOND);
    }

    /// Applies the request, and counts its denial.
    fn ask(&self, pairs: &str, intent: Intent, cost: Option<u64>) -> Verdict {
        let mut builder = PlanBuilder::default();
        self.limiter.begin_at(&mut builder, self.now);
        builder.add(&operation(pairs), intent, cost);
        let applied = run(self.limiter.apply(builder.build()));
        run(self.limiter.count_denials());
        applied.report().verdict(0).unwrap()
    }

    fn hit(&self) -> Verdict {
        self.ask("path=/login user=eve", Intent::Hit, None)
    }

    /// Hits until a block is set, and returns the number of denials before it, and its length in seconds.
    fn blocked(&self) -> (usize, u64) {
        for denials in 0..20 {
            if let Some(ends) = self.block_of("login", "eve").and_then(|block| block.ends) {
                return (denials, ends.since(self.now) / NANOS_PER_SECOND);
            }
            assert!(!self.hit().allowed);
        }
        panic!("never blocked");
    }

    fn block_of(&self, label: &str, actor: &str) -> Option<Exception> {
        let owner = ExceptionOwner::of_rule(Block, label).to_string();
        self.limiter.exceptions.memory.find(&owner, actor, self.now)
    }

    fn set(&self, kind: ExceptionKind) {
        let of = ExceptionTarget { kind, rule: "login", actor: "eve" };
        run(self.limiter.set_exception(of, ExceptionTerms::default(), &Scope::EVERYTHING)).unwrap();
    }
}

#[test]
fn each_block_is_longer_until_the_actor_is_forgiven() {
    let mut scene = Scene::new(LOGIN);
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
    let mut scene = Scene::new(LOGIN);
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
fn block_says_why() {
    let scene = Scene::new(LOGIN);
    scene.hit();
    scene.blocked();
    let reason = scene.block_of("login", "eve").unwrap().reason().cloned().unwrap();
    assert_eq!(&*reason, "3 denials in 60 s, block 1");
}

#[test]
fn looks_charges_and_the_denials_of_other_actors_do_not_count() {
    let scene = Scene::new(LOGIN);
    scene.hit();
    for _ in 0..5 {
        assert!(!scene.ask("path=/login user=eve", Intent::Peek, None).allowed);
        scene.ask("path=/login user=eve", Intent::Charge, None);
        scene.ask("path=/login user=eve", Intent::Refund, Some(1));
    }
    scene.ask("path=/login user=eve", Intent::Hit, Some(2));
    scene.ask("path=/login user=bob", Intent::Hit, Some(2));
    assert_eq!((scene.block_of("login", "eve"), scene.block_of("login", "bob")), (None, None));
    // A service that asks before each password, and charges wrong ones.
    scene.ask("path=/login user=eve", Intent::Hit, Some(0));
    scene.ask("path=/login user=eve", Intent::Hit, Some(0));
    assert!(scene.block_of("login", "eve").is_some());
}

#[test]
fn repeated_answers_to_one_request_count_once() {
    let scene = Scene::new(LOGIN);
    scene.hit();
    for _ in 0..5 {
        let mut builder = PlanBuilder::default();
        scene.limiter.begin_at(&mut builder, scene.now);
        builder.add_idempotent(&operation("path=/login user=eve"), Intent::Hit, None, b"one");
        run(scene.limiter.apply(builder.build()));
        run(scene.limiter.count_denials());
    }
    assert_eq!(scene.block_of("login", "eve"), None);
}

#[test]
fn denials_are_noted_by_what_denied() {
    let scene = Scene::new(LOGIN);
    use OutcomeSource::{DenialCache, FailurePolicy, Store};
    for (source, noted, cached) in [(Store, 1, 0), (DenialCache, 0, 1), (FailurePolicy, 0, 0)] {
        let mut builder = PlanBuilder::default();
        scene.limiter.begin_at(&mut builder, scene.now);
        builder.add(&operation("path=/login user=eve"), Intent::Hit, None);
        let outcomes = vec![Ok(Outcome { source, ..Outcome::default() })];
        Applied { plan: builder.build(), outcomes }
            .report()
            .note_denials(&scene.limiter.observers.denials, scene.limiter.metrics());
        let denials = &scene.limiter.observers.denials;
        assert_eq!(
            (denials.by_store.lock().take(9).len(), denials.by_cache.lock().take(9).len()),
            (noted, cached),
            "{source:?}"
        );
    }
}

#[test]
fn block_by_an_operator_stays_and_a_removed_block_is_forgiven() {
    let mut scene = Scene::new(LOGIN);
    scene.hit();
    scene.hit();
    scene.hit();
    let denials = apply_without_counting(&scene);
    scene.set(Block);
    run(scene.limiter.count_denials());
    assert_eq!(denials, 1);
    let block = scene.block_of("login", "eve").unwrap();
    assert_eq!((block.ends, block.repetition()), (None, None), "the operator's block has no end");
    let of = || ExceptionTarget { kind: Block, rule: "login", actor: "eve" };
    assert!(run(scene.limiter.remove_exception(of(), &Scope::EVERYTHING)).unwrap());
    assert_eq!(scene.blocked(), (3, 15 * MINUTE));
    scene.wait(15 * MINUTE);
    assert!(run(scene.limiter.remove_exception(of(), &Scope::EVERYTHING)).unwrap(), "it is remembered");
    assert_eq!(scene.blocked(), (3, 15 * MINUTE));
}

/// Denies a hit, whose denial waits to be counted.
fn apply_without_counting(scene: &Scene) -> usize {
    let mut builder = PlanBuilder::default();
    scene.limiter.begin_at(&mut builder, scene.now);
    builder.add(&operation("path=/login user=eve"), Intent::Hit, None);
    usize::from(!run(scene.limiter.apply(builder.build())).report().verdict(0).unwrap().allowed)
}

#[test]
fn allowed_actor_is_never_blocked_by_a_rule() {
    let scene = Scene::new(LOGIN);
    scene.set(Allow);
    for _ in 0..20 {
        assert!(scene.hit().allowed);
    }
    assert_eq!(scene.block_of("login", "eve"), None);
}

#[test]
fn in_a_stack_only_the_rule_that_denies_blocks() {
    let scene = Scene::new(
        "
[path=* user=*]; creditLimit = 1; resetSeconds = 31536000; actorField = user; blockAfter = 2; blockSeconds = 60
matchPolicy = and; label = narrow
[path=*]; creditLimit = 1000; resetSeconds = 31536000; actorField = path; blockAfter = 2; blockSeconds = 60
label = wide
[default]; creditLimit = 0
",
    );
    for _ in 0..3 {
        scene.ask("path=/ user=eve", Intent::Hit, None);
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
    let scene = Scene::new(&rules);
    let hit = |ip: &str| scene.ask(&format!("path=/login user=eve ip={ip}"), Intent::Hit, None);
    assert!(hit("192.0.2.1").allowed);
    let of = ExceptionTarget { kind: Block, rule: "address", actor: "192.0.2.6" };
    run(scene.limiter.set_exception(of, ExceptionTerms::default(), &Scope::EVERYTHING)).unwrap();
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
    let limiter = limiter_of(LOGIN).with_jitter(Jitter::Off).with_max_overrides(10);
    let mut scene = Scene { limiter, ..Scene::new(LOGIN) };
    let be_blocked = |scene: &Scene, user: usize| {
        for _ in 0..4 {
            scene.ask(&format!("path=/login user={user}"), Intent::Hit, None);
        }
        scene.block_of("login", &user.to_string()).is_some()
    };
    let blocked: Vec<_> = (0..12).filter(|user| be_blocked(&scene, *user)).collect();
    assert_eq!(blocked, (0..9).collect::<Vec<_>>());
    scene.set(Block);
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
    let scene = Scene::new(LOGIN);
    let be_denied = |actor: &str| {
        for _ in 0..5 {
            scene.ask(&format!("path=/login user={actor}"), Intent::Hit, None);
        }
        scene.block_of("login", actor).is_some()
    };
    assert!(be_denied(&"a".repeat(256)) && !be_denied(&"a".repeat(257)));
}

#[test]
fn denial_that_the_store_cannot_count_is_lost_and_counted() {
    let store = MemoryStore::new(Bounds { max_counters: 1, ..Bounds::default() });
    let limiter = limiter_on(Backend::Memory(store), parse_rules(LOGIN));
    let scene = Scene { limiter, ..Scene::new(LOGIN) };
    assert!(scene.hit().allowed);
    for _ in 0..5 {
        assert!(!scene.hit().allowed);
    }
    assert_eq!((scene.limiter.metrics().rule_blocks.lost_denials.get(), scene.block_of("login", "eve")), (5, None));
}

#[test]
fn denials_beyond_the_room_for_notes_are_lost_and_counted() {
    let scene = Scene::new(LOGIN);
    let hits = |from: u32, to: u32| {
        let mut builder = PlanBuilder::default();
        scene.limiter.begin_at(&mut builder, scene.now);
        for user in from..to {
            for _ in 0..2 {
                builder.add(&operation(&format!("path=/login user={user}")), Intent::Hit, None);
            }
        }
        run(scene.limiter.apply(builder.build()))
    };
    hits(0, 10_500);
    assert_eq!(scene.limiter.metrics().rule_blocks.lost_denials.get(), 500);
    run(scene.limiter.count_denials());
    hits(0, 9_000);
    assert_eq!(scene.limiter.metrics().rule_blocks.lost_denials.get(), 500);
}

#[test]
fn block_keeps_its_length_when_the_clock_is_set_back() {
    const BACK: u64 = 3_600 * NANOS_PER_SECOND;
    let mut scene = Scene::new(LOGIN);
    assert!(scene.hit().allowed);
    assert_eq!(scene.blocked(), (3, 15 * MINUTE));
    let of = ExceptionTarget { kind: Block, rule: "login", actor: "mallory" };
    let terms = ExceptionTerms { lasts: Some(Duration::from_secs(60)), ..ExceptionTerms::default() };
    run(scene.limiter.set_exception(of, terms, &Scope::EVERYTHING)).unwrap();
    let by_hand = || scene.limiter.exceptions.memory.find("block:login", "mallory", Timestamp::EPOCH).unwrap();
    let until = by_hand();
    run(scene.limiter.exceptions.set_back(BACK, &scene.limiter.store, Timestamp::EPOCH)).unwrap();
    assert_eq!(by_hand(), until, "an operator's block ends at its time");
    scene.now = scene.now.minus(BACK);
    assert_eq!(scene.blocked(), (0, 15 * MINUTE));
    scene.wait(15 * MINUTE);
    assert_eq!(scene.block_of("login", "eve"), None);
}
