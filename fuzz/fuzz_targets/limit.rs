//! Generates limits of all algorithms, and any requests to their counters.

#![allow(dead_code, reason = "each target uses its part")]

use divvy::algorithm::{Ask, CalendarId, CalendarWindow, CountBasis, InvalidLimit, Kind, Limit, ReservationAsk, Run};
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
    let (credits, other, time_ns) = (read_number(input)?, read_number(input)?, read_number(input)?);
    if input.ratio(1, 7)? {
        let seconds = u32::try_from(time_ns / 1_000_000_000).unwrap_or(u32::MAX);
        return Ok(CalendarWindow::new(credits, CalendarId(0)).map(|limit| {
            Limit::CalendarWindow(CalendarWindow { ends: Timestamp::from_nanos(other), seconds, ..limit })
        }));
    }
    Ok(Limit::new(*input.choose(&Kind::ALL)?, credits, other, time_ns))
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
    let (kind, cost, strict) = (input.int_in_range(0..=8_u8)?, read_number(input)?, input.arbitrary()?);
    Ok(match kind {
        0 => Ask::Look { cost },
        1 => Ask::Take { cost },
        2 => Ask::Overdraw { cost },
        3 => Ask::Charge { cost },
        4 => Ask::Refund { cost },
        5 => Ask::Drain { cost, strict },
        6 => Ask::Show,
        7 => Ask::Count { cost },
        _ => Ask::Replay { cost, strict },
    })
}

/// Reads a request to a reservation.
pub fn read_reservation_ask(input: &mut Unstructured) -> Result<ReservationAsk> {
    let (kind, number, seconds) = (input.int_in_range(0..=3_u8)?, read_number(input)?, read_number(input)?);
    // The limiter rejects other TTLs.
    let ttl_seconds = u32::try_from(seconds).unwrap_or(u32::MAX).clamp(1, 30 * 24 * 60 * 60);
    // Mostly whichever reservation has the name.
    let run = Run::new(input.int_in_range(0..=2_u32)?);
    Ok(match kind {
        0 => ReservationAsk::Reserve { credits: number.max(1), ttl_seconds },
        1 => ReservationAsk::Commit { cost: number, charges: input.arbitrary()?, run },
        2 => ReservationAsk::Release { run },
        _ => ReservationAsk::Renew { ttl_seconds: input.arbitrary::<bool>()?.then_some(ttl_seconds), run },
    })
}
