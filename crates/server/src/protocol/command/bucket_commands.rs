//! Commands with their own limit: `RL.*`, as in Smyte's limiter, `CL.THROTTLE`, as in redis-cell, and `INCREX`, as in Valkey.
//!
//! Numbers are signed, like Redis's, and refused if they make no sense. Times beyond 584 years, the maximum for nanoseconds,
//! count as 584 years.

use super::connection_commands::{ParseResult, integer};
use super::{Command, CommandError};
use crate::protocol::resp::Arguments;
use divvy_core::algorithm::{Ask, Counter, Expiry, LeakyBucket, Limit, TokenBucket};
use divvy_core::clock::{NANOS_PER_MILLI, NANOS_PER_SECOND, Timestamp};

/// A request for a bucket with the client's own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketAsk<'a> {
    /// The client's name for the bucket: any bytes.
    pub key: &'a [u8],
    /// Part of the bucket's identity.
    pub limit: Limit,
    /// The action on the bucket, and its cost in tokens.
    pub ask: Ask,
    /// The client's time; `None` for the server's.
    pub at: Option<Timestamp>,
}

/// The action of an `RL.*` command, without its unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Reduce,
    Get,
    /// Takes tokens, always strictly.
    Sessionize,
}

/// The given options of an `RL.*` command.
#[derive(Debug, Default)]
struct Options {
    refill: Option<u64>,
    take: Option<u64>,
    at: Option<Timestamp>,
    strict: bool,
}

/// Parses `key max refilltime [REFILL n] [TAKE n] [AT time] [STRICT]`, with times in units of `unit_ns`.
pub(super) fn token_bucket(arguments: Arguments<'_>, unit_ns: u64, verb: Verb) -> ParseResult<'_> {
    let mut words = arguments.iter();
    let key = words.next().ok_or(CommandError::SYNTAX)?;
    let capacity = number(words.next())?;
    let interval_ns = number(words.next())?.saturating_mul(unit_ns);
    let options = options(words, unit_ns, verb)?;

    let refill = options.refill.unwrap_or(capacity);
    let limit = TokenBucket::new(capacity, refill, interval_ns).map_err(|_| CommandError::NOT_AN_INTEGER)?;
    let (cost, strict) = match verb {
        Verb::Get => (0, false),
        Verb::Reduce => (options.take.unwrap_or(1), options.strict),
        Verb::Sessionize => (options.take.unwrap_or(1), true),
    };
    let ask = match options.at {
        None => Ask::Drain { cost, strict },
        Some(_) => Ask::Replay { cost, strict },
    };
    let asked = BucketAsk { key, limit: Limit::TokenBucket(limit), ask, at: options.at };
    Ok(if verb == Verb::Sessionize { Command::Session(asked) } else { Command::Tokens(asked) })
}

/// Reads the options, each at most once, in any order and case. `RL.GET` takes no tokens, so it has fewer.
fn options<'a>(mut words: impl Iterator<Item = &'a [u8]>, unit_ns: u64, verb: Verb) -> Result<Options, CommandError> {
    let mut options = Options::default();
    while let Some(word) = words.next() {
        let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
        if is("REFILL") && options.refill.is_none() {
            options.refill = Some(number(words.next())?);
        } else if is("AT") && options.at.is_none() {
            let nanos = number(words.next())?.checked_mul(unit_ns).ok_or(CommandError::NOT_AN_INTEGER)?;
            options.at = Some(Timestamp::from_nanos(nanos));
        } else if is("TAKE") && options.take.is_none() && verb != Verb::Get {
            options.take = Some(number(words.next())?);
        } else if is("STRICT") && !options.strict && verb != Verb::Get {
            options.strict = true;
        } else {
            return Err(CommandError::SYNTAX);
        }
    }
    Ok(options)
}

/// Parses `key max_burst count period [quantity]`, with the period in seconds.
pub(super) fn throttle(arguments: Arguments<'_>) -> ParseResult<'_> {
    let mut words = arguments.iter();
    let key = words.next().ok_or(CommandError::SYNTAX)?;
    let max_burst = number(words.next())?;
    let count = number(words.next())?;
    let seconds = number(words.next())?;
    let quantity = words.next().map_or(Ok(1), |word| number(Some(word)))?;
    if words.next().is_some() {
        return Err(CommandError::wrong_arity("cl.throttle"));
    }
    let (count, period_ns) = rate(count, seconds);
    let limit = LeakyBucket::new(max_burst.saturating_add(1), count, period_ns);
    let limit = Limit::LeakyBucket(limit.map_err(|_| CommandError::NOT_AN_INTEGER)?);
    let ask = if quantity == 0 { Ask::Look { cost: 0 } } else { Ask::Take { cost: quantity } };
    Ok(Command::Throttle(BucketAsk { key, limit, ask, at: None }))
}

/// Converts `count` per `seconds` to a count per nanoseconds. A period beyond the maximum for nanoseconds becomes the maximum,
/// with its share of the count, rounded down but at least 1, so that the rate stays the same.
fn rate(count: u64, seconds: u64) -> (u64, u64) {
    let period_ns = u128::from(seconds) * u128::from(NANOS_PER_SECOND);
    match u64::try_from(period_ns) {
        Ok(period_ns) => (count, period_ns),
        Err(_) => {
            let share = u128::from(count) * u128::from(u64::MAX) / period_ns;
            (u64::try_from(share).unwrap_or(u64::MAX).max(count.min(1)), u64::MAX)
        }
    }
}

/// The options of `INCREX` with a time: their unit (milliseconds), and whether it is a span.
const EXPIRIES: [(&str, i64, bool); 4] =
    [("EX", 1_000, true), ("PX", 1, true), ("EXAT", 1_000, false), ("PXAT", 1, false)];

/// The longest span until a counter expires: 500 years. So it ends before the last time, which stands for no expiry.
const LONGEST_EXPIRY_NS: u64 = 500 * 365 * 24 * 60 * 60 * NANOS_PER_SECOND;

/// Parses `key [BYINT n] [LBOUND n] [UBOUND n] [SATURATE] [EX s | PX ms | EXAT s | PXAT ms | PERSIST] [ENX]`. As in Valkey, the
/// values are read after the options.
pub(super) fn increment(arguments: Arguments<'_>) -> ParseResult<'_> {
    let mut words = arguments.iter();
    let key = words.next().ok_or(CommandError::SYNTAX)?;
    let (mut by, mut lower, mut upper, mut time, mut unit) = (None, None, None, None, None);
    let (mut saturates, mut keeps_expiry, mut persists) = (false, false, false);
    while let Some(word) = words.next() {
        let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
        let value = if is("BYINT") {
            &mut by
        } else if is("LBOUND") {
            &mut lower
        } else if is("UBOUND") {
            &mut upper
        } else if let Some(expiry) = EXPIRIES.iter().find(|(option, ..)| is(option)) {
            unit = Some(expiry);
            &mut time
        } else {
            let flag = if is("SATURATE") {
                &mut saturates
            } else if is("ENX") {
                &mut keeps_expiry
            } else if is("PERSIST") {
                &mut persists
            } else {
                return Err(CommandError::SYNTAX);
            };
            if std::mem::replace(flag, true) {
                return Err(CommandError::SYNTAX);
            }
            continue;
        };
        if value.replace(words.next().ok_or(CommandError::SYNTAX)?).is_some() {
            return Err(CommandError::SYNTAX);
        }
    }
    if persists && (keeps_expiry || time.is_some()) {
        return Err(CommandError::SYNTAX);
    }
    if keeps_expiry && time.is_none() {
        return Err(CommandError::fixed("ERR ENX flag requires an expiration"));
    }
    let signed = |word: Option<&[u8]>, usual, error| {
        word.map_or(Ok(usual), |word| integer(word).ok_or(CommandError::fixed(error)))
    };
    let by = signed(by, 1, "ERR Increment is not an integer or out of range")?;
    let lower = signed(lower, i64::MIN, "ERR LBOUND is not an integer or out of range")?;
    let upper = signed(upper, i64::MAX, "ERR UBOUND is not an integer or out of range")?;
    if lower > upper {
        return Err(CommandError::fixed("ERR LBOUND can't be greater than UBOUND"));
    }
    let expiry = match unit.zip(time) {
        Some(((_, unit_ms, true), time)) => Expiry::After(expiry_ns(time, *unit_ms)?.min(LONGEST_EXPIRY_NS)),
        Some(((_, unit_ms, false), time)) => Expiry::At(Timestamp::from_nanos(expiry_ns(time, *unit_ms)?)),
        None if persists => Expiry::At(Timestamp::MAX),
        None => Expiry::Keep,
    };
    let limit = Limit::Counter(Counter { lower, upper, saturates, expiry, keeps_expiry });
    Ok(Command::Increment(BucketAsk { key, limit, ask: Ask::Add { by }, at: None }))
}

/// Parses the time of an expiry. The last nanosecond stands for no expiry, so a later time becomes the one before.
fn expiry_ns(time: &[u8], unit_ms: i64) -> Result<u64, CommandError> {
    let number = integer(time).ok_or(CommandError::NOT_AN_INTEGER)?;
    let millis = number.checked_mul(unit_ms).and_then(|millis| u64::try_from(millis).ok()).filter(|millis| *millis > 0);
    let millis = millis.ok_or(CommandError::fixed("ERR invalid expire time in 'increx' command"))?;
    Ok(millis.saturating_mul(NANOS_PER_MILLI).min(u64::MAX - 1))
}

/// Parses a number that is not negative.
fn number(word: Option<&[u8]>) -> Result<u64, CommandError> {
    let number = integer(word.ok_or(CommandError::SYNTAX)?).ok_or(CommandError::NOT_AN_INTEGER)?;
    u64::try_from(number).map_err(|_| CommandError::NOT_AN_INTEGER)
}

#[cfg(test)]
mod tests;
