"""Draws docs/images/crates.svg: which crate uses which, by their Cargo.toml. A crate stands above all that it uses. An import
that a longer way implies has no line."""

import tomllib

from drawing.svg import Picture

# The column and the purpose of each crate
CRATES = {
    "divvy": (2, "the binary"),
    "ui": (1, "the live page"),
    "bench": (3, "load generator"),
    "server": (2, "fronts, sockets"),
    "api": (2, "operations"),
    "limiter": (2, "plans, reports"),
    "rocks": (1, "RocksDB"),
    "redis": (3, "Redis"),
    "store": (2, "contract, memory"),
    "access": (0, "users, audit"),
    "crowdsec": (3, "CrowdSec's client"),
    "telemetry": (2, "metrics, logs"),
    "core": (2, "rules, algorithms"),
    "sys": (4, "clock, memory"),
}
WIDTH, HEIGHT, COLUMN, ROW = 134, 50, 148, 78


def draw(root):
    uses = read(root)
    floors = {name: floor(name, uses) for name in uses}
    top = max(floors.values())
    picture = Picture(12 + 5 * COLUMN, 2 + ROW * top, "The crates of divvy, each above those that it uses")
    places = {name: (12 + COLUMN * CRATES[name][0], 14 + ROW * (top - floors[name])) for name in uses}
    for name, used in uses.items():
        for other in sorted(direct(used, uses)):
            (x, y), (to_x, to_y) = places[name], places[other]
            if floors[name] - floors[other] > 1 and x != to_x:
                side = y + HEIGHT / 2
                points = [(x + WIDTH / 2, side), (to_x + WIDTH / 2, side), (to_x + WIDTH / 2, to_y)]
            else:
                points = [(x + WIDTH / 2, y + HEIGHT), (to_x + WIDTH / 2, to_y)]
            picture.polyline(points, "line", 1.5)
    for name, (x, y) in places.items():
        picture.rect(x, y, WIDTH, HEIGHT, "box", "line", radius=6)
        picture.text(x + WIDTH / 2, y + 21, name, anchor="middle", bold=True)
        picture.text(x + WIDTH / 2, y + 40, CRATES[name][1], "soft", size=13, anchor="middle")
    return picture.svg()


def read(root):
    """Returns the crates, and which of them each one uses."""
    files = [root / "Cargo.toml", *sorted(root.glob("crates/*/Cargo.toml")), *sorted(root.glob("tools/*/Cargo.toml"))]
    manifests = [tomllib.loads(file.read_text()) for file in files]
    short = lambda name: name.removeprefix("divvy-")
    ours = {manifest["package"]["name"] for manifest in manifests}
    return {
        short(manifest["package"]["name"]): {short(name) for name in manifest["dependencies"] if name in ours}
        for manifest in manifests
    }


def floor(name, uses):
    return 1 + max((floor(other, uses) for other in uses[name]), default=0)


def direct(used, uses):
    """Returns the crates that no other one of them uses, directly or not."""
    return {name for name in used if not any(name in reached(other, uses) for other in used - {name})}


def reached(name, uses):
    return uses[name].union(*(reached(other, uses) for other in uses[name]))
