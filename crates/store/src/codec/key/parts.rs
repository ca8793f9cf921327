//! Reads keys.

use super::prefix::{CALENDAR_WINDOW, kind_of};
use super::space::Space;
use crate::codec::leb128::{read_bytes, read_number};
use crate::codec::version::VERSION;
use divvy_core::algorithm::{CalendarWindow, CountBasis, Kind, Limit};
use divvy_core::calendar::Calendar;
use divvy_core::clock::NANOS_PER_SECOND;

/// The parts of a key, except its limit.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyParts<'a> {
    /// The kind of name.
    pub space: Space,
    /// The operation, sorted by key.
    pub pairs: Vec<(&'a str, &'a str)>,
    /// The actor, or a client's own key. Empty if the rule has one counter.
    pub actor: &'a [u8],
}

/// Decodes a key. Returns `None` if this module did not write it.
pub fn decode(key: &[u8]) -> Option<KeyParts<'_>> {
    let mut pairs = Vec::new();
    let (space, _, actor) = read(key, |key, value| pairs.push((key, value)), |_| None)?;
    Some(KeyParts { space, pairs, actor })
}

/// Returns a key without its actor, and the limit in it. For a named counter and for leases, the limit only describes
/// the form of their states. The limit is `None` if this process does not have its calendar, because a client may have
/// invented the key.
///
/// Returns `None` if this module did not write the key.
pub fn split_limit(key: &[u8]) -> Option<(&[u8], Option<Limit>)> {
    let (_, limit, actor) = read(key, |_, _| (), Calendar::find)?;
    Some((key.strip_suffix(actor)?, limit))
}

/// Returns the same as [`split_limit`] for a key that a server has stored. Its calendar is loaded if no rule has loaded
/// it yet.
pub fn split_stored_limit(key: &[u8]) -> Option<(&[u8], Limit)> {
    let (_, limit, actor) = read(key, |_, _| (), Calendar::parse)?;
    Some((key.strip_suffix(actor)?, limit?))
}

/// Reads a key, and passes its pairs to `pair`. The limit is `None` if `find_calendar` does not find its calendar.
fn read<'a>(
    key: &'a [u8],
    mut pair: impl FnMut(&'a str, &'a str),
    find_calendar: impl FnOnce(&str) -> Option<Calendar>,
) -> Option<(Space, Option<Limit>, &'a [u8])> {
    let [VERSION, tag, space, rest @ ..] = key else { return None };
    let (tag, mut rest) = (*tag, rest);
    let space = Space::ALL.into_iter().find(|known| *known as u8 == *space)?;
    for _ in 0..read_number(&mut rest)? {
        pair(read_text(&mut rest)?, read_text(&mut rest)?);
    }
    let is_named = space.is_named();
    let kind = kind_of(tag);
    // Named counters and leases have no credits in their keys.
    let credits = if is_named || kind == Some(Kind::Concurrency) { 1 } else { read_number(&mut rest)? };
    let limit = if tag == CALENDAR_WINDOW {
        let calendar = read_text(&mut rest).filter(|text| Calendar::is_text(text))?;
        find_calendar(calendar)
            .and_then(|calendar| CalendarWindow::new(credits, calendar.id()).ok())
            .map(Limit::CalendarWindow)
    } else {
        Some(read_limit(kind?, credits, is_named, &mut rest)?)
    };
    let limit = limit.map(|limit| if is_named { limit.counting(CountBasis::Used) } else { limit });
    Some((space, limit, rest))
}

/// Reads the rest of a limit, after its credits. The key of a named counter has no count of a leaky bucket, and may have a refill of 0.
fn read_limit(kind: Kind, credits: u64, is_named: bool, rest: &mut &[u8]) -> Option<Limit> {
    let mut number = || read_number(rest);
    let refill = match kind {
        Kind::TokenBucket => number()?.max(is_named.into()),
        Kind::LeakyBucket if !is_named => number()?,
        _ => 1,
    };
    let time_ns = if kind == Kind::Concurrency { NANOS_PER_SECOND } else { number()? };
    Limit::new(kind, credits, refill, time_ns).ok()
}

fn read_text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    str::from_utf8(read_bytes(from)?).ok()
}
