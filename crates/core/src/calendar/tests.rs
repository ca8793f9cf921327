//! Windows in selected zones at selected moments. tests/calendar.rs compares many more with Python's `zoneinfo`.

use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    stamp(text.parse::<jiff::Timestamp>().unwrap())
}

fn calendar(unit: Unit, zone: &str, reset_at: &str) -> Calendar {
    Calendar::new(unit, zone, time_of_day(reset_at).unwrap()).unwrap()
}

/// The unit, the zone, the start of days, a moment, and the window that contains it.
const WINDOWS: [&str; 36] = [
    // A day may have 23 or 25 hours. It contains its first moment, and the moment of its end belongs to the next one.
    "day Europe/Berlin 00:00 2026-03-29T12:00:00Z 2026-03-28T23:00:00Z 2026-03-29T22:00:00Z",
    "day Europe/Berlin 00:00 2026-10-25T12:00:00Z 2026-10-24T22:00:00Z 2026-10-25T23:00:00Z",
    "day Europe/Berlin 00:00 2026-10-24T22:00:00Z 2026-10-24T22:00:00Z 2026-10-25T23:00:00Z",
    "day Europe/Berlin 00:00 2026-10-25T23:00:00Z 2026-10-25T23:00:00Z 2026-10-26T23:00:00Z",
    // Weeks begin on Monday, months on the first, and years on New Year.
    "week UTC 00:00 2026-11-22T10:00:00Z 2026-11-16T00:00:00Z 2026-11-23T00:00:00Z",
    "month UTC 00:00 2028-02-29T23:59:59Z 2028-02-01T00:00:00Z 2028-03-01T00:00:00Z",
    "year UTC 00:00 2026-11-22T10:00:00Z 2026-01-01T00:00:00Z 2027-01-01T00:00:00Z",
    "minute UTC 00:00 2026-11-22T10:00:59.9Z 2026-11-22T10:00:00Z 2026-11-22T10:01:00Z",
    "second UTC 00:00 2026-11-22T10:00:59.9Z 2026-11-22T10:00:59Z 2026-11-22T10:01:00Z",
    // A number of days is counted from the epoch, a Thursday.
    "7-days UTC 00:00 1970-01-14T23:59:59Z 1970-01-08T00:00:00Z 1970-01-15T00:00:00Z",
    "7-days UTC 00:00 2026-11-26T00:00:00Z 2026-11-26T00:00:00Z 2026-12-03T00:00:00Z",
    "30-days UTC 00:00 1970-01-31T00:00:00Z 1970-01-31T00:00:00Z 1970-03-02T00:00:00Z",
    "30-days UTC 00:00 2026-11-30T12:00:00Z 2026-11-03T00:00:00Z 2026-12-03T00:00:00Z",
    "365-days UTC 00:00 1972-12-30T23:59:59Z 1972-01-01T00:00:00Z 1972-12-31T00:00:00Z",
    "365-days UTC 00:00 2026-11-30T12:00:00Z 2025-12-18T00:00:00Z 2026-12-18T00:00:00Z",
    // Days may begin at another time.
    "month America/New_York 06:00 2026-07-01T09:59:59Z 2026-06-01T10:00:00Z 2026-07-01T10:00:00Z",
    "month America/New_York 06:00 2026-07-01T10:00:00Z 2026-07-01T10:00:00Z 2026-08-01T10:00:00Z",
    // A day begins right after a gap. The clocks go from 02:00 to 03:00.
    "day Europe/Berlin 02:30 2026-03-29T12:00:00Z 2026-03-29T01:00:00Z 2026-03-30T00:30:00Z",
    "day Europe/Berlin 02:00 2026-03-29T12:00:00Z 2026-03-29T01:00:00Z 2026-03-30T00:00:00Z",
    "day Europe/Berlin 03:00 2026-03-29T12:00:00Z 2026-03-29T01:00:00Z 2026-03-30T01:00:00Z",
    "day America/New_York 02:30 2026-03-08T12:00:00Z 2026-03-08T07:00:00Z 2026-03-09T06:30:00Z",
    // The clocks go from midnight to 01:00.
    "day America/Santiago 00:00 2026-09-06T12:00:00Z 2026-09-06T04:00:00Z 2026-09-07T03:00:00Z",
    "day America/Santiago 00:30 2026-09-06T12:00:00Z 2026-09-06T04:00:00Z 2026-09-07T03:30:00Z",
    "day Africa/Cairo 00:45 2026-04-24T12:00:00Z 2026-04-23T22:00:00Z 2026-04-24T21:45:00Z",
    // The clocks go from 02:00 to 02:30.
    "day Australia/Lord_Howe 02:15 2026-10-04T01:00:00Z 2026-10-03T15:30:00Z 2026-10-04T15:15:00Z",
    // The week begins on a Monday whose midnight is skipped.
    "week Asia/Tehran 00:30 2021-03-23T12:00:00Z 2021-03-21T20:30:00Z 2021-03-28T20:00:00Z",
    // The zone skips a day.
    "day Pacific/Apia 00:00 2011-12-30T09:00:00Z 2011-12-29T10:00:00Z 2011-12-30T10:00:00Z",
    "day Pacific/Apia 00:00 2011-12-30T10:00:00Z 2011-12-30T10:00:00Z 2011-12-31T10:00:00Z",
    // The clocks only show the last six hours of the day that begins at 06:00, after the next midnight.
    "day Pacific/Apia 06:00 2011-12-30T09:59:59Z 2011-12-29T16:00:00Z 2011-12-30T10:00:00Z",
    "day Pacific/Apia 06:00 2011-12-30T10:00:00Z 2011-12-30T10:00:00Z 2011-12-30T16:00:00Z",
    "day Pacific/Apia 06:00 2011-12-30T16:00:00Z 2011-12-30T16:00:00Z 2011-12-31T16:00:00Z",
    // An hour ends when the clocks show another one, or are set back: it is 01:45 for the second time.
    "hour Asia/Kathmandu 00:00 2026-11-22T10:00:00Z 2026-11-22T09:15:00Z 2026-11-22T10:15:00Z",
    "hour Australia/Lord_Howe 00:00 2026-04-04T14:59:59Z 2026-04-04T14:00:00Z 2026-04-04T15:00:00Z",
    "hour Australia/Lord_Howe 00:00 2026-04-04T15:15:00Z 2026-04-04T15:00:00Z 2026-04-04T15:30:00Z",
    // The clocks go from 02:30 to 03:00.
    "hour America/Caracas 00:00 2016-05-01T06:59:59Z 2016-05-01T06:30:00Z 2016-05-01T07:00:00Z",
    "hour America/Caracas 00:00 2016-05-01T07:00:00Z 2016-05-01T07:00:00Z 2016-05-01T08:00:00Z",
];

#[test]
fn windows_follow_the_clocks_of_their_zones() {
    for row in WINDOWS {
        let [unit, zone, reset_at, moment, starts, ends] = row.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let calendar = Calendar::parse(&format!("{unit} {reset_at} {zone}")).unwrap();
        let window = Window { starts: at(starts), ends: at(ends) };
        assert_eq!(calendar.windows(at(moment))[0], window, "{row}");
        // The window before ends there, without a gap or an overlap.
        let [last, next] = calendar.windows(window.starts.minus(1));
        assert_eq!((last.ends, next), (window.starts, window), "{row}");
    }
}

/// The clock shows [`Timestamp::MAX`] if the machine's is set past the year 2554.
#[test]
fn windows_are_correct_after_a_query_for_the_last_time() {
    for unit in Unit::ALL {
        let calendar = calendar(unit, "Europe/Berlin", "01:23");
        let [last, next] = calendar.windows(Timestamp::MAX);
        assert_eq!((last, last.ends), (next, Timestamp::MAX), "{unit:?}");
        assert!(at("2553-08-01T00:00:00Z") <= last.starts, "{unit:?} {last:?}");
        let now = at("2026-11-22T10:00:00Z");
        let [present, next] = calendar.windows(now);
        assert!(present.has(now) && next.starts == present.ends && next.ends < at("2028-01-02T00:00:00Z"), "{unit:?}");
    }
}

#[test]
fn equal_calendars_are_identical_and_parse_back() {
    let one = calendar(Unit::Day, "europe/BERLIN", "06:05");
    assert_eq!(one, calendar(Unit::Day, "Europe/Berlin", "06:05"));
    assert_eq!(one.to_string(), "day 06:05 Europe/Berlin");
    assert_eq!((Calendar::parse("day 06:05 Europe/Berlin"), Calendar::of(one.id())), (Some(one), Some(one)));
    assert_ne!(one, calendar(Unit::Day, "Europe/Berlin", "06:06"));
    for wrong in ["", "day", "day 06:05", "eon 06:05 UTC", "day 6:05 UTC", "day 24:00 UTC", "day 06:05 Europe/Atlantis"]
    {
        assert_eq!(Calendar::parse(wrong), None, "{wrong}");
    }
    assert_eq!(Calendar::new(Unit::Day, "Atlantis", Time::midnight()), None);
}

proptest! {
    #[test]
    fn windows_follow_each_other_without_a_gap(
        unit in prop::sample::select(&Unit::ALL[..]),
        zone in prop::sample::select(vec![
            "UTC", "Europe/Berlin", "Pacific/Apia", "America/Havana", "America/Santiago", "Africa/Casablanca",
        ]),
        minute in 0..1440i32,
        // Up to the year 2500.
        second in 0..16_725_225_600u64,
    ) {
        let reset_at = Time::midnight().checked_add(minute.minutes()).unwrap();
        let calendar = Calendar::new(unit, zone, reset_at).unwrap();
        let at = Timestamp::from_secs(second).unwrap();
        let window = calendar.compute(at);
        prop_assert!(window.has(at), "{:?} {:?}", window, at);
        let last = Timestamp::from_nanos(window.ends.as_nanos() - 1);
        prop_assert_eq!(calendar.compute(last).ends, window.ends);
        let next = calendar.compute(window.ends);
        prop_assert!(next.has(window.ends));
        prop_assert_eq!(next.starts, window.ends);
    }
}

#[test]
fn files_next_to_the_zones_are_none() {
    for name in ["localtime", "Localtime", "posixrules", "Factory", "leapseconds", "local", "posix/Europe/Berlin"] {
        assert!(Calendar::new(Unit::Day, name, Time::midnight()).is_none(), "{name}");
    }
}
