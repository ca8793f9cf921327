//! Tables with streams of events: recall, memory, windows.

use proptest::prelude::*;

use super::*;

const DENIED_MINUTE: (Order, Window) = (Order::Denied, Window::Minute);
const TAKEN_HOUR: (Order, Window) = (Order::Taken, Window::Hour);

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * NANOS_PER_SECOND)
}

fn event(order: Order, actor: &str, amount: u64) -> Event<'_> {
    Event { order, actor: actor.as_bytes(), amount, weight: 1 }
}

/// A top with one rule.
struct TestTop {
    top: Top,
    rule: RuleTop,
    sampler: Sampler,
}

impl TestTop {
    fn new(memory: usize) -> Self {
        let top = Top::new(memory).unwrap();
        Self { top, rule: RuleTop::default(), sampler: Sampler::of(Random(1)) }
    }

    fn count(&mut self, event: Event<'_>, now: Timestamp) -> bool {
        self.top.count(&self.rule, event, now, &mut self.sampler)
    }

    fn rank(&self, of: (Order, Window), now: Timestamp, max: usize) -> Ranking {
        self.top.rank(&self.rule, of, now, max, None)
    }

    /// Returns the actors with their counts.
    fn counts(&self, of: (Order, Window), seconds: u64) -> Vec<(String, u64)> {
        let ranked = self.rank(of, at(seconds), 100).actors;
        ranked.into_iter().map(|ranked| (String::from_utf8(ranked.actor.into()).unwrap(), ranked.count)).collect()
    }
}

fn pairs<const N: usize>(expected: [(&str, u64); N]) -> Vec<(String, u64)> {
    expected.map(|(actor, count)| (actor.to_owned(), count)).to_vec()
}

/// A cost of more than an answer can show counts as much as an answer can show.
#[test]
fn huge_amounts_end_at_the_largest_number_and_hide_no_other_actor() {
    let mut test = TestTop::new(1 << 20);
    for (actor, amount) in [("ann", 3), ("eve", 1 << 50), ("eve", u64::MAX), ("bob", 2), ("ann", 1), ("eve", 1)] {
        assert!(test.count(event(Order::Taken, actor, amount), at(1_000)));
    }
    assert_eq!(test.counts(TAKEN_HOUR, 1_000), pairs([("eve", (1 << 53) - 1), ("ann", 4), ("bob", 2)]));
}

#[test]
fn actors_are_ranked_by_order_and_window() {
    let mut test = TestTop::new(1 << 20);
    for (actor, order, amount, seconds) in [
        ("ann", Order::Denied, 1, 1_000),
        ("bob", Order::Denied, 1, 1_001),
        ("bob", Order::Denied, 1, 1_002),
        ("ann", Order::Taken, 500, 1_000),
        ("bob", Order::Taken, 300, 1_000),
        ("bob", Order::Taken, 300, 1_100),
    ] {
        assert!(test.count(event(order, actor, amount), at(seconds)));
    }
    assert_eq!(test.counts(DENIED_MINUTE, 1_002), pairs([("bob", 2), ("ann", 1)]));
    assert_eq!(test.counts(TAKEN_HOUR, 1_100), pairs([("bob", 600), ("ann", 500)]));
    assert_eq!(test.counts((Order::Taken, Window::Minute), 1_100), pairs([("bob", 300)]));
    let ranking = test.rank(TAKEN_HOUR, at(1_100), 1);
    assert_eq!((ranking.total, ranking.is_sampled, ranking.has_room, ranking.actors.len()), (1_100, false, true, 1));
    assert_eq!(ranking.actors[0].error, 0);
    let own = test.top.rank(&test.rule, TAKEN_HOUR, at(1_100), 9, Some(b"ann"));
    assert_eq!((own.total, own.actors.len(), own.actors[0].count), (500, 1, 500));
    assert_eq!(test.top.rank(&test.rule, TAKEN_HOUR, at(1_100), 9, Some(b"eve")).actors, []);
}

/// A count is dropped between 60 and 70 seconds, or 60 and 70 minutes, after its event.
#[test]
fn windows_end_with_the_time_of_the_batch() {
    let mut test = TestTop::new(1 << 20);
    test.count(event(Order::Denied, "ann", 1), at(3_000_005));
    for (seconds, minute, hour) in [(60, 1, 1), (64, 1, 1), (65, 0, 1), (3_600, 0, 1), (4_205, 0, 0)] {
        let now = 3_000_005 + seconds;
        let counts = [Window::Minute, Window::Hour].map(|window| test.counts((Order::Denied, window), now).len());
        assert_eq!(counts, [minute, hour], "after {seconds} s");
    }
}

#[test]
fn clock_that_jumps_does_not_keep_counts() {
    let mut test = TestTop::new(1 << 20);
    for (seconds, actor) in [(9_000_000, "ann"), (9_000_000 - 86_400, "bob"), (41_000_000, "eve")] {
        test.count(event(Order::Denied, actor, 1), at(seconds));
        for window in Window::ALL {
            assert_eq!(test.counts((Order::Denied, window), seconds), pairs([(actor, 1)]));
        }
    }
    // A batch that ends late is a little earlier.
    test.count(event(Order::Denied, "eve", 1), at(41_000_000 - 20));
    assert_eq!(test.counts(DENIED_MINUTE, 41_000_000), pairs([("eve", 2)]));
}

#[test]
fn long_names_are_cut_between_characters_and_still_told_apart() {
    let mut test = TestTop::new(1 << 20);
    let long = "é".repeat(MAX_NAME);
    let (one, other) = (format!("x{long}1"), format!("x{long}2"));
    for actor in [&one, &other, &other] {
        test.count(event(Order::Denied, actor, 1), at(1));
    }
    let ranked = test.rank(DENIED_MINUTE, at(1), 10).actors;
    assert_eq!(ranked.iter().map(|ranked| ranked.count).collect::<Vec<_>>(), [2, 1]);
    assert!(ranked.iter().all(|ranked| ranked.is_cut && ranked.actor.len() == MAX_NAME - 1));
    assert!(ranked.iter().all(|ranked| one.as_bytes().starts_with(&ranked.actor)));
}

/// A client invents actors with long names for one rule. The rule still ranks the others, and the rules that come later have
/// room.
#[test]
fn flood_of_long_names_leaves_room_for_actors_and_rules() {
    let top = Top::new(DEFAULT_TOP_MEMORY).unwrap();
    let mut sampler = Sampler::of(Random(1));
    let flooded = RuleTop::default();
    let tail = "x".repeat(MAX_NAME);
    for number in 0..200_000 {
        top.count(&flooded, event(Order::Denied, &format!("{number:020}-{tail}"), 1), at(50), &mut sampler);
        for real in (0..100).filter(|_| number % 100 == 0) {
            top.count(&flooded, event(Order::Denied, &format!("real-{real:020}-{tail}"), 1), at(50), &mut sampler);
        }
    }
    let ranked = top.rank(&flooded, DENIED_MINUTE, at(50), usize::MAX, None).actors;
    let found = ranked.iter().take(100).filter(|ranked| ranked.actor.starts_with(b"real-")).count();
    assert!(found >= 95 && ranked.len() >= 3_000, "{found} of 100, among {}", ranked.len());
    let rules: Vec<_> = (0..1_000).map(|_| RuleTop::default()).collect();
    let has_room = |rule: &RuleTop| top.count(rule, event(Order::Denied, "ann", 1), at(50), &mut sampler.clone());
    assert_eq!(rules.iter().filter(|rule| has_room(rule)).count(), rules.len());
}

#[test]
fn rules_that_come_after_the_budget_is_spent_say_so() {
    let top = Top::new(64 * 1_024).unwrap();
    let mut sampler = Sampler::of(Random(1));
    let rules: Vec<_> = (0..1_000).map(|_| RuleTop::default()).collect();
    let counted = |rule: &&RuleTop| top.count(rule, event(Order::Taken, "ann", 1), at(50), &mut sampler.clone());
    let with_room = rules.iter().filter(counted).count();
    assert!((40..100).contains(&with_room), "{with_room}");
    for (index, rule) in rules.iter().enumerate() {
        let ranking = top.rank(rule, TAKEN_HOUR, at(50), 9, None);
        assert_eq!((ranking.has_room, ranking.actors.len()), if index < with_room { (true, 1) } else { (false, 0) });
        assert_eq!(rule.is_without_room(), index >= with_room);
    }
    // After an hour without events, the room is free for others.
    rules.iter().for_each(|rule| rule.drop_idle(at(9_000)));
    assert_eq!(top.memory(), 0);
    assert!(top.count(&rules[999], event(Order::Taken, "ann", 1), at(9_000), &mut sampler));
    assert!(!rules[999].is_without_room());
}

/// 10,000 rules have room for some actors each, with the default.
#[test]
fn ten_thousand_rules_have_room() {
    let top = Top::new(DEFAULT_TOP_MEMORY).unwrap();
    let mut sampler = Sampler::of(Random(1));
    let rules: Vec<_> = (0..10_000).map(|_| RuleTop::default()).collect();
    for rule in &rules {
        for actor in ["192.168.100.101", "192.168.100.102", "192.168.100.103"] {
            assert!(top.count(rule, event(Order::Taken, actor, 1), at(50), &mut sampler));
        }
    }
    assert!(top.memory() <= DEFAULT_TOP_MEMORY);
}

/// Returns the memory that the tables really have (bytes).
fn measured_memory(rule: &RuleTop) -> usize {
    let of_table = |table: &Table| {
        let names = table.actors.values().map(|place| place.name.len()).sum::<usize>();
        size_of::<Table>() + table.actors.capacity() * size_of::<(u64, u64, Place)>() + names
    };
    let of_order =
        |order| rule.tables(order).lock().iter().flat_map(|tables| tables.iter()).map(of_table).sum::<usize>();
    Order::ALL.into_iter().map(of_order).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The tables never take more than the budget, in any order of events, and return all of it.
    #[test]
    fn memory_is_bounded(
        memory in 1_usize..200_000,
        events in prop::collection::vec((0_usize..5, 0_usize..2, 0_u64..5_000, 0_usize..300, 0_u64..100), 1..3_000),
    ) {
        let top = Top::new(memory).unwrap();
        let mut sampler = Sampler::of(Random(1));
        let rules: Vec<_> = (0..5).map(|_| RuleTop::default()).collect();
        let mut now = 1_000;
        for (rule, order, actor, length, pause) in events {
            now += pause / 90 * 30;
            let actor = format!("{actor}{}", "x".repeat(length));
            top.count(&rules[rule], event(Order::ALL[order], &actor, actor.len() as u64), at(now), &mut sampler);
            prop_assert!(top.memory() <= memory);
        }
        let measured: usize = rules.iter().map(measured_memory).sum();
        prop_assert!(measured <= top.memory(), "{measured} bytes, counted as {}", top.memory());
        drop(rules);
        prop_assert_eq!(top.memory(), 0);
    }
}

/// Draws ranks so that their probabilities are in inverse proportion to the ranks: Zipf's law.
fn draw(actors: usize, random: &mut Random) -> usize {
    (actors as f64).powf(random.next() as f64 / u64::MAX as f64) as usize
}

/// The result of a load: the share of the 100 actors with the largest exact counts that are among the 100 that the tables
/// rank highest, and what the tables took and said.
struct Recall {
    share: f64,
    memory: usize,
    /// The share of ranked actors whose true count is within the error.
    within_error: f64,
}

/// Counts `hits` of Zipf-distributed actors, all within one window. Before each, `invented` hits come from actors that come
/// once. Two threads share the hits.
fn measure_recall(actors: usize, hits: usize, invented: usize, window: Window) -> Recall {
    const THREADS: usize = 2;
    /// Hits of a thread in a second of the load.
    const RATE: usize = 400_000;
    const BATCH: usize = 32;
    let top = Top::new(DEFAULT_TOP_MEMORY).unwrap();
    let rule = RuleTop::default();
    let mut samplers = [1, 2].map(|seed| Sampler::of(Random(seed)));
    let mut random = Random(3);
    let mut exact = vec![0_u32; actors + 1];
    let total = hits * (1 + invented);
    // The load takes at most as long as the window.
    let rate = RATE.max(total / THREADS / (window.seconds() as usize - 1));
    let start = 5_000_000 / window.seconds() * window.seconds();
    let mut at_hit = 0;
    let mut name = String::new();
    while at_hit < total {
        let sampler = &mut samplers[at_hit / BATCH % THREADS];
        let now = at(start + (at_hit / THREADS / rate) as u64);
        let end = BATCH.min(total - at_hit);
        let mut ranks = [None; BATCH];
        for (offset, rank) in ranks.iter_mut().enumerate().take(end) {
            if (at_hit + offset) % (1 + invented) == invented {
                let drawn = draw(actors, &mut random);
                exact[drawn] += 1;
                *rank = Some(drawn);
            }
        }
        sampler.begin(now);
        let mut first = 0;
        while let Some((position, weight)) = sampler.next(first, end) {
            first = position + 1;
            name.clear();
            use std::fmt::Write;
            match ranks[position] {
                Some(rank) => write!(name, "user-{rank}").unwrap(),
                None => write!(name, "invented-{}", at_hit + position).unwrap(),
            }
            let event = Event { order: Order::Denied, actor: name.as_bytes(), amount: 1, weight };
            top.count(&rule, event, now, sampler);
        }
        at_hit += end;
    }
    let now = at(start + (total / THREADS / rate) as u64);
    let ranking = top.rank(&rule, (Order::Denied, window), now, 100, None);
    let mut highest: Vec<usize> = (0..exact.len()).collect();
    highest.sort_by_key(|rank| std::cmp::Reverse(exact[*rank]));
    highest.truncate(100);
    let rank_of = |actor: &[u8]| std::str::from_utf8(actor).ok()?.strip_prefix("user-")?.parse::<usize>().ok();
    let ranked: Vec<_> = ranking.actors.iter().map(|ranked| (rank_of(&ranked.actor), ranked)).collect();
    let found = highest.iter().filter(|rank| ranked.iter().any(|(found, _)| *found == Some(**rank))).count();
    let is_within = |(rank, ranked): &&(Option<usize>, &Ranked)| {
        ranked.count.abs_diff(rank.map_or(1, |rank| exact[rank].into())) <= ranked.error
    };
    let within = ranked.iter().filter(is_within).count();
    assert_eq!(ranking.actors.len(), 100);
    Recall { share: found as f64 / 100.0, memory: top.memory(), within_error: within as f64 / 100.0 }
}

/// With `DIVVY_TEST_TOP_HITS`, the load has ten million actors and this many hits by them.
#[test]
fn recall_of_the_highest_actors() {
    let hits = std::env::var("DIVVY_TEST_TOP_HITS").ok().map(|hits| hits.parse::<usize>().unwrap());
    let (actors, hits) = hits.map_or((100_000, 2_000_000), |hits| (10_000_000, hits));
    for window in Window::ALL {
        for invented in [0, 9] {
            let recall = measure_recall(actors, hits, invented, window);
            println!(
                "{window:?}, {hits} hits by {actors} actors, {invented} invented ones per hit: recall {}, within the error \
                 {}, {} bytes",
                recall.share, recall.within_error, recall.memory
            );
            assert!(recall.share >= 0.95, "recall {}", recall.share);
            assert!(recall.within_error >= 0.88, "within the error {}", recall.within_error);
            assert!(recall.memory <= DEFAULT_TOP_MEMORY);
        }
    }
}

/// Every event is counted with the same probability, regardless of the batches that it arrives in.
#[test]
fn weights_of_sampled_events_add_up_to_their_number() {
    const SECONDS: u64 = 50;
    const EVENTS: usize = 100_000;
    for batch in [1, 7, 32, 1_000] {
        let mut sampler = Sampler::of(Random(batch as u64));
        let (mut sum, mut samples) = (0, 0);
        for second in 0..SECONDS {
            let mut left = EVENTS;
            while left > 0 {
                let end = batch.min(left);
                left -= end;
                sampler.begin(Timestamp::from_nanos(second * NANOS_PER_SECOND));
                let mut first = 0;
                while let Some((position, weight)) = sampler.next(first, end) {
                    first = position + 1;
                    sum += weight;
                    samples += 1;
                }
            }
        }
        let sampled = SECONDS * (EVENTS as u64 - u64::from(COUNTED_EACH));
        let deviation = ((sampled * (ONE_IN - 1)) as f64).sqrt();
        let difference = sum as f64 - (SECONDS * EVENTS as u64) as f64;
        assert!(difference.abs() < 5.0 * deviation, "batches of {batch}: {difference} of {deviation}");
        assert!(samples < SECONDS * u64::from(COUNTED_EACH) + sampled / 15, "{samples} samples");
    }
}

#[test]
fn first_events_of_each_second_are_counted_one_by_one() {
    let mut sampler = Sampler::of(Random::new());
    for second in [7, 8, 3] {
        sampler.begin(Timestamp::from_nanos(second * NANOS_PER_SECOND + 5));
        for position in 0..COUNTED_EACH as usize {
            assert_eq!(sampler.next(position, usize::MAX), Some((position, 1)));
        }
        assert_eq!(sampler.next(0, 1_000).map_or(ONE_IN, |(_, weight)| weight), ONE_IN);
    }
}
