//! Generates any of the seven limits, and any requests to their counters.

#![allow(dead_code, reason = "each target uses its part")]

use divvy::algorithm::{
    Ask, CalendarId, CalendarWindow, Concurrency, CountBasis, FixedWindow, InvalidLimit, LeakyBucket, Limit,
    ReservationAsk, SlidingLog, SlidingWindow, TokenBucket,
};
use divvy::clock::Timestamp;
use libfuzzer_sys::arbitrary::{Error, Result, Unstructured};

/// Reads a limit.
pub fn read_limit(input: &mut Unstructured) -> Result<Limit> {
    let limit = valid_limit(input)?.map_err(|_| Error::IncorrectFormat)?;
    let limit = if input.arbitrary()? { limit.counting(CountBasis::Used) } else { limit };
    if input.ratio(1, 4)? {
        let other = valid_limit(input)?.map_err(|_| Error::IncorrectFormat)?;
        return Ok(limit.share_counter_with(&other));
    }
    Ok(limit)
}

fn valid_limit(input: &mut Unstructured) -> Result<std::result::Result<Limit, InvalidLimit>> {
    let kind = input.int_in_range(0..=7_u8)?;
    let (credits, other, time_ns) = (read_number(input)?, read_number(input)?, read_number(input)?);
    let seconds = u32::try_from(time_ns / 1_000_000_000).unwrap_or(u32::MAX);
    Ok(match kind {
        0 => FixedWindow::new(credits, time_ns).map(Limit::FixedWindow),
        1 => SlidingWindow::new(credits, time_ns).map(Limit::SlidingWindow),
        2 => SlidingLog::new(credits, time_ns).map(Limit::SlidingLog),
        3 => TokenBucket::new(credits, other, time_ns).map(Limit::TokenBucket),
        4 => LeakyBucket::new(credits, other, time_ns).map(Limit::LeakyBucket),
        5 => Concurrency::new(credits, seconds).map(Limit::Concurrency),
        _ => CalendarWindow::new(credits, CalendarId(0)).map(|limit| {
            Limit::CalendarWindow(CalendarWindow { ends: Timestamp::from_nanos(other), seconds, ..limit })
        }),
    })
}

/// Reads a number. Small ones and ones near a power of two are equally likely.
pub fn read_number(input: &mut Unstructured) -> Result<u64> {
    if input.arbitrary()? {
        return input.int_in_range(0..=20);
    }
    let power = 1_u64 << input.int_in_range(0..=63_u32)?;
    Ok(power.wrapping_add_signed(input.arbitrary::<i8>()?.into()))
}

/// Reads a request to a counter.
pub fn read_ask(input: &mut Unstructured) -> Result<Ask> {
    let (kind, cost, strict) = (input.int_in_range(0..=6_u8)?, read_number(input)?, input.arbitrary()?);
    Ok(match kind {
        0 => Ask::Look { cost },
        1 => Ask::Take { cost },
        2 => Ask::Overdraw { cost },
        3 => Ask::Charge { cost },
        4 => Ask::Refund { cost },
        5 => Ask::Drain { cost, strict },
        6 => Ask::Show,
        _ => Ask::Replay { cost, strict },
    })
}

/// Reads a request to a reservation.
pub fn read_reservation_ask(input: &mut Unstructured) -> Result<ReservationAsk> {
    let (kind, number, seconds) = (input.int_in_range(0..=3_u8)?, read_number(input)?, read_number(input)?);
    // The limiter rejects other times.
    let ttl_seconds = u32::try_from(seconds).unwrap_or(u32::MAX).clamp(1, 30 * 24 * 60 * 60);
    Ok(match kind {
        0 => ReservationAsk::Reserve { credits: number.max(1), ttl_seconds },
        1 => ReservationAsk::Commit { cost: number, charges: input.arbitrary()? },
        2 => ReservationAsk::Release,
        _ => ReservationAsk::Renew { ttl_seconds: input.arbitrary::<bool>()?.then_some(ttl_seconds) },
    })
}
