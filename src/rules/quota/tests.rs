use std::time::Duration;

use super::*;
use crate::clock::NANOS_PER_SECOND;

fn settings(credit_limit: u64, reset_seconds: u64) -> Settings {
    Settings { credit_limit, reset_seconds: Seconds::whole(reset_seconds), ..Settings::default() }
}

fn with(algorithm: Kind, credit_limit: u64, reset_seconds: u64) -> Settings {
    Settings { algorithm: Some(algorithm), ..settings(credit_limit, reset_seconds) }
}

fn limit(settings: Settings) -> Limit {
    match settings.quota() {
        Ok(Quota::Limited(limit)) => limit,
        other => panic!("{settings:?} is no limit but {other:?}"),
    }
}

#[test]
fn zeros_mean_always_or_never_for_every_algorithm() {
    for algorithm in Kind::ALL {
        assert_eq!(with(algorithm, 0, 0).quota(), Ok(Quota::Never));
        let none = with(algorithm, 0, 60).quota();
        if algorithm == Kind::Concurrency {
            assert_eq!(none, Ok(Quota::Limited(Limit::new(algorithm, 0, 0, 60 * NANOS_PER_SECOND).unwrap())));
        } else {
            assert_eq!(none, Ok(Quota::Never));
        }
        let always = with(algorithm, 7_000, 0).quota();
        if algorithm == Kind::Concurrency {
            assert_eq!(always, Err(vec![QuotaError::NoLeaseTime { seconds: Seconds::default() }]));
        } else {
            assert_eq!(always, Ok(Quota::Always { credit: 7_000 }));
        }
    }
}

#[test]
fn settings_become_limits_of_each_algorithm() {
    let expected = Kind::ALL.map(|kind| Limit::new(kind, 10, 10, 60 * NANOS_PER_SECOND).unwrap());
    assert_eq!(Kind::ALL.map(|algorithm| limit(with(algorithm, 10, 60))), expected);
    assert_eq!(limit(settings(10, 60)), expected[0], "the default is fixed-window");
}

#[test]
fn buckets_have_their_own_settings() {
    let refilled = Settings {
        refill_credits: Some(5),
        refill_seconds: Some(Seconds(Duration::from_millis(250))),
        ..with(Kind::TokenBucket, 10, 60)
    };
    assert_eq!(limit(refilled), Limit::new(Kind::TokenBucket, 10, 5, NANOS_PER_SECOND / 4).unwrap());
    assert_eq!(refilled.to_string(), "allows 10 at once, then 5 every 0.25 s (token-bucket)");
    let bursting = Settings { burst: Some(3), ..with(Kind::LeakyBucket, 10, 60) };
    assert_eq!(limit(bursting), Limit::new(Kind::LeakyBucket, 3, 10, 60 * NANOS_PER_SECOND).unwrap());
    assert_eq!(bursting.to_string(), "allows 3 at once, then 10 in 60 s, evenly (leaky-bucket)");
}

#[test]
fn settings_of_another_algorithm_are_rejected_by_name() {
    let all =
        Settings { refill_credits: Some(1), refill_seconds: Some(Seconds::whole(1)), burst: Some(1), ..settings(1, 1) };
    let refused = |algorithm| {
        let errors = Settings { algorithm: Some(algorithm), ..all }.quota().unwrap_err();
        errors.iter().map(QuotaError::setting).collect::<Vec<_>>()
    };
    for algorithm in Kind::ALL {
        let expected: &[&str] = match algorithm {
            Kind::TokenBucket => &[BURST],
            Kind::LeakyBucket => &[REFILL_CREDITS, REFILL_SECONDS],
            _ => &[REFILL_CREDITS, REFILL_SECONDS, BURST],
        };
        assert_eq!(refused(algorithm), expected, "{algorithm:?}");
    }
}

#[test]
fn overlong_sliding_log_is_rejected() {
    assert!(with(Kind::SlidingLog, MAX_LOG_CREDITS, 60).quota().is_ok());
    let credits = MAX_LOG_CREDITS + 1;
    assert_eq!(with(Kind::SlidingLog, credits, 60).quota(), Err(vec![QuotaError::LogTooLong { credits }]));
}

#[test]
fn largest_settings_fit() {
    let Limit::FixedWindow(limit) = limit(settings(MAX_CREDIT_LIMIT, MAX_RESET_SECONDS)) else {
        panic!("the default is fixed-window")
    };
    assert_eq!(limit.window_ns.get() / NANOS_PER_SECOND, MAX_RESET_SECONDS);
}

#[test]
fn every_setting_out_of_range_is_reported() {
    let too_much = settings(MAX_CREDIT_LIMIT + 1, MAX_RESET_SECONDS + 1);
    let expected = [QuotaError::TooLarge { setting: CREDIT_LIMIT }, QuotaError::TooLong { setting: RESET_SECONDS }];
    assert_eq!(too_much.quota(), Err(expected.to_vec()));
    let slightly_too_long = Duration::new(MAX_RESET_SECONDS, 1);
    let nothing = Settings {
        refill_credits: Some(0),
        refill_seconds: Some(Seconds(slightly_too_long)),
        ..with(Kind::TokenBucket, 1, 1)
    };
    let expected = [QuotaError::Zero { setting: REFILL_CREDITS }, QuotaError::TooLong { setting: REFILL_SECONDS }];
    assert_eq!(nothing.quota(), Err(expected.to_vec()));
    let no_room = Settings { burst: Some(0), ..with(Kind::LeakyBucket, 1, 1) };
    assert_eq!(no_room.quota(), Err(vec![QuotaError::Zero { setting: BURST }]));
}

#[test]
fn lease_lasts_whole_seconds_up_to_thirty_days() {
    let with = |time| Settings { reset_seconds: Seconds(time), ..with(Kind::Concurrency, 10, 0) };
    let longest = Duration::from_secs(LONGEST_SECONDS.into());
    for time in [Duration::from_secs(1), longest] {
        assert!(with(time).quota().is_ok());
    }
    for time in [Duration::from_millis(500), Duration::from_millis(1_500), longest + Duration::from_secs(1)] {
        let errors = with(time).quota().unwrap_err();
        assert_eq!(errors, [QuotaError::NoLeaseTime { seconds: Seconds(time) }]);
        assert!(errors[0].to_string().contains("from 1 to 2592000"), "{}", errors[0]);
        assert_eq!(errors[0].setting(), "resetSeconds");
    }
    assert_eq!(with(longest).to_string(), "allows 10 concurrent requests, each for 2592000 s (concurrency)");
    let one = Settings { credit_limit: 1, ..with(longest) };
    assert_eq!(one.to_string(), "allows 1 concurrent request, for 2592000 s (concurrency)");
}
