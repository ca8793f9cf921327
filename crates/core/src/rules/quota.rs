//! Quotas: the numbers in the rules file, and the limits that they describe.
//!
//! A [`Penalty`], `blockAfter`, blocks an actor that its rule keeps denying. Each further block is longer, until the actor has
//! behaved for long enough.

use std::fmt;
use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher13;

use super::setting_name::{BURST, CREDIT_LIMIT, REFILL_CREDITS, REFILL_SECONDS, RESET_SECONDS, WINDOW};
use crate::algorithm::reservation::LONGEST_SECONDS;
use crate::algorithm::{CalendarWindow, InvalidLimit, Kind, Limit, MAX_LOG_CREDITS};
use crate::calendar::{Calendar, Unit};
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// The largest `creditLimit`, `refillCredits` and `burst`: 2^53 - 1, the largest whole number that a JavaScript client
/// reads exactly.
pub const MAX_CREDIT_LIMIT: u64 = (1 << 53) - 1;

/// The credit in replies of a rule with `limit = none`: the largest number of Envoy's protocol.
const UNLIMITED_CREDITS: u64 = u32::MAX as u64;

/// The longest `resetSeconds` and `refillSeconds`: 100 years, so that their nanoseconds fit a timestamp.
pub const MAX_RESET_SECONDS: u64 = 36_525 * 24 * 60 * 60;

/// The grant of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quota {
    /// `creditLimit` 0: every hit is denied; there is no counter.
    #[default]
    Never,
    /// `creditLimit` > 0 and `resetSeconds` 0: every hit is allowed, the reply's credit is `credit`, no counter is
    /// touched.
    Always {
        /// The credit in every reply.
        credit: u64,
    },
    /// Hits take credits from a counter.
    Limited(Limit),
}

impl Quota {
    /// Returns the greatest number of credits that can be left.
    pub fn capacity(&self) -> u64 {
        match self {
            Self::Never => 0,
            Self::Always { credit } => *credit,
            Self::Limited(limit) => limit.capacity(),
        }
    }
}

/// The settings that determine a rule's [`Quota`], as the operator wrote them; `None` if a setting was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// `creditLimit`, at most [`MAX_CREDIT_LIMIT`].
    pub credit_limit: u64,
    /// `resetSeconds`, at most [`MAX_RESET_SECONDS`].
    pub reset_seconds: Seconds,
    /// `algorithm`; if not given, the default one.
    pub algorithm: Option<Kind>,
    /// `refillCredits` of a token bucket, at least 1 and at most [`MAX_CREDIT_LIMIT`]; if not given, `creditLimit`.
    pub refill_credits: Option<u64>,
    /// `refillSeconds` of a token bucket, more than 0 and at most [`MAX_RESET_SECONDS`]; if not given, `resetSeconds`.
    pub refill_seconds: Option<Seconds>,
    /// `window`, `timezone` and `resetAt` of a fixed window, which replace `resetSeconds`; it is 0 then.
    pub calendar: Option<Calendar>,
    /// `burst` of a leaky bucket, its capacity: at least 1 and at most [`MAX_CREDIT_LIMIT`]; if not given,
    /// `creditLimit`.
    pub burst: Option<u64>,
}

/// A setting that is out of range, or that the algorithm does not accept. Displays the problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} {what}")]
pub struct QuotaError {
    /// Name of the setting to correct.
    pub setting: &'static str,
    /// The problem: the rest of a sentence that begins with the setting's name.
    pub(crate) what: String,
    /// Advice for the operator.
    pub fix: String,
}

impl QuotaError {
    fn new(setting: &'static str, what: String, fix: &str) -> Self {
        Self { setting, what, fix: fix.to_owned() }
    }
}

impl Settings {
    /// The settings of a rule with `limit = none`.
    pub fn unlimited() -> Self {
        Self { credit_limit: UNLIMITED_CREDITS, ..Self::default() }
    }

    /// Returns the algorithm in force, which is the default one if none is given.
    pub fn algorithm(&self) -> Kind {
        self.algorithm.unwrap_or_default()
    }

    /// Returns the quota that these settings describe.
    ///
    /// # Errors
    /// Lists every setting that is out of range or that the algorithm does not accept.
    pub fn quota(&self) -> Result<Quota, Vec<QuotaError>> {
        let mut errors = self.out_of_range();
        errors.extend(self.not_accepted());
        let (algorithm, credits) = (self.algorithm(), self.credit_limit);
        if algorithm == Kind::Concurrency && credits > 0 && self.lease_seconds().is_none() {
            let what = format!(
                "is {} s, but a lease lasts for whole seconds, from 1 to {LONGEST_SECONDS}",
                self.reset_seconds
            );
            errors.push(QuotaError::new(RESET_SECONDS, what, "write how long the longest request may take"));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        // A concurrency limit still counts the leases that exist, even if it grants no more.
        let has_leases = algorithm == Kind::Concurrency && self.lease_seconds().is_some();
        if credits == 0 && !has_leases {
            return Ok(Quota::Never);
        }
        if self.reset_seconds.is_zero() && self.calendar.is_none() {
            return Ok(Quota::Always { credit: credits });
        }
        self.limit().map(Quota::Limited).map_err(|_: InvalidLimit| {
            // All numbers are positive at this point, so the log's length is the only possible error.
            let what = format!(
                "is {credits}, but sliding-log, which stores a time for each, allows at most {MAX_LOG_CREDITS}"
            );
            vec![QuotaError::new(CREDIT_LIMIT, what, "set `algorithm = sliding-window`, or write a smaller number")]
        })
    }

    fn out_of_range(&self) -> Vec<QuotaError> {
        let mut errors = Vec::new();
        let (refill, interval) = (self.refill_credits, self.refill_seconds);
        for (setting, number) in
            [(CREDIT_LIMIT, Some(self.credit_limit)), (REFILL_CREDITS, refill), (BURST, self.burst)]
        {
            if number.is_some_and(|number| number > MAX_CREDIT_LIMIT) {
                let what = format!("is over {MAX_CREDIT_LIMIT}, the largest number that every client reads exactly");
                errors.push(QuotaError::new(setting, what, "write a smaller number"));
            }
        }
        for (setting, time) in [(RESET_SECONDS, Some(self.reset_seconds)), (REFILL_SECONDS, interval)] {
            if time.is_some_and(|time| time > Seconds::whole(MAX_RESET_SECONDS)) {
                let what = format!("is over {MAX_RESET_SECONDS} s, which is 100 years");
                errors.push(QuotaError::new(setting, what, "write a shorter time"));
            }
        }
        // Zero is valid for the other two settings.
        let is_no_time = interval.is_some_and(Seconds::is_zero);
        let zeros = [(REFILL_CREDITS, refill == Some(0)), (BURST, self.burst == Some(0)), (REFILL_SECONDS, is_no_time)];
        for (setting, _) in zeros.into_iter().filter(|(_, is_zero)| *is_zero) {
            errors.push(QuotaError::new(setting, "is 0".to_owned(), "write a larger number, or remove it"));
        }
        errors
    }

    fn not_accepted(&self) -> impl Iterator<Item = QuotaError> {
        let algorithm = self.algorithm();
        let settings = [
            (WINDOW, self.calendar.is_some(), Kind::FixedWindow),
            (REFILL_CREDITS, self.refill_credits.is_some(), Kind::TokenBucket),
            (REFILL_SECONDS, self.refill_seconds.is_some(), Kind::TokenBucket),
            (BURST, self.burst.is_some(), Kind::LeakyBucket),
        ];
        let foreign = settings.into_iter().filter(move |(_, given, owner)| *given && *owner != algorithm);
        foreign.map(move |(setting, _, owner)| {
            let (owner, algorithm) = (owner.name(), algorithm.name());
            let what = format!("is a setting of {owner}, and this rule's algorithm is {algorithm}");
            QuotaError::new(setting, what, &format!("remove it, or set `algorithm = {owner}`"))
        })
    }

    /// Returns the duration of a lease; `None` if it is out of range.
    fn lease_seconds(&self) -> Option<u32> {
        let seconds = u32::try_from(self.reset_seconds.as_whole()?).ok()?;
        (1..=LONGEST_SECONDS).contains(&seconds).then_some(seconds)
    }

    fn limit(&self) -> Result<Limit, InvalidLimit> {
        if let Some(calendar) = self.calendar {
            return CalendarWindow::new(self.credit_limit, calendar.id()).map(Limit::CalendarWindow);
        }
        let capacity = self.burst.unwrap_or(self.credit_limit);
        let refill = self.refill_credits.unwrap_or(self.credit_limit);
        let time_ns = self.refill_seconds.unwrap_or(self.reset_seconds).as_nanos();
        Limit::new(self.algorithm(), capacity, refill, time_ns)
    }

    /// Describes the limit for people: `10 in 60 s`.
    pub(super) fn describe_limit(&self) -> String {
        let (credits, seconds) = (self.credit_limit, self.reset_seconds);
        if let Some(calendar) = self.calendar {
            return format!("{credits} {}", describe_calendar(calendar));
        }
        let name = self.algorithm().name();
        match self.algorithm() {
            Kind::FixedWindow => format!("{credits} in {seconds} s"),
            Kind::SlidingWindow | Kind::SlidingLog => format!("{credits} in {seconds} s ({name})"),
            Kind::TokenBucket => {
                let refill = self.refill_credits.unwrap_or(credits);
                let interval = self.refill_seconds.unwrap_or(seconds);
                format!("{credits} at once, then {refill} every {interval} s ({name})")
            }
            Kind::LeakyBucket => {
                let burst = self.burst.unwrap_or(credits);
                format!("{burst} at once, then {credits} in {seconds} s, evenly ({name})")
            }
            Kind::Concurrency if self.credit_limit == 1 => format!("1 concurrent request, for {seconds} s ({name})"),
            Kind::Concurrency => format!("{credits} concurrent requests, each for {seconds} s ({name})"),
        }
    }
}

/// Describes the grant for people: `allows 10 in 60 s`.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.credit_limit == 0 {
            f.write_str("always denies")
        } else if self.calendar.is_none() && self.reset_seconds.is_zero() {
            f.write_str("always allows")
        } else {
            write!(f, "allows {}", self.describe_limit())
        }
    }
}

/// Describes a calendar for people: `a day from 00:00 Europe/Berlin`.
fn describe_calendar(calendar: Calendar) -> String {
    let (unit, zone) = (calendar.unit(), calendar.zone());
    let (article, name) = (if unit == Unit::Hour { "an" } else { "a" }, unit.name());
    match calendar.time_of_day() {
        None if unit.counts_days() => format!("in {}, counted from 1970", name.replace('-', " ")),
        None => format!("{article} {name} by the clock, {zone}"),
        Some(time) if unit == Unit::Week => format!("{article} {name} from Monday {time} {zone}"),
        Some(time) => format!("{article} {name} from {time} {zone}"),
    }
}

/// A time in seconds, exact, without floating point. Displays as a decimal number without trailing zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seconds(pub Duration);

impl Seconds {
    /// Returns a time without a fraction.
    pub const fn whole(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns whether the time is exactly 0.
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    /// Returns whole seconds; `None` if there is a fraction.
    pub(crate) fn as_whole(self) -> Option<u64> {
        (self.0.subsec_nanos() == 0).then_some(self.0.as_secs())
    }

    /// Returns nanoseconds, at most the 584 years that fit 64 bits.
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        if nanos == 0 {
            return write!(f, "{whole}");
        }
        let decimals = format!("{nanos:09}");
        write!(f, "{whole}.{}", decimals.trim_end_matches('0'))
    }
}

/// The largest `blockAfter`. A store keeps the time of each denial.
pub const MAX_BLOCK_AFTER: u64 = crate::algorithm::MAX_LOG_CREDITS;
/// The largest `blockFactor`.
pub const MAX_BLOCK_FACTOR: u64 = 100;
/// Seconds of a day: the default of `blockMax` and `blockForget`.
const DAY: u64 = 24 * 60 * 60;

/// The settings of a penalty, as the operator wrote them; `None` if a setting was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Penalty {
    /// `blockAfter`: the denials within the window that lead to a block. From 1 to [`MAX_BLOCK_AFTER`].
    pub after: u64,
    /// `blockWindow` in seconds, from 1 to [`MAX_RESET_SECONDS`]; if not given, 60.
    pub window: Option<u64>,
    /// `blockSeconds`: the length of the first block. From 1 to [`MAX_RESET_SECONDS`].
    pub seconds: u64,
    /// `blockFactor`: each block is this many times as long as the one before. From 1 to [`MAX_BLOCK_FACTOR`]; if not
    /// given, 2.
    pub factor: Option<u64>,
    /// `blockMax`: the longest block in seconds. From `blockSeconds` to [`MAX_RESET_SECONDS`]; if not given, a day, or
    /// `blockSeconds` if that is longer.
    pub max: Option<u64>,
    /// `blockForget`: seconds after the end of a block until the actor's blocks are forgotten. Up to
    /// [`MAX_RESET_SECONDS`]; if not given, a day.
    pub forget: Option<u64>,
}

/// Whether blocks differ in length by actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Jitter {
    /// A block is up to a tenth shorter. The part depends on the actor and on the number of the block, so actors that were
    /// blocked together do not return together.
    #[default]
    ByActor,
    /// Every block has its full length, for tests.
    Off,
}

impl fmt::Display for Penalty {
    /// Describes it for people: `blocks for 900 s after 5 denials in 60 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks for {} s after {} denials in {} s", self.seconds, self.after, self.window_seconds())
    }
}

impl Penalty {
    /// Returns the length of the window for denials (seconds).
    pub fn window_seconds(&self) -> u64 {
        self.window.unwrap_or(60)
    }

    /// Returns the growth: each block is this many times as long as the one before.
    pub fn growth(&self) -> u64 {
        self.factor.unwrap_or(2)
    }

    /// Returns the length of the longest block (seconds).
    pub(crate) fn max_seconds(&self) -> u64 {
        self.max.unwrap_or(DAY.max(self.seconds))
    }

    /// Returns the time after a block until the actor's blocks are forgotten (seconds).
    pub fn forget_seconds(&self) -> u64 {
        self.forget.unwrap_or(DAY)
    }

    /// Returns the full length of an actor's block with this number, from 1 (seconds): `seconds * growth ^ (number - 1)`,
    /// at most [`Penalty::max_seconds`].
    fn length_seconds(&self, number: u32) -> u64 {
        let growth = self.growth().saturating_pow(number.saturating_sub(1));
        self.seconds.saturating_mul(growth).min(self.max_seconds())
    }

    /// Returns the end of the actor's block with this number, from 1, that begins at `begin`.
    pub fn end_of_block(&self, actor: &str, number: u32, begin: Timestamp, jitter: Jitter) -> Timestamp {
        let length = self.length_seconds(number).saturating_mul(NANOS_PER_SECOND);
        let shorter = match jitter {
            Jitter::ByActor => length / 10_000 * (hash(actor, number) % 1_000),
            Jitter::Off => 0,
        };
        begin.plus(length - shorter)
    }
}

/// Returns the same number for an actor's block on every server.
fn hash(actor: &str, number: u32) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(actor.as_bytes());
    hasher.write_u32(number);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::NANOS_PER_SECOND;
    use crate::rules::MAX_RESET_SECONDS;
    use proptest::prelude::*;

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
            let is_lease = algorithm == Kind::Concurrency;
            let no_leases = Quota::Limited(Limit::new(Kind::Concurrency, 0, 0, 60 * NANOS_PER_SECOND).unwrap());
            assert_eq!(with(algorithm, 0, 60).quota(), Ok(if is_lease { no_leases } else { Quota::Never }));
            match with(algorithm, 7_000, 0).quota() {
                Ok(always) => assert_eq!((always, is_lease), (Quota::Always { credit: 7_000 }, false)),
                Err(errors) => assert_eq!((errors[0].setting, is_lease), (RESET_SECONDS, true)),
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
    fn largest_settings_fit() {
        let Limit::FixedWindow(limit) = limit(settings(MAX_CREDIT_LIMIT, MAX_RESET_SECONDS)) else {
            panic!("the default is fixed-window")
        };
        assert_eq!(limit.window_ns.get() / NANOS_PER_SECOND, MAX_RESET_SECONDS);
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
            assert!(errors[0].to_string().contains("from 1 to 2592000"), "{}", errors[0]);
            assert_eq!((errors.len(), errors[0].setting), (1, "resetSeconds"));
        }
        assert_eq!(with(longest).to_string(), "allows 10 concurrent requests, each for 2592000 s (concurrency)");
        let one = Settings { credit_limit: 1, ..with(longest) };
        assert_eq!(one.to_string(), "allows 1 concurrent request, for 2592000 s (concurrency)");
    }

    #[test]
    fn nanoseconds_saturate() {
        assert_eq!(Seconds(Duration::new(1, 5)).as_nanos(), 1_000_000_005);
        assert_eq!(Seconds::whole(u64::MAX).as_nanos(), u64::MAX);
    }

    const MINUTE: u64 = 60;

    fn penalty(seconds: u64, factor: u64, max: u64) -> Penalty {
        Penalty { after: 5, window: None, seconds, factor: Some(factor), max: Some(max), forget: None }
    }

    #[test]
    fn blocks_grow_by_the_factor_up_to_the_maximum() {
        let lengths =
            |penalty: Penalty| [1, 2, 3, 4, 5, u32::MAX].map(|number| penalty.length_seconds(number) / MINUTE);
        assert_eq!(lengths(penalty(15 * MINUTE, 2, 100 * MINUTE)), [15, 30, 60, 100, 100, 100]);
        assert_eq!(lengths(penalty(15 * MINUTE, 1, 100 * MINUTE)), [15; 6]);
        let defaults = Penalty { factor: None, max: None, ..penalty(DAY * 2, 2, 0) };
        assert_eq!(defaults.length_seconds(3), DAY * 2, "the longest block is never shorter than the first");
    }

    proptest! {
        #[test]
        fn jitter_shortens_a_block_by_at_most_a_tenth(
            seconds in 1..MAX_RESET_SECONDS, factor in 1..=MAX_BLOCK_FACTOR, number in 1..40u32, actor in ".{0,20}",
        ) {
            let penalty = penalty(seconds, factor, MAX_RESET_SECONDS);
            let begin = Timestamp::from_secs(1_800_000_000).unwrap();
            let full = penalty.end_of_block(&actor, number, begin, Jitter::Off);
            let length = full.since(begin);
            prop_assert_eq!(length, penalty.length_seconds(number) * NANOS_PER_SECOND);
            let shorter = penalty.end_of_block(&actor, number, begin, Jitter::ByActor);
            prop_assert!(shorter <= full && shorter.since(begin) >= length - length / 10);
            prop_assert!(penalty.length_seconds(number + 1) >= penalty.length_seconds(number));
            prop_assert_eq!(shorter, penalty.end_of_block(&actor, number, begin, Jitter::ByActor));
        }
    }

    #[test]
    fn actors_that_are_blocked_together_return_one_after_the_other() {
        let begin = Timestamp::from_secs(1_800_000_000).unwrap();
        let ends = |actor: u32| penalty(900, 2, DAY).end_of_block(&actor.to_string(), 1, begin, Jitter::ByActor);
        let different: std::collections::HashSet<_> = (0..100).map(ends).collect();
        assert!(different.len() > 80, "{} different ends", different.len());
    }
}
