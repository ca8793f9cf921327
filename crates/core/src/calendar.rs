//! Calendars: the second, minute, hour, day, week, month or year that contains a given time in a time zone, and its end.
//!
//! Zone data come from the system, or else from the binary. Each distinct calendar exists once in the process, so that
//! a limit can refer to it by number. This module counts nothing, and reads no clock.
//!
//! A day, week, month or year begins when the zone's clocks first show its first day and the time `resetAt`, or a later
//! time. If they skip that time, it begins right after the gap. If they show it twice, it begins the first time. Weeks
//! begin on Monday. A second, a minute or an hour ends when the clocks show the next one, or are set back. Some units are a
//! number of days, counted from 1970 in UTC: envoyproxy/ratelimit has such weeks, months and years.

use std::fmt;
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use indexmap::IndexMap;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{ToSpan, Zoned};
use parking_lot::RwLock;

use crate::algorithm::{CalendarId, CalendarWindow};
use crate::clock::{NANOS_PER_SECOND, Timestamp};

named_values! {
    /// The unit of a calendar. Its name is the word of the setting `window`.
    Unit {
        /// A second of the zone's clocks.
        Second = "second",
        /// A minute of the zone's clocks.
        Minute = "minute",
        /// An hour of the zone's clocks.
        Hour = "hour",
        /// A civil day. Its length varies when the clocks are changed.
        Day = "day",
        /// Seven civil days, from Monday.
        Week = "week",
        /// A civil month, from its first day.
        Month = "month",
        /// A civil year, from January 1.
        Year = "year",
        /// Seven days in UTC, counted from 1970. They begin on Thursday.
        SevenDays = "7-days",
        /// 30 days in UTC, counted from 1970.
        ThirtyDays = "30-days",
        /// 365 days in UTC, counted from 1970.
        YearOfDays = "365-days",
    }
}

/// Length of a day in UTC (seconds).
const DAY: i64 = 24 * 60 * 60;

impl Unit {
    /// Returns whether the unit begins at a time of day that can be chosen.
    pub(crate) fn has_time_of_day(self) -> bool {
        self.seconds().is_none()
    }

    /// Returns whether the unit is a number of days, which has no zone.
    pub(crate) fn counts_days(self) -> bool {
        matches!(self, Self::SevenDays | Self::ThirtyDays | Self::YearOfDays)
    }

    /// Returns the unit's length in seconds; `None` if that depends on the date.
    fn seconds(self) -> Option<i64> {
        match self {
            Self::Second => Some(1),
            Self::Minute => Some(60),
            Self::Hour => Some(3600),
            Self::SevenDays => Some(7 * DAY),
            Self::ThirtyDays => Some(30 * DAY),
            Self::YearOfDays => Some(365 * DAY),
            Self::Day | Self::Week | Self::Month | Self::Year => None,
        }
    }

    /// Returns the first day of the unit that contains `day`.
    fn first_day(self, day: Date) -> Date {
        match self {
            Self::Week => {
                let since_monday = i32::from(day.weekday().to_monday_zero_offset());
                day.checked_sub(since_monday.days()).unwrap_or(day)
            }
            Self::Month => day.first_of_month(),
            Self::Year => day.first_of_year(),
            _ => day,
        }
    }

    /// Returns the first day of the next unit; `None` after the year 9999.
    fn next(self, first_day: Date) -> Option<Date> {
        let span = match self {
            Self::Week => 1.week(),
            Self::Month => 1.month(),
            Self::Year => 1.year(),
            _ => 1.day(),
        };
        first_day.checked_add(span).ok()
    }
}

/// A unit in a zone, with the time of day when it begins. Equal calendars are identical.
#[derive(Clone, Copy)]
pub struct Calendar(&'static Inner);

struct Inner {
    id: CalendarId,
    unit: Unit,
    zone: String,
    reset_at: Time,
    /// The window of the last request, and the next window. Most requests are for the same window.
    latest: ArcSwap<[Window; 2]>,
}

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The first moment of the window.
    pub starts: Timestamp,
    /// The first moment after the window.
    pub ends: Timestamp,
}

impl Window {
    fn has(&self, at: Timestamp) -> bool {
        self.starts <= at && at < self.ends
    }
}

/// Files next to the zones. They are not zones: they depend on the machine, or on nothing.
const NOT_ZONES: [&str; 4] = ["localtime", "posixrules", "Factory", "leapseconds"];

/// All calendars by their text form. The place of each is its id.
static REGISTRY: LazyLock<RwLock<IndexMap<String, Calendar>>> = LazyLock::new(RwLock::default);

impl Calendar {
    /// Returns the calendar of `unit` in UTC.
    pub fn in_utc(unit: Unit) -> Option<Self> {
        Self::new(unit, "UTC", Time::midnight())
    }

    /// Returns the calendar of `unit` in `zone` (an IANA name, in any case), whose days begin at `reset_at`. `None` if there is no
    /// such zone.
    pub fn new(unit: Unit, zone: &str, reset_at: Time) -> Option<Self> {
        if NOT_ZONES.iter().any(|name| name.eq_ignore_ascii_case(zone)) {
            return None;
        }
        let zone = if unit.counts_days() { "UTC" } else { zone };
        let zone = TimeZone::get(zone).ok()?.iana_name()?.to_owned();
        let text = text(unit, reset_at, &zone);
        let mut registry = REGISTRY.write();
        if let Some(calendar) = registry.get(&text) {
            return Some(*calendar);
        }
        let id = CalendarId(u32::try_from(registry.len()).ok()?);
        // Leaked, because it lives as long as the process. Only operators create calendars, never clients.
        let calendar = Self(Box::leak(Box::new(Inner { id, unit, zone, reset_at, latest: ArcSwap::default() })));
        registry.insert(text, calendar);
        Some(calendar)
    }

    /// Returns the calendar with this id.
    pub fn of(id: CalendarId) -> Option<Self> {
        REGISTRY.read().get_index(id.0 as usize).map(|(_, calendar)| *calendar)
    }

    /// Finds the calendar with this text form, if the process has created it. Reads no zone data, so the text may come
    /// from a client.
    pub fn find(text: &str) -> Option<Self> {
        REGISTRY.read().get(text).copied()
    }

    /// Returns the number of calendars in memory.
    pub fn count() -> usize {
        REGISTRY.read().len()
    }

    /// Returns whether the text has the form of a calendar. Its zone need not exist.
    pub fn is_text(text: &str) -> bool {
        split_text(text).is_some()
    }

    /// Parses a calendar's text form. A new calendar stays in memory, so the text must not come from a client.
    pub fn parse(text: &str) -> Option<Self> {
        Self::find(text).or_else(|| {
            let (unit, reset_at, zone) = split_text(text)?;
            Self::new(unit, zone, reset_at)
        })
    }

    /// Returns the calendar's number, which limits contain. It is valid only in this process.
    pub fn id(self) -> CalendarId {
        self.0.id
    }

    /// Returns the unit of the windows.
    pub fn unit(self) -> Unit {
        self.0.unit
    }

    /// Returns the zone's IANA name, in the spelling of the zone data.
    pub fn zone(self) -> &'static str {
        &self.0.zone
    }

    /// Returns the time of day when windows begin, as `HH:MM`; `None` for units of a fixed length, which do not use it.
    pub fn time_of_day(self) -> Option<String> {
        self.unit().has_time_of_day().then(|| write_time_of_day(self.0.reset_at))
    }

    /// Returns the window that contains `at`, and the next one.
    pub fn windows(self, at: Timestamp) -> [Window; 2] {
        let latest = **self.0.latest.load();
        if latest[0].has(at) {
            return latest;
        }
        let present = self.compute(at);
        let windows = [present, self.compute(present.ends)];
        self.0.latest.store(Arc::new(windows));
        windows
    }

    /// Returns `limit` with the window that contains `at` filled in.
    pub fn dated(self, limit: CalendarWindow, at: Timestamp) -> CalendarWindow {
        let [Window { starts, ends }, _] = self.windows(at);
        let seconds = u32::try_from(ends.since(starts) / NANOS_PER_SECOND).unwrap_or(u32::MAX);
        CalendarWindow { ends, seconds, ..limit }
    }

    fn compute(self, at: Timestamp) -> Window {
        // The zone is read again for each window, because zone data may have been updated.
        let zone = TimeZone::get(&self.0.zone).unwrap_or(TimeZone::UTC);
        let Ok(moment) = jiff::Timestamp::from_nanosecond(i128::from(at.as_nanos())) else { return ALL_TIME };
        let window = match self.0.unit.seconds() {
            Some(seconds) => Some(by_offset(&moment.to_zoned(zone), seconds)),
            None => self.by_date(&moment.to_zoned(zone)),
        };
        window.unwrap_or(ALL_TIME)
    }

    fn by_date(self, now: &Zoned) -> Option<Window> {
        let Inner { unit, reset_at, .. } = *self.0;
        let begins = |day: Date| find_first_moment(day.to_datetime(reset_at), now.time_zone()).map(stamp);
        let at = stamp(now.timestamp());
        // One day earlier, because after the boundary the clocks may show a time before it again.
        let day = now.date().checked_sub(2.days()).ok()?;
        let mut first_day = unit.first_day(day);
        let mut starts = begins(first_day)?;
        loop {
            first_day = unit.next(first_day)?;
            let ends = begins(first_day)?;
            // [`Timestamp::MAX`] stands for the end of time, so a window that ends then contains it.
            if at < ends || ends == Timestamp::MAX {
                return Some(Window { starts, ends });
            }
            starts = ends;
        }
    }
}

/// Returns the first moment when the zone's clocks show `local` or a later time.
fn find_first_moment(local: DateTime, zone: &TimeZone) -> Option<jiff::Timestamp> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    let AmbiguousOffset::Gap { after, .. } = ambiguous.offset() else { return ambiguous.compatible().ok() };
    // With the offset after the gap, a time inside the gap is a moment before it.
    let before_gap = after.to_timestamp(local).ok()?;
    zone.following(before_gap).find(|change| change.offset() == after).map(|change| change.timestamp())
}

/// The window that stands for times beyond the calendar's range.
const ALL_TIME: Window = Window { starts: Timestamp::EPOCH, ends: Timestamp::MAX };

/// Returns the unit of this length on the clocks (seconds). It is shorter if the clocks are set forward or back within it.
fn by_offset(now: &Zoned, seconds: i64) -> Window {
    let (zone, offset) = (now.time_zone(), now.offset());
    let east = i64::from(offset.seconds());
    let starts = (now.timestamp().as_second() + east).div_euclid(seconds) * seconds - east;
    let [starts, ends] = [starts, starts.saturating_add(seconds)]
        .map(|second| jiff::Timestamp::from_second(second).unwrap_or(jiff::Timestamp::MAX));
    let next_change = zone.following(now.timestamp()).take_while(|change| change.timestamp() < ends);
    let next_change = next_change.filter(|change| change.offset() != offset).map(|change| change.timestamp()).next();
    // The current moment may be a transition itself.
    let just_after = now.timestamp().checked_add(1.nanosecond()).unwrap_or(jiff::Timestamp::MAX);
    let before = |at: jiff::Timestamp| at.checked_sub(1.nanosecond()).unwrap_or(jiff::Timestamp::MIN);
    let last_change = zone.preceding(just_after).take_while(|change| change.timestamp() > starts);
    let last_change = last_change.map(|change| change.timestamp()).find(|at| zone.to_offset(before(*at)) != offset);
    Window { starts: stamp(last_change.unwrap_or(starts)), ends: stamp(next_change.unwrap_or(ends)) }
}

/// Converts a time. A time before 1970 becomes the epoch.
fn stamp(at: jiff::Timestamp) -> Timestamp {
    Timestamp::from_nanos(u64::try_from(at.as_nanosecond().max(0)).unwrap_or(u64::MAX))
}

/// Parses `HH:MM`.
pub fn time_of_day(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':')?;
    let number = |digits: &str| {
        let is_number = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse::<i8>().ok()).flatten()
    };
    Time::new(number(hour)?, number(minute)?, 0, 0).ok()
}

/// Writes `HH:MM`.
fn write_time_of_day(time: Time) -> String {
    format!("{:02}:{:02}", time.hour(), time.minute())
}

/// Formats a calendar. Stored keys contain this text, so it must not change.
fn text(unit: Unit, reset_at: Time, zone: &str) -> String {
    format!("{} {} {zone}", unit.name(), write_time_of_day(reset_at))
}

fn split_text(text: &str) -> Option<(Unit, Time, &str)> {
    let (unit, rest) = text.split_once(' ')?;
    let (reset_at, zone) = rest.split_once(' ')?;
    let unit = Unit::ALL.into_iter().find(|known| known.name() == unit)?;
    Some((unit, time_of_day(reset_at)?, zone))
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self.0.unit, self.0.reset_at, &self.0.zone))
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Calendar {}

#[cfg(test)]
mod tests;
