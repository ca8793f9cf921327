"""Prints the beginning and end of calendar windows according to Python's zoneinfo, one per line: "zone unit HH:MM at starts ends".

Boundaries of days and longer are listed for all years first and then searched, which is another way than divvy's.
"""

import bisect
import datetime
import os
import zoneinfo

ZONES = """
Africa/Cairo Africa/Casablanca Africa/Johannesburg America/Argentina/Buenos_Aires America/Caracas America/Havana
America/Los_Angeles America/New_York America/Santiago America/Sao_Paulo America/St_Johns Antarctica/Troll Asia/Amman
Asia/Gaza Asia/Kathmandu Asia/Kolkata Asia/Pyongyang Asia/Shanghai Asia/Tehran Asia/Tokyo Atlantic/Azores
Australia/Lord_Howe Australia/Sydney Europe/Berlin Europe/Dublin Europe/London Europe/Moscow Pacific/Apia
Pacific/Chatham Pacific/Kwajalein UTC
""".split()
# Offsets of a half hour, changes by a half hour, by a day, at midnight and twice in a winter, and no changes at all.
FEW_ZONES = """
Africa/Casablanca America/Havana America/New_York Asia/Kathmandu Australia/Lord_Howe Europe/Dublin Pacific/Apia UTC
""".split()
FIRST, LAST = 1985, 2045
DAY = 86_400


def utc_seconds(local):
    """Returns the first moment when the clocks show this time or a later one."""
    late, early = int(local.timestamp()), int(local.replace(fold=1).timestamp())
    # In a gap, fold=0 has the offset before it, and so comes after it. Otherwise fold=0 is the first of two.
    return change(local.tzinfo, early, late) if early < late else late


def change(zone, low, high):
    """Returns the first moment of the new offset."""
    before = offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset(zone, middle) == before else (low, middle)
    return high


def first_days(unit):
    day = datetime.date(FIRST - 1, 1, 1)
    while day.year <= LAST + 1:
        is_first = {
            "day": True,
            "week": day.weekday() == 0,
            "month": day.day == 1,
            "year": day.day == 1 and day.month == 1,
        }
        if is_first[unit]:
            yield day
        day += datetime.timedelta(days=1)


def offset(zone, at):
    return int(datetime.datetime.fromtimestamp(at, zone).utcoffset().total_seconds())


def moments(zone):
    """Around each change of the offset, each new year and each end of February; and a few days of each year. And the
    changes."""
    begin = int(datetime.datetime(FIRST, 1, 1, tzinfo=datetime.timezone.utc).timestamp())
    end = int(datetime.datetime(LAST, 1, 1, tzinfo=datetime.timezone.utc).timestamp())
    found, changes = set(), []
    for at in range(begin, end, DAY):
        if offset(zone, at) != offset(zone, at + DAY):
            changed = change(zone, at, at + DAY)
            changes.append(changed)
            found.update(changed + step for step in (-DAY, -3601, -1801, -1, 0, 1, 1799, 1800, 3600, 5400, DAY))
    for year in range(FIRST, LAST):
        for month, day in ((1, 1), (2, 28), (3, 1), (6, 17), (12, 31)):
            midnight = utc_seconds(datetime.datetime(year, month, day, tzinfo=zone))
            found.update(midnight + step for step in (-1, 0, 6 * 3600 - 1, 6 * 3600, 12 * 3600))
    return sorted(at for at in found if begin <= at < end), changes


def main():
    for name in ZONES if os.environ.get("DIVVY_TEST_ZONES") == "all" else FEW_ZONES:
        zone = zoneinfo.ZoneInfo(name)
        asked, changes = moments(zone)
        for unit, length in (("minute", 60), ("hour", 3600)):
            for at in asked:
                east = offset(zone, at)
                starts = (at + east) // length * length - east
                place = bisect.bisect_right(changes, at)
                last, following = ([0] + changes)[place], (changes + [2**62])[place]
                print(name, unit, "00:00", at, max(starts, last), min(starts + length, following))
        for unit in ("day", "week", "month", "year"):
            for reset_at in (datetime.time(0), datetime.time(2, 30), datetime.time(6)):
                local = (datetime.datetime.combine(day, reset_at, zone) for day in first_days(unit))
                boundaries = sorted({utc_seconds(boundary) for boundary in local})
                for at in asked:
                    place = bisect.bisect_right(boundaries, at)
                    print(name, unit, reset_at.strftime("%H:%M"), at, boundaries[place - 1], boundaries[place])


main()
