//! After the clock was set back, no client waits longer than the limit's own time, even if the first request takes nothing.

use super::*;

const STEPS_BACK: [u64; 3] = [60, 3_600, 86_400];
/// The time of what is reserved before the clock is set back, and how long that lasts at most.
const TTL: u32 = 60;
const LONGEST_TTL: u64 = 62;

/// One way to ask after the clock was set back.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// A request for the bucket that is used up.
    Alone(Action),
    /// A request of another name than those before it.
    Named(Action),
    /// A request about the reservation that was made before.
    OfReservation(Action),
    /// A member that denies its group.
    Denying(Action),
    /// A member that its group holds back. One credit is left for it.
    HeldBack(Action),
}

fn every_way() -> Vec<Asked> {
    let ask = |ask| Asked::Alone(Action::Ask(ask));
    let reservation = |about| Action::Reservation(about);
    let commit_if_open = reservation(ReservationAsk::Commit { cost: 1, charges: false });
    let mut ways = vec![
        ask(Ask::Take { cost: 1 }),
        ask(Ask::Take { cost: 0 }),
        ask(Ask::Look { cost: 1 }),
        ask(Ask::Look { cost: 0 }),
        ask(Ask::Overdraw { cost: 1 }),
        ask(Ask::Charge { cost: 1 }),
        ask(Ask::Charge { cost: 0 }),
        ask(Ask::Refund { cost: 0 }),
        ask(Ask::Drain { cost: 1, strict: false }),
        ask(Ask::Drain { cost: 0, strict: false }),
        ask(Ask::Drain { cost: 1, strict: true }),
        ask(Ask::Drain { cost: 0, strict: true }),
        Asked::Named(reserve(1, 5)),
        Asked::Named(commit(1)),
        Asked::Named(commit(0)),
        Asked::Named(commit_if_open),
        Asked::Named(RELEASE),
        Asked::Named(renew(5)),
        Asked::OfReservation(reserve(1, TTL)),
        Asked::OfReservation(commit(1)),
        Asked::OfReservation(RELEASE),
        Asked::OfReservation(renew(5)),
        Asked::Denying(TAKE),
        Asked::Denying(LOOK),
        Asked::Denying(reserve(1, 5)),
        Asked::Denying(take_once(1, 1)),
        Asked::HeldBack(TAKE),
        Asked::HeldBack(LOOK),
        Asked::HeldBack(reserve(1, 5)),
        Asked::HeldBack(take_once(1, 1)),
    ];
    let cost = 1;
    let asks = [
        Ask::Take { cost },
        Ask::Look { cost },
        Ask::Overdraw { cost },
        Ask::Charge { cost },
        Ask::Refund { cost: 0 },
        Ask::Drain { cost, strict: false },
    ];
    ways.extend(asks.map(|ask| Asked::Named(Action::Idempotent { ask, fingerprint: 1 })));
    ways
}

impl Asked {
    fn action(self) -> Action {
        match self {
            Self::Alone(action) | Self::Named(action) | Self::OfReservation(action) => action,
            Self::Denying(action) | Self::HeldBack(action) => action,
        }
    }

    /// Of a log nothing can be reserved, and nothing but reservations takes leases.
    fn suits(self, limit: &Limit) -> bool {
        let is_reservation = matches!(self.action(), Action::Reservation(_));
        match limit.kind() {
            Kind::SlidingLog => !is_reservation && !matches!(self, Self::OfReservation(_)),
            Kind::Concurrency => is_reservation || matches!(self.action(), Action::Ask(Ask::Look { .. })),
            _ => !matches!(self, Self::OfReservation(_) | Self::HeldBack(_)) || limit.capacity() > 1,
        }
    }
}

/// Returns how many seconds the limit needs at most to give back one credit more than it has.
fn own_seconds(limit: Limit) -> u64 {
    let used = limit.capacity() + 1;
    let own_ns = match limit {
        Limit::FixedWindow(limit) => limit.window_ns.get(),
        Limit::CalendarWindow(limit) => limit.window_ns(),
        Limit::SlidingWindow(limit) => 2 * limit.window_ns.get(),
        Limit::SlidingLog(limit) => limit.window_ns().get(),
        Limit::TokenBucket(limit) => used.div_ceil(limit.refill.get()) * limit.interval_ns.get(),
        Limit::LeakyBucket(limit) => (used * limit.period_ns.get()).div_ceil(limit.count.get()),
        Limit::Concurrency(_) => 0,
    };
    own_ns.div_ceil(SECOND)
}

pub fn clock_that_is_set_back_makes_nobody_wait_longer_than_the_limit(opened: Opened) {
    wait(async {
        for (which, limit) in limits(opened.buckets).into_iter().enumerate() {
            for (way, asked) in every_way().into_iter().enumerate().filter(|(_, asked)| asked.suits(&limit)) {
                for back in STEPS_BACK {
                    let bucket = format!("{{set back {which} {way} {back}}}");
                    waits_no_longer(&opened, &bucket, limit, asked, back).await;
                }
            }
        }
    });
}

async fn waits_no_longer(opened: &Opened, bucket: &str, limit: Limit, asked: Asked, back: u64) {
    let case = || format!("{asked:?} of {limit:?}, {back} s back");
    let (start, now) = (at(100_000), at(100_000 - back));
    let key = |name: &str| format!("{bucket}#{name}");
    let named = |action: Action, name: &str| if action.has_record() { key(name) } else { bucket.to_owned() };
    // The bucket is used up, but for what is held back.
    let is_held_back = matches!(asked, Asked::HeldBack(_));
    let mut rest = limit.capacity() - u64::from(is_held_back);
    if matches!(asked, Asked::OfReservation(_)) {
        assert!(opened.one(start, &key("before"), limit, reserve(1, TTL)).await.allowed, "{}", case());
        rest -= 1;
    }
    let take =
        if limit.kind() == Kind::Concurrency { reserve(rest, TTL) } else { Action::Ask(Ask::Take { cost: rest }) };
    if rest > 0 {
        assert!(opened.one(start, &named(take, "rest"), limit, take).await.allowed, "{}", case());
    }
    let action = asked.action();
    match asked {
        Asked::Alone(_) | Asked::Named(_) => drop(opened.one(now, &named(action, "new"), limit, action).await),
        Asked::OfReservation(_) => drop(opened.one(now, &key("before"), limit, action).await),
        Asked::Denying(_) => {
            let (one, other) = (named(action, "new"), format!("{bucket} fresh"));
            let outcomes =
                opened.apply_groups(now, &[&[(&other, super::limit(5, 60), TAKE), (&one, limit, action)]]).await;
            assert!(!outcomes[1].allowed, "{}", case());
        }
        Asked::HeldBack(_) => {
            let (one, other) = (named(action, "new"), format!("{bucket} none"));
            let none = super::limit(1, 1_000_000);
            opened.one(now, &other, none, TAKE).await;
            let outcomes = opened.apply_groups(now, &[&[(&one, limit, action), (&other, none, TAKE)]]).await;
            assert!(outcomes[0].allowed && !outcomes[1].allowed, "{}", case());
        }
    }
    let is_reserved = matches!(asked, Asked::OfReservation(_)) || limit.kind() == Kind::Concurrency;
    let own = own_seconds(dated(limit, now)).max(if is_reserved { LONGEST_TTL } else { 0 });
    let later = now.plus(own * SECOND);
    let all = limit.capacity();
    let take = match (asked, limit.kind()) {
        (_, Kind::Concurrency) => reserve(all, TTL),
        // It has used some after the clock was set back.
        (Asked::Alone(_) | Asked::Named(_) | Asked::OfReservation(_) | Asked::Denying(_), _) => TAKE,
        (Asked::HeldBack(_), _) => Action::Ask(Ask::Take { cost: all }),
    };
    let told = opened.one(later, &named(take, "after"), limit, take).await;
    assert!(told.allowed, "{}: {own} s later {told:?}", case());
}

pub fn clock_that_is_set_back_keeps_no_answer_longer(opened: Opened) {
    wait(async {
        let is_one = |limit: &Limit| limit.capacity() > 2 && limit.kind() != Kind::Concurrency;
        for (which, limit) in limits(opened.buckets).into_iter().enumerate().filter(|(_, limit)| is_one(limit)) {
            for back in STEPS_BACK {
                for (way, asked) in [take_once(1, 1), take_once(2, 2)].into_iter().enumerate() {
                    let (start, now) = (at(100_000), at(100_000 - back));
                    let key = format!("answers {which} {back} {way}#it");
                    let first = opened.one(start, &key, limit, take_once(1, 1)).await;
                    assert_eq!((first.allowed, first.fate), (true, Fate::Done), "{limit:?}, {back} s back");
                    let again = opened.one(now, &key, limit, asked).await;
                    let expected = if way == 0 { Fate::Repeated } else { Fate::Different };
                    assert_eq!(again.fate, expected, "{limit:?}, {back} s back");
                    let later = opened.one(now.plus(60 * SECOND), &key, limit, take_once(1, 1)).await;
                    assert_eq!(later.fate, Fate::Done, "{limit:?}, {back} s back: it is forgotten after a minute");
                }
            }
        }
    });
}

pub fn clock_that_is_set_back_keeps_no_commit_longer(opened: Opened) {
    wait(async {
        let limits = reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2);
        for (which, limit) in limits {
            for back in STEPS_BACK {
                for (way, asked) in [commit(1), reserve(1, 30)].into_iter().enumerate() {
                    let (start, now) = (at(100_000), at(100_000 - back));
                    let key = format!("commits {which} {back} {way}#it");
                    assert!(opened.one(start, &key, limit, reserve(1, 30)).await.allowed);
                    assert_eq!(opened.one(start, &key, limit, commit(1)).await.fate, Fate::Done);
                    assert_eq!(opened.one(now, &key, limit, asked).await.fate, Fate::Repeated);
                    let later = opened.one(now.plus(60 * SECOND), &key, limit, commit(1)).await;
                    assert_eq!(later.fate, Fate::Late, "{limit:?}, {back} s back: it is forgotten after a minute");
                }
            }
        }
    });
}
