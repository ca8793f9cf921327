use proptest::prelude::*;

use super::*;
use crate::StoreError;
use crate::contract::SHOW;
use crate::memory::MemoryStore;
use crate::testing::{ScriptedStore, TAKE, wait, window};
use divvy_core::algorithm::Kind;

const CREDITS: u64 = 12_000;

/// Servers with a share each, and their common store. Their clocks agree, and begin at 0.
struct World<S> {
    servers: Vec<(Shares, DenialCache)>,
    store: S,
    now: u64,
}

fn shared(most: u32) -> Action {
    Action::Ask(Ask::Share { cost: 1, extra: most, parts: 0 })
}

impl<S: Store + Default> World<S> {
    fn new(servers: usize) -> Self {
        let server = || (Shares::new(Clock::system()), DenialCache::new(100));
        Self { servers: (0..servers).map(|_| server()).collect(), store: S::default(), now: NANOS_PER_SECOND }
    }

    fn outcomes(&self, server: usize, actions: &[(Limit, Action)]) -> Vec<Result<Outcome, StoreError>> {
        let mut batch = Batch::default();
        batch.begin(Timestamp::from_nanos(self.now));
        for (limit, action) in actions {
            batch.push(*limit, *action, batch.now(), |key| key.push(b'a'));
        }
        let (shares, denials) = &self.servers[server];
        wait(shares.apply_at(&mut batch, denials, &self.store, self.now));
        batch.outcomes
    }

    fn hit(&self, server: usize, limit: Limit) -> Outcome {
        self.outcomes(server, &[(limit, shared(u32::MAX))]).remove(0).unwrap()
    }

    fn pass(&mut self, nanos: u64) {
        self.now += nanos;
        for (shares, denials) in &self.servers {
            wait(shares.tick_at((denials, &self.store), self.now, Timestamp::from_nanos(self.now)));
        }
    }

    fn held(&self, server: usize) -> u64 {
        self.servers[server].0.shard(b"a").lock().get(&b"a"[..]).map_or(0, |counter| counter.share.credits)
    }

    /// Returns the credits that the store has left.
    fn left(&self, limit: Limit) -> u64 {
        self.outcomes(0, &[(limit, SHOW)])[0].as_ref().unwrap().left
    }
}

/// Each server is hit 50 times in each tick.
fn hit_for<S: Store + Default>(world: &mut World<S>, ticks: usize, limit: Limit) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for _ in 0..ticks {
        for _ in 0..50 {
            outcomes.extend((0..world.servers.len()).map(|server| world.hit(server, limit)));
        }
        world.pass(TICK_NS);
    }
    outcomes
}

#[test]
fn hot_counter_is_granted_from_shares_and_never_exceeds_its_limit() {
    for limit in [window(CREDITS, 60), bucket(Kind::LeakyBucket), bucket(Kind::TokenBucket)] {
        let mut world = World::<ScriptedStore>::new(3);
        // The bucket is half empty: a full one gives no shares.
        let drained = Action::Ask(Ask::Take { cost: CREDITS / 2 });
        world.outcomes(0, &[(limit, drained)]);
        let before = world.store.asked.load(Relaxed);
        let outcomes = hit_for(&mut world, 100, limit);
        let (granted, asked) =
            (outcomes.iter().filter(|o| o.allowed).count(), world.store.asked.load(Relaxed) - before);
        let most = CREDITS / 2 + if matches!(limit, Limit::FixedWindow(_)) { 0 } else { 10 * CREDITS / 60 };
        assert!(granted as u64 <= most, "{limit:?}: {granted}");
        assert!(granted as u64 >= most - most / 20, "at most 5 % are stranded: {granted} of {most}");
        // Denials are the store's, or the denial cache's.
        let calls = asked - outcomes.iter().filter(|o| !o.allowed && o.source == OutcomeSource::Store).count() as u64;
        // A bucket that is used up gets a few credits at a time.
        let saved = if matches!(limit, Limit::FixedWindow(_)) { 20 } else { 10 };
        assert!(calls * saved <= granted as u64, "{limit:?}: {calls} calls for {granted} grants");
    }
}

fn bucket(kind: Kind) -> Limit {
    Limit::new(kind, CREDITS, CREDITS / 60, NANOS_PER_SECOND).unwrap()
}

#[test]
fn share_ends_with_its_window_although_the_answer_came_late() {
    let (mut world, limit) = (World::<MemoryStore>::new(1), window(CREDITS, 1));
    hit_for(&mut world, 2, limit);
    assert!(world.held(0) > 0);
    let begun = NANOS_PER_SECOND;
    world.now = begun + usable_ns(NANOS_PER_SECOND) - 1;
    assert_eq!(world.hit(0, limit).source, OutcomeSource::Share);
    world.now += 1;
    assert_eq!(world.hit(0, limit).source, OutcomeSource::Store);
}

#[test]
fn unused_credits_come_back_after_a_second_and_at_the_end() {
    let limit = window(CREDITS, 60);
    let spent = |world: &World<MemoryStore>| CREDITS - world.left(limit);
    let mut world = World::<MemoryStore>::new(2);
    let granted = hit_for(&mut world, 3, limit).len() as u64;
    assert!(world.held(0) > 0 && world.held(1) > 0 && spent(&world) == granted + world.held(0) + world.held(1));
    for _ in 0..=TICKS {
        world.pass(TICK_NS);
    }
    assert_eq!((world.held(0), spent(&world)), (0, granted));
    let granted = granted + hit_for(&mut world, 3, limit).len() as u64;
    for (shares, denials) in &world.servers {
        wait(shares.return_all((denials, &world.store), Timestamp::from_nanos(world.now)));
    }
    assert_eq!(spent(&world), granted);
}

#[test]
fn reset_and_another_limit_end_a_share() {
    let (mut world, limit) = (World::<MemoryStore>::new(1), window(CREDITS, 60));
    hit_for(&mut world, 2, limit);
    world.outcomes(0, &[(limit, Action::Forget)]);
    assert_eq!((world.held(0), world.left(limit)), (0, CREDITS));
    hit_for(&mut world, 2, limit);
    assert!(world.held(0) > 0);
    assert_eq!(world.hit(0, window(CREDITS + 1, 60)).source, OutcomeSource::Store);
    assert_eq!(world.held(0), 0);
}

#[test]
fn answer_that_a_reset_or_another_limit_overtakes_gives_no_share() {
    let limit = window(CREDITS, 60);
    for action in [(limit, Action::Forget), (window(CREDITS + 1, 60), shared(9))] {
        let mut world = World::<MemoryStore>::new(1);
        for _ in 0..2 {
            world.hit(0, limit);
        }
        let (shares, _) = &world.servers[0];
        let now = Timestamp::from_nanos(world.now);
        let mut batch = crate::testing::batch(now, &[("a", limit, shared(9))]);
        let asking = shares.answer_known(&mut batch, world.now).asking;
        wait(world.store.apply(&mut batch));
        world.outcomes(0, &[action]);
        shares.learn(&mut batch, &asking[0], &[], world.now);
        assert!(batch.outcomes[0].as_ref().unwrap().allowed);
        drop(asking);
        assert_eq!((world.held(0), shares.lost.load(Relaxed) > 0), (0, true));
        hit_for(&mut world, 2, limit);
        assert!(world.held(0) > 0);
    }
}

#[test]
fn store_out_of_reach_leaves_shares_usable_and_other_hits_fail() {
    let (mut world, limit) = (World::<ScriptedStore>::new(1), window(CREDITS, 60));
    hit_for(&mut world, 2, limit);
    world.store.is_down.store(true, Relaxed);
    for _ in 0..world.held(0) {
        assert!(world.hit(0, limit).allowed);
    }
    let lost = world.servers[0].0.lost.load(Relaxed);
    for _ in 0..3 {
        assert!(world.outcomes(0, &[(limit, shared(9))])[0].is_err(), "and the ask does not stay open");
    }
    assert_eq!(world.servers[0].0.lost.load(Relaxed), lost + 9, "only the first hit asks for a share");
    world.store.is_down.store(false, Relaxed);
    for _ in 0..2 {
        assert_eq!(world.held(0), 0);
        world.hit(0, limit);
    }
    assert!(world.held(0) > 0);
}

#[test]
fn denied_hits_do_not_enlarge_a_share() {
    let (mut world, limit) = (World::<MemoryStore>::new(1), window(CREDITS, 60));
    for _ in 0..20 {
        let dear = Action::Ask(Ask::Share { cost: CREDITS + 1, extra: u32::MAX, parts: 0 });
        assert!(!world.outcomes(0, &[(limit, dear)])[0].as_ref().unwrap().allowed);
    }
    for _ in 0..5 {
        world.hit(0, limit);
    }
    assert!((1..=40).contains(&world.held(0)), "{} credits are held", world.held(0));
    world.pass(TICK_NS);
}

#[test]
fn group_and_a_seldom_hit_counter_take_no_share() {
    let limit = window(CREDITS, 60);
    let mut world = World::<MemoryStore>::new(1);
    for _ in 0..50 {
        world.hit(0, limit);
        for _ in 0..TICKS {
            world.pass(TICK_NS);
        }
    }
    assert_eq!((world.held(0), world.left(limit)), (0, CREDITS - 50));
    let mut batch = Batch::default();
    batch.begin(Timestamp::from_nanos(world.now));
    for key in [b'a', b'b'] {
        batch.push(limit, shared(9), batch.now(), |out| out.push(key));
    }
    batch.group(0);
    let (shares, denials) = &world.servers[0];
    wait(shares.apply_at(&mut batch, denials, &world.store, world.now));
    assert!(batch.outcomes.iter().all(|outcome| outcome.as_ref().is_ok_and(|outcome| outcome.allowed)));
    assert_eq!(world.left(limit), CREDITS - 51);
}

#[test]
fn known_counters_are_bounded() {
    let world = World::<MemoryStore>::new(1);
    let mut batch = Batch::default();
    batch.begin(Timestamp::from_nanos(world.now));
    for number in 0..2 * MAX_COUNTERS as u64 {
        batch.push(window(9, 60), shared(9), batch.now(), |out| out.extend(number.to_le_bytes()));
    }
    let (shares, denials) = &world.servers[0];
    wait(shares.apply_at(&mut batch, denials, &world.store, world.now));
    let known = || shares.shards.iter().map(|shard| shard.lock().len()).sum::<usize>();
    assert_eq!(known(), MAX_COUNTERS);
    wait(shares.return_all((denials, &world.store), batch.now()));
    let long = "a".repeat(MAX_KEY + 1);
    let mut batch = crate::testing::batch(batch.now(), &[(&long, window(9, 60), shared(9))]);
    wait(shares.apply_at(&mut batch, denials, &world.store, world.now));
    assert_eq!(known(), 0);
}

#[test]
fn dropped_ask_lets_the_next_hit_ask() {
    let (world, limit) = (World::<MemoryStore>::new(1), window(CREDITS, 60));
    let (shares, _) = &world.servers[0];
    let mut batch = crate::testing::batch(Timestamp::from_nanos(world.now), &[("a", limit, shared(9))]);
    for _ in 0..2 {
        world.hit(0, limit);
    }
    let asking = shares.answer_known(&mut batch, world.now).asking;
    assert!(asking.len() == 1 && shares.shard(b"a").lock()[&b"a"[..]].is_asking);
    drop(asking);
    assert!(!shares.shard(b"a").lock()[&b"a"[..]].is_asking);
    assert!(!concerns_shares(&Entry::new(0..0, limit, TAKE, Timestamp::EPOCH)));
}

/// An event in a world of three servers. Each server has a clock of its own.
#[derive(Debug, Clone)]
enum Event {
    Hits {
        server: usize,
        hits: u8,
        cost: u64,
    },
    /// The store does what the server asks, and the answer is lost.
    LostAnswer {
        server: usize,
    },
    /// The server cannot reach the store for these hits.
    Partition {
        server: usize,
        hits: u8,
    },
    Kill {
        server: usize,
    },
    Stop {
        server: usize,
    },
    /// The task that gives credits back may be late.
    Pass {
        millis: u64,
        ticks: bool,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let server = || 0..3usize;
    let event = prop_oneof![
        8 => (server(), prop_oneof![1..9u8, 30..60u8], 1..4u64).prop_map(|(server, hits, cost)| Event::Hits { server, hits, cost }),
        1 => server().prop_map(|server| Event::LostAnswer { server }),
        1 => (server(), 1..30u8).prop_map(|(server, hits)| Event::Partition { server, hits }),
        1 => server().prop_map(|server| Event::Kill { server }),
        1 => server().prop_map(|server| Event::Stop { server }),
        8 => (prop_oneof![3 => 1..100u64, 2 => 100..1_500u64], prop::bool::weighted(0.4))
            .prop_map(|(millis, ticks)| Event::Pass { millis, ticks }),
    ];
    prop::collection::vec(event, 10..120)
}

/// Runs the events on the limit. Returns the credits and the time of all grants, by the store's clock. The clocks of the
/// servers are fast or slow by up to 0.05 %, and were started at other times.
fn simulate(limit: Limit, events: Vec<Event>, drifts: [i64; 3]) -> Vec<(u64, u64)> {
    let mut world = World::<ScriptedStore>::new(3);
    let clock = |now: u64, server: usize| {
        let drift = i128::from(now) * i128::from(drifts[server]) / 10_000;
        (i128::from(now) + drift) as u64 + server as u64 * 1_000_000_007
    };
    let mut granted = Vec::new();
    for event in events {
        let is_lost = matches!(event, Event::LostAnswer { .. });
        world.store.is_down.store(matches!(event, Event::Partition { .. }), Relaxed);
        match event {
            Event::Hits { server, hits, cost } => {
                hit(&world, server, (hits, cost), limit, clock, &mut granted, is_lost)
            }
            Event::LostAnswer { server } => hit(&world, server, (1, 1), limit, clock, &mut granted, is_lost),
            Event::Partition { server, hits } => hit(&world, server, (hits, 1), limit, clock, &mut granted, is_lost),
            Event::Kill { server } => world.servers[server].0 = Shares::new(Clock::system()),
            Event::Stop { server } => {
                let wall = Timestamp::from_nanos(world.now);
                let (shares, denials) = &world.servers[server];
                wait(shares.return_all((denials, &world.store), wall));
            }
            Event::Pass { millis, ticks } => {
                world.now += millis * NANOS_PER_MILLI;
                let wall = Timestamp::from_nanos(world.now);
                for (server, (shares, denials)) in world.servers.iter().enumerate().filter(|_| ticks) {
                    wait(shares.tick_at((denials, &world.store), clock(world.now, server), wall));
                }
            }
        }
    }
    granted
}

fn hit(
    world: &World<ScriptedStore>,
    server: usize,
    (hits, cost): (u8, u64),
    limit: Limit,
    clock: impl Fn(u64, usize) -> u64,
    granted: &mut Vec<(u64, u64)>,
    is_lost: bool,
) {
    let (shares, denials) = &world.servers[server];
    for _ in 0..hits {
        let mut batch = Batch::default();
        batch.begin(Timestamp::from_nanos(world.now));
        let action = Action::Ask(Ask::Share { cost, extra: u32::MAX, parts: 0 });
        batch.push(limit, action, batch.now(), |key| key.push(b'a'));
        let now = clock(world.now, server);
        if is_lost {
            drop(shares.answer_known(&mut batch, now));
            wait(world.store.apply(&mut batch));
            // It may have begun a window, and granted nothing.
            granted.push((world.now, 0));
            continue;
        }
        wait(shares.apply_at(&mut batch, denials, &world.store, now));
        if batch.outcomes[0].as_ref().is_ok_and(|outcome| outcome.allowed) {
            granted.push((world.now, cost));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn no_kill_partition_or_skew_exceeds_a_limit(
        credits in prop_oneof![1..400u64, 400..4_000u64], seconds in 1..4u64, kind in 0..3usize, events in events(), drifts in prop::array::uniform3(-5..=5i64),
    ) {
        let kind = [Kind::FixedWindow, Kind::LeakyBucket, Kind::TokenBucket][kind];
        let limit = Limit::new(kind, credits, credits, seconds * NANOS_PER_SECOND).unwrap();
        let granted = simulate(limit, events, drifts);
        let in_span = |first: usize, span: u64| {
            let (from, _) = granted[first];
            granted[first..].iter().take_while(|(at, _)| at - from < span).map(|(_, cost)| cost).sum::<u64>()
        };
        let window_ns = seconds * NANOS_PER_SECOND;
        for first in 0..granted.len() {
            // A window may begin at any time, so a span of its length may touch two.
            prop_assert!(in_span(first, window_ns) <= 2 * credits);
        }
        if kind == Kind::FixedWindow {
            // Windows begin with the first hit after the end of the one before.
            let (mut ends, mut used) = (0, 0);
            for (at, cost) in granted {
                if at >= ends {
                    (ends, used) = (at + window_ns, 0);
                }
                used += cost;
                prop_assert!(used <= credits, "{used} of {credits}");
            }
        }
    }
}

/// `DIVVY_TEST_SHARE_WORLDS` sets the number of simulated worlds.
fn cases() -> u32 {
    std::env::var("DIVVY_TEST_SHARE_WORLDS").map_or(500, |text| text.parse().unwrap())
}
