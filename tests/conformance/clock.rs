//! After the clock is set back, no client waits longer than the limit's own time, even if the first request takes
//! nothing.

use super::*;

const STEPS_BACK: [u64; 3] = [60, 3_600, 86_400];
/// Maximum duration of a reservation that was made before the clock is set back, in seconds.
const TTL: u32 = 60;
const LONGEST_TTL: u64 = 62;

/// A request after the clock was set back.
#[derive(Debug, Clone, Copy)]
enum Request {
    /// A request to the bucket that is used up.
    Alone(Action),
    /// A request with a new idempotency key.
    Named(Action),
    /// A request to the earlier reservation.
    OfReservation(Action),
    /// A member that denies its group.
    Denying(Action),
    /// A member that its group holds back. It has one credit left.
    HeldBack(Action),
}

fn every_way() -> Vec<Request> {
    let ask = |ask| Request::Alone(Action::Ask(ask));
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
        Request::Named(reserve(1, 5)),
        Request::Named(commit(1)),
        Request::Named(commit(0)),
        Request::Named(commit_if_open(None, 1)),
        Request::Named(RELEASE),
        Request::Named(renew(5)),
        Request::OfReservation(reserve(1, TTL)),
        Request::OfReservation(commit(1)),
        Request::OfReservation(RELEASE),
        Request::OfReservation(renew(5)),
        Request::Denying(TAKE),
        Request::Denying(LOOK),
        Request::Denying(reserve(1, 5)),
        Request::Denying(take_once(1, 1)),
        Request::HeldBack(TAKE),
        Request::HeldBack(LOOK),
        Request::HeldBack(reserve(1, 5)),
        Request::HeldBack(take_once(1, 1)),
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
    ways.extend(asks.map(|ask| Request::Named(Action::Idempotent { ask, fingerprint: 1 })));
    ways
}

impl Request {
    fn action(self) -> Action {
        match self {
            Self::Alone(action) | Self::Named(action) | Self::OfReservation(action) => action,
            Self::Denying(action) | Self::HeldBack(action) => action,
        }
    }

    /// Returns whether the limit supports this request. Logs have no reservations, and only reservations take leases.
    fn suits(self, limit: &Limit) -> bool {
        let is_reservation = matches!(self.action(), Action::Reservation(_));
        match limit.kind() {
            Kind::SlidingLog => !is_reservation && !matches!(self, Self::OfReservation(_)),
            Kind::Concurrency => is_reservation || matches!(self.action(), Action::Ask(Ask::Look { .. })),
            _ => !matches!(self, Self::OfReservation(_) | Self::HeldBack(_)) || limit.capacity() > 1,
        }
    }
}

/// Returns the maximum number of seconds until the limit gives back one more credit.
fn own_seconds(limit: Limit) -> u64 {
    let used = limit.capacity() + 1;
    let own_ns = match limit {
        Limit::SlidingWindow(limit) => 2 * limit.window_ns.get(),
        Limit::TokenBucket(limit) => used.div_ceil(limit.refill.get()) * limit.interval_ns.get(),
        Limit::LeakyBucket(limit) => (used * limit.period_ns.get()).div_ceil(limit.count.get()),
        limit => limit.rate().map_or(0, |(_, time_ns)| time_ns),
    };
    own_ns.div_ceil(SECOND)
}

pub async fn clock_set_back_never_extends_a_wait_beyond_the_limit(opened: StoreFixture) {
    for (which, limit) in limits(opened.buckets).into_iter().enumerate() {
        for (way, asked) in every_way().into_iter().enumerate().filter(|(_, asked)| asked.suits(&limit)) {
            for back in STEPS_BACK {
                let bucket = format!("{{set back {which} {way} {back}}}");
                waits_no_longer(&opened, &bucket, limit, asked, back).await;
            }
        }
    }
}

async fn waits_no_longer(opened: &StoreFixture, bucket: &str, limit: Limit, asked: Request, back: u64) {
    let case = || format!("{asked:?} of {limit:?}, {back} s back");
    let (start, now) = (at(100_000), at(100_000 - back));
    let key = |name: &str| format!("{bucket}#{name}");
    let named = |action: Action, name: &str| if action.has_record() { key(name) } else { bucket.to_owned() };
    // The bucket is used up, except for the member that is held back.
    let is_held_back = matches!(asked, Request::HeldBack(_));
    let mut rest = limit.capacity() - u64::from(is_held_back);
    if matches!(asked, Request::OfReservation(_)) {
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
        Request::Alone(_) | Request::Named(_) => drop(opened.one(now, &named(action, "new"), limit, action).await),
        Request::OfReservation(_) => drop(opened.one(now, &key("before"), limit, action).await),
        Request::Denying(_) => {
            let (one, other) = (named(action, "new"), format!("{bucket} fresh"));
            let outcomes =
                opened.apply_groups(now, &[&[(&other, super::limit(5, 60), TAKE), (&one, limit, action)]]).await;
            assert!(!outcomes[1].allowed, "{}", case());
        }
        Request::HeldBack(_) => {
            let (one, other) = (named(action, "new"), format!("{bucket} none"));
            let none = super::limit(1, 1_000_000);
            opened.one(now, &other, none, TAKE).await;
            let outcomes = opened.apply_groups(now, &[&[(&one, limit, action), (&other, none, TAKE)]]).await;
            assert!(outcomes[0].allowed && !outcomes[1].allowed, "{}", case());
        }
    }
    let is_reserved = matches!(asked, Request::OfReservation(_)) || limit.kind() == Kind::Concurrency;
    let own = own_seconds(dated(limit, now)).max(if is_reserved { LONGEST_TTL } else { 0 });
    let later = now.plus(own * SECOND);
    let all = limit.capacity();
    let take = match (asked, limit.kind()) {
        (_, Kind::Concurrency) => reserve(all, TTL),
        // The request used some credit after the clock was set back.
        (Request::Alone(_) | Request::Named(_) | Request::OfReservation(_) | Request::Denying(_), _) => TAKE,
        (Request::HeldBack(_), _) => Action::Ask(Ask::Take { cost: all }),
    };
    let answer = opened.one(later, &named(take, "after"), limit, take).await;
    assert!(answer.allowed, "{}: {own} s later {answer:?}", case());
}

pub async fn clock_set_back_keeps_no_answer_longer(opened: StoreFixture) {
    let is_one = |limit: &Limit| limit.capacity() > 2 && limit.kind() != Kind::Concurrency;
    for (which, limit) in limits(opened.buckets).into_iter().enumerate().filter(|(_, limit)| is_one(limit)) {
        for back in STEPS_BACK {
            for (way, asked) in [take_once(1, 1), take_once(2, 2)].into_iter().enumerate() {
                let (start, now) = (at(100_000), at(100_000 - back));
                let key = format!("answers {which} {back} {way}#it");
                let first = opened.one(start, &key, limit, take_once(1, 1)).await;
                assert_eq!((first.allowed, first.resolution), (true, Resolution::Done), "{limit:?}, {back} s back");
                let again = opened.one(now, &key, limit, asked).await;
                let expected = if way == 0 { Resolution::Repeated } else { Resolution::Different };
                assert_eq!(again.resolution, expected, "{limit:?}, {back} s back");
                let later = opened.one(now.plus(60 * SECOND), &key, limit, take_once(1, 1)).await;
                assert_eq!(
                    later.resolution,
                    Resolution::Done,
                    "{limit:?}, {back} s back: it is forgotten after a minute"
                );
            }
        }
    }
}

pub async fn clock_set_back_keeps_no_commit_longer(opened: StoreFixture) {
    let limits = reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2);
    for (which, limit) in limits {
        for back in STEPS_BACK {
            for (way, asked) in [commit(1), reserve(1, 30)].into_iter().enumerate() {
                let (start, now) = (at(100_000), at(100_000 - back));
                let key = format!("commits {which} {back} {way}#it");
                assert!(opened.one(start, &key, limit, reserve(1, 30)).await.allowed);
                assert_eq!(opened.one(start, &key, limit, commit(1)).await.resolution, Resolution::Done);
                assert_eq!(opened.one(now, &key, limit, asked).await.resolution, Resolution::Repeated);
                let later = opened.one(now.plus(60 * SECOND), &key, limit, commit(1)).await;
                assert_eq!(
                    later.resolution,
                    Resolution::Late,
                    "{limit:?}, {back} s back: it is forgotten after a minute"
                );
            }
        }
    }
}
