"""Draws docs/images/dashboard.svg: the first panels of packaging/grafana/divvy.json, with what its queries return for a busy
divvy. A real Prometheus answers the queries. The drawing is in Grafana's layout, but not by Grafana."""

import json
import math
import re
import tempfile
import time
from pathlib import Path

from drawing import divvy, prometheus, shop
from drawing.svg import Picture

DASHBOARD = "packaging/grafana/divvy.json"
SECONDS = 300
# Seconds of load before the picture begins, so that the first rates are known
LEAD = 30
LABEL = "The dashboard in five minutes of load: hits, rejections, requests, errors and latencies"
# Rows of the dashboard's grid that are drawn, 24 columns each
GRID_ROWS = 30
COLORS = 8

LEFT, TOP, COLUMN, ROW, GAP = 10, 48, 44, 29, 8


def draw(binary, root):
    dashboard = json.loads((root / DASHBOARD).read_text(encoding="utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["gridPos"]["y"] < GRID_ROWS]
    found = measure(binary, root, panels)
    picture = Picture(2 * LEFT + 24 * COLUMN - GAP, TOP + GRID_ROWS * ROW + 4, LABEL)
    picture.text(LEFT + 4, 30, dashboard["title"], bold=True, size=18)
    picture.text(LEFT + 24 * COLUMN - GAP - 4, 30, f"last {SECONDS // 60} minutes", "soft", size=14, anchor="end")
    for panel in panels:
        place = panel["gridPos"]
        x, y = LEFT + place["x"] * COLUMN, TOP + place["y"] * ROW
        if panel["type"] == "row":
            picture.text(x + 4, y + 19, f"⌄ {panel['title']}", bold=True, size=14)
        else:
            draw_panel(picture, panel, found[panel["id"]], x, y, place["w"] * COLUMN - GAP, place["h"] * ROW - GAP)
    return picture.svg()


def measure(binary, root, panels):
    """Loads a divvy while Prometheus scrapes it. Returns the series of each panel: (name, points)."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory, "rules.ini")
        rules.write_text(shop.RULES, encoding="utf-8")
        with (
            divvy.serve(binary, rules, f"--data-dir={directory}/data") as (resp, http),
            prometheus.scrape(root, directory, http) as address,
        ):
            shop.visit(resp, http, LEAD + SECONDS)
            end = int(time.time())
            return {panel["id"]: series_of(address, panel, end) for panel in panels if panel["type"] != "row"}


def series_of(address, panel, end):
    return [
        (re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target["legendFormat"]), points)
        for target in panel["targets"]
        for labels, points in prometheus.series(address, target["expr"], end, SECONDS)
        if points
    ]


def draw_panel(picture, panel, series, x, y, width, height):
    picture.rect(x, y, width, height, "box", "grid", radius=4)
    picture.text(x + 10, y + 19, panel["title"], bold=True, size=13)
    left, right, top, bottom = x + 72, x + width - 18, y + 34, y + height - 58
    if not series:
        picture.text((left + right) / 2, (top + bottom) / 2, "No data", "soft", size=13, anchor="middle")
        return
    settings = panel["fieldConfig"]["defaults"]
    is_stacked = settings["custom"]["stacking"]["mode"] == "normal"
    curves = stack(series) if is_stacked else [(name, points, None) for name, points in series]
    ticks = ticks_to(max(value for _, points, _ in curves for _, value in points))
    end = max(time for _, points, _ in curves for time, _ in points)

    def place(time, value):
        return right - (end - time) / SECONDS * (right - left), bottom - value / ticks[-1] * (bottom - top)

    for tick in ticks:
        picture.line(left, place(end, tick)[1], right, place(end, tick)[1], "grid")
        picture.text(left - 6, place(end, tick)[1] + 4, formatted(tick, settings["unit"]), "soft", size=12, anchor="end")
    for minute in range(math.ceil((end - SECONDS) / 60), int(end // 60) + 1):
        clock = time.strftime("%H:%M", time.gmtime(60 * minute))
        picture.text(place(60 * minute, 0)[0], bottom + 16, clock, "soft", size=12, anchor="middle")
    for number, (_, points, lower) in enumerate(curves):
        color = f"series-{number % COLORS + 1}"
        edge = [place(time, value) for time, value in points]
        base = [place(time, value) for time, value in lower or [(points[0][0], 0), (points[-1][0], 0)]]
        picture.polygon(edge + base[::-1], color, opacity=settings["custom"]["fillOpacity"] / 100)
        picture.polyline(edge, color, 1.5)
    legend(picture, [name for name, _ in series], x + 10, bottom + 34, width - 20)


def stack(series):
    """Adds each curve to those before it. Returns (name, upper points, lower points)."""
    found, sums = [], {}
    for name, points in series:
        lower = [(time, sums.get(time, 0)) for time, _ in points]
        for time, value in points:
            sums[time] = sums.get(time, 0) + value
        found.append((name, [(time, sums[time]) for time, _ in points], lower))
    return found


def legend(picture, names, left, y, width):
    """Names the curves, on two lines at most."""
    x, lines = left, 1
    for number, name in enumerate(names):
        needed = 30 + 7.4 * len(name)
        if x + needed > left + width + 10:
            if lines == 2:
                picture.text(x, y, "…", "soft", size=12)
                return
            x, y, lines = left, y + 16, 2
        picture.rect(x, y - 6, 12, 4, f"series-{number % COLORS + 1}")
        picture.text(x + 17, y, name, size=12)
        x += needed


def ticks_to(highest):
    """Returns 0 and up to five round multiples of a step, the last one not below the highest value."""
    if highest <= 0:
        return [0, 1]
    power = 10 ** math.floor(math.log10(highest))
    step = next(factor * power for factor in (0.2, 0.25, 0.5, 1, 2, 2.5) if 4 * factor * power >= highest)
    return [number * step for number in range(math.ceil(highest / step - 1e-9) + 1)]


def formatted(value, unit):
    if unit == "percentunit":
        return f"{100 * value:g} %"
    if unit == "s":
        for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
            if value * factor >= 0.999:
                return f"{value * factor:.3g} {name}"
        return "0"
    text = f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
    return f"{text} req/s" if unit == "reqps" else text
