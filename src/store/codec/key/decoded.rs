//! Reads keys.

use std::borrow::Cow;

use super::space::Space;
use crate::algorithm::{
    CalendarWindow, Concurrency, FixedWindow, LeakyBucket, Limit, SlidingLog, SlidingWindow, Tally, TokenBucket,
};
use crate::calendar::Calendar;
use crate::store::codec::version::VERSION;

/// A key taken apart: everything but the limit.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    pub space: Space,
    /// The operation, sorted by key.
    pub pairs: Vec<(&'a str, &'a str)>,
    pub actor: &'a [u8],
}

/// Takes a key apart; `None` when this module did not write it.
pub fn decode(key: &[u8]) -> Option<Decoded<'_>> {
    let mut pairs = Vec::new();
    let (space, _, actor) = read(key, |key, value| pairs.push((key, value)))?;
    Some(Decoded { space, pairs, actor })
}

impl Decoded<'_> {
    /// What decides about the bucket's slot in a Redis Cluster, where it shares one with others: a value of its actor.
    pub fn slot(&self) -> Option<Cow<'_, [u8]>> {
        match self.space {
            Space::SlotOfActor | Space::NamedInSlotOfActor | Space::DebtInSlotOfActor => {
                Some(Cow::Borrowed(self.actor))
            }
            Space::SlotOfFirstField | Space::NamedInSlotOfFirstField | Space::DebtInSlotOfFirstField => {
                Some(first_value(self.actor))
            }
            Space::Rule | Space::TokenBucket | Space::Throttle | Space::Named | Space::Debt => None,
        }
    }
}

/// The first value of an actor that is made of several fields: `a` of `tenant=a "a key"="b c"`. Strings are bare, or in
/// quotes with a backslash before each quote and backslash.
fn first_value(actor: &[u8]) -> Cow<'_, [u8]> {
    let mut rest = actor;
    read_string(&mut rest);
    rest = rest.strip_prefix(b"=").unwrap_or(rest);
    read_string(&mut rest)
}

fn read_string<'a>(from: &mut &'a [u8]) -> Cow<'a, [u8]> {
    let Some(quoted) = from.strip_prefix(b"\"") else {
        let end = from.iter().position(|byte| matches!(byte, b'=' | b' ')).unwrap_or(from.len());
        let (bare, rest) = from.split_at(end);
        *from = rest;
        return Cow::Borrowed(bare);
    };
    let mut string = Vec::new();
    let mut bytes = quoted.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => break,
            b'\\' => string.extend(bytes.next()),
            byte => string.push(*byte),
        }
    }
    *from = bytes.as_slice();
    Cow::Owned(string)
}

/// A key without its actor, and the limit in it. For a named counter and for leases, the limit says only what their states
/// look like. The limit is `None` if its calendar is not known in this process: a client may have made the key up.
///
/// Returns `None` if this module did not write the key.
pub fn split_limit(key: &[u8]) -> Option<(&[u8], Option<Limit>)> {
    let (space, limit, actor) = read(key, |_, _| ())?;
    Some((key.strip_suffix(actor)?, limit.find(space, Calendar::find)))
}

/// Like [`split_limit`], for a key that a server has stored: its calendar is loaded if no rule has done so yet.
pub fn split_stored_limit(key: &[u8]) -> Option<(&[u8], Limit)> {
    let (space, limit, actor) = read(key, |_, _| ())?;
    Some((key.strip_suffix(actor)?, limit.find(space, Calendar::parse)?))
}

/// A limit as a key has it.
enum KeyLimit<'a> {
    Whole(Limit),
    /// The calendar's text, which may name no calendar.
    OfCalendar {
        credits: u64,
        calendar: &'a str,
    },
}

impl KeyLimit<'_> {
    fn find(self, space: Space, find_calendar: impl FnOnce(&str) -> Option<Calendar>) -> Option<Limit> {
        let limit = match self {
            Self::Whole(limit) => limit,
            Self::OfCalendar { credits, calendar } => {
                Limit::CalendarWindow(CalendarWindow::new(credits, find_calendar(calendar)?.id()).ok()?)
            }
        };
        Some(if space.is_named() { limit.counting(Tally::Used) } else { limit })
    }
}

/// Reads a key, giving its pairs to `pair`.
fn read<'a>(key: &'a [u8], mut pair: impl FnMut(&'a str, &'a str)) -> Option<(Space, KeyLimit<'a>, &'a [u8])> {
    let [VERSION, algorithm, space, rest @ ..] = key else { return None };
    let space = Space::ALL.into_iter().find(|known| *known as u8 == *space)?;
    let mut rest = rest;
    for _ in 0..read_number(&mut rest)? {
        pair(read_text(&mut rest)?, read_text(&mut rest)?);
    }
    let is_named = space.is_named();
    // A named counter has no credits in its key.
    let credits = if is_named || *algorithm == 6 { 1 } else { read_number(&mut rest)? };
    let limit = if *algorithm == 7 {
        let calendar = read_text(&mut rest).filter(|text| Calendar::is_text(text))?;
        KeyLimit::OfCalendar { credits, calendar }
    } else {
        KeyLimit::Whole(read_limit(*algorithm, credits, is_named, &mut rest)?)
    };
    Some((space, limit, rest))
}

/// Reads the rest of a limit after its credits. A named counter's key has no leaky bucket's count, and may have a refill of 0.
fn read_limit(algorithm: u8, credits: u64, is_named: bool, rest: &mut &[u8]) -> Option<Limit> {
    let mut number = || read_number(rest);
    Some(match algorithm {
        1 => Limit::FixedWindow(FixedWindow::new(credits, number()?).ok()?),
        2 => Limit::SlidingWindow(SlidingWindow::new(credits, number()?).ok()?),
        3 => Limit::SlidingLog(SlidingLog::new(credits, number()?).ok()?),
        4 => {
            let refill = number()?.max(is_named.into());
            Limit::TokenBucket(TokenBucket::new(credits, refill, number()?).ok()?)
        }
        5 => {
            let count = if is_named { 1 } else { number()? };
            Limit::LeakyBucket(LeakyBucket::new(credits, count, number()?).ok()?)
        }
        6 => Limit::Concurrency(Concurrency::new(1, 1).ok()?),
        _ => return None,
    })
}

fn read_text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    let length = usize::try_from(read_number(from)?).ok()?;
    let (text, rest) = from.split_at_checked(length)?;
    *from = rest;
    str::from_utf8(text).ok()
}

fn read_number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
