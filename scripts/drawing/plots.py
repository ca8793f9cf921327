"""Draws the plots of docs/performance.md from the benchmark's reports in benches/plots."""

import json
import math

from drawing.svg import Picture

REPORTS = "benches/plots"
# Subjects of the benchmark, as they are called in the plots, and their colors
BARS = (
    ("redis INCR", "Redis INCR", "orange"),
    ("divvy RESP", "divvy, hit", "blue"),
    ("divvy CL.THROTTLE", "divvy, CL.THROTTLE", "blue"),
    ("redis-cell", "redis-cell", "gray"),
    ("throttlecrab", "throttlecrab", "gray"),
    ("divvy HTTP", "divvy, HTTP", "blue"),
    ("divvy gRPC", "divvy, gRPC", "blue"),
    ("limitador gRPC", "limitador, gRPC", "gray"),
    ("redis, Divvy's script", "Redis, Lua script", "gray"),
)
GROUPS = (("single", "One request at a time"), ("pipelined", "32 requests in a pipeline"))
SERVERS = (("redis INCR", "Redis INCR", "orange"), ("divvy RESP", "divvy", "blue"))
MOST_TICKS = 10


def rows(root, plot, case):
    report = json.loads((root / REPORTS / f"{plot}.json").read_text(encoding="utf-8"))
    return [row for row in report["table"]["rows"] if row["case"] == case]


def cpu(root):
    left, top, width, row, gap = 172, 58, 480, 27, 44
    groups = [
        (title, {found["subject"]: found["cpu_us_per_request"] for found in rows(root, "cpu", case)})
        for case, title in GROUPS
    ]
    longest = max(time for _, times in groups for time in times.values())
    scale = width / nice_ceiling(longest)
    bars = [[bar for bar in BARS if bar[0] in times] for _, times in groups]
    bottom = top + sum(row * len(shown) + gap for shown in bars) - 12
    picture = Picture(720, bottom + 56, "CPU time of the server for a request: divvy, Redis and other rate limiters")
    picture.text(12, 24, "CPU time of the server for a request", bold=True)
    step = 5 if longest > 10 else 1
    for time in range(0, int(nice_ceiling(longest)) + 1, step):
        x = left + time * scale
        picture.line(x, top - 20, x, bottom, "grid")
        picture.text(x, bottom + 22, f"{time} µs", anchor="middle", size=14)
    y = top
    for (title, times), shown in zip(groups, bars):
        picture.text(12, y, title, "soft", size=14, bold=True)
        for number, (subject, name, fill) in enumerate(shown):
            middle = y + 24 + row * number
            picture.text(left - 10, middle + 5, name, anchor="end", size=15)
            picture.rect(left, middle - 9, times[subject] * scale, 18, fill)
            picture.text(left + times[subject] * scale + 7, middle + 5, f"{times[subject]:.1f}", size=15)
        y += row * len(shown) + gap
    return picture.svg()


def latency(root):
    found = rows(root, "latency", "offered-load")
    series = {
        subject: [row for row in found if row["subject"].startswith(f"{subject},")] for subject, _, _ in SERVERS
    }
    most = max(row["offered_per_second"] for row in found)
    highest = max(row["p99"] for row in found)
    lowest = min(row["p50"] for row in found)
    plot = Plot(
        "Latency at a given load",
        "Median and 99th percentile of the latency against the offered load: divvy and Redis",
        x_ticks=[(load, f"{load:,}") for load in range(0, int(most * 1.02) + 1, 20_000 if most < 10**5 else 50_000)],
        x_range=(0, most * 1.02),
        y_ticks=[(tick, f"{tick / 1000:g} ms" if tick < 10**6 else f"{tick / 10**6:g} s") for tick in logarithmic_ticks(lowest, highest)],
        y_logarithmic=True,
    )
    for subject, name, color in SERVERS:
        for percentile, text, dash in (("p99", "p99", None), ("p50", "median", "6 4")):
            points = [(row["offered_per_second"], row[percentile]) for row in series[subject]]
            plot.curve(points, color, dash, square=name != "divvy")
            plot.note(f"{name}, {text}", color, dash, square=name != "divvy")
    plot.name_x("requests due in a second")
    return plot.picture.svg()


def memory(root):
    found = rows(root, "memory", "memory")
    highest = max(row["resident_mib"] for row in found)
    step = 200
    plot = Plot(
        "Resident memory",
        "Resident memory against the number of actors: divvy and Redis",
        x_ticks=[(count, text) for count, text in (
            (10**4, "10,000"), (10**5, "100,000"), (10**6, "1 million"), (10**7, "10 million"),
        ) if count <= max(row["actors"] for row in found)],
        x_range=(10**4, max(row["actors"] for row in found)),
        x_logarithmic=True,
        y_ticks=[(mib, f"{mib:,} MiB" if mib else "0") for mib in range(0, int(highest + step), step)],
    )
    for subject, name, color in SERVERS:
        plot.curve(
            [(row["actors"], row["resident_mib"]) for row in found if row["subject"] == subject],
            color, None, square=name != "divvy",
        )
        plot.note(name, color, None, square=name != "divvy")
    plot.name_x("actors with a counter")
    return plot.picture.svg()


class Plot:
    """Curves over two axes. The names of the curves are above them."""

    left, right, top, bottom = 88, 670, 74, 374

    def __init__(self, title, label, x_ticks, x_range, y_ticks, x_logarithmic=False, y_logarithmic=False):
        self.picture = Picture(720, 432, label)
        self.picture.text(12, 24, title, bold=True)
        self.x = scale(x_range, (self.left, self.right), x_logarithmic)
        self.y = scale((y_ticks[0][0], y_ticks[-1][0]), (self.bottom, self.top), y_logarithmic)
        self.note_x = 12
        for value, text in y_ticks:
            self.picture.line(self.left, self.y(value), self.right, self.y(value), "grid")
            self.picture.text(self.left - 10, self.y(value) + 5, text, anchor="end", size=14)
        for value, text in x_ticks:
            self.picture.line(self.x(value), self.bottom, self.x(value), self.bottom + 5)
            self.picture.text(self.x(value), self.bottom + 24, text, anchor="middle", size=14)

    def name_x(self, text):
        self.picture.text((self.left + self.right) / 2, self.bottom + 48, text, "soft", size=14, anchor="middle")

    def curve(self, points, color, dash, square):
        places = [(self.x(x), self.y(y)) for x, y in points]
        self.picture.polyline(places, color, **dashes(dash))
        for x, y in places:
            self.marker(x, y, color, square)

    def marker(self, x, y, color, square):
        if square:
            self.picture.rect(x - 4, y - 4, 8, 8, color)
        else:
            self.picture.circle(x, y, 4.5, color)

    def note(self, text, color, dash, square):
        """Explains a curve, to the right of the previous explanation."""
        y = 54
        self.picture.polyline([(self.note_x, y - 5), (self.note_x + 30, y - 5)], color, **dashes(dash))
        self.marker(self.note_x + 15, y - 5, color, square)
        self.picture.text(self.note_x + 37, y, text, size=14)
        self.note_x += 62 + 8 * len(text)


def dashes(dash):
    return {"stroke_dasharray": dash} if dash else {}


def scale(values, pixels, logarithmic):
    """Returns a function from values to pixels."""
    def position(value):
        return math.log10(value) if logarithmic else value

    low, high = map(position, values)
    return lambda value: pixels[0] + (position(value) - low) / (high - low) * (pixels[1] - pixels[0])


def logarithmic_ticks(lowest, highest):
    """Returns 1, 2 and 5 times powers of ten, or only these powers if there are many. The first is not above the lowest value,
    and the last is not below the highest."""
    for factors in ((1, 2, 5), (1,)):
        ticks = [factor * 10**power for power in range(8) for factor in factors]
        first = max(index for index, tick in enumerate(ticks) if tick <= lowest)
        last = min(index for index, tick in enumerate(ticks) if tick >= highest)
        if last - first < MOST_TICKS:
            break
    return ticks[first:last + 1]


def nice_ceiling(value):
    """Returns the multiple of 5, or the integer up to 10, that is not below a value."""
    return math.ceil(value) if value <= 10 else 5 * math.ceil(value / 5)
