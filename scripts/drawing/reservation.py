"""Draws docs/images/reservation.svg: what is used, reserved and left while a limit's clients reserve and commit. divvy
answers a peek in each simulated second."""

from drawing import divvy
from drawing.svg import Picture

LIMIT, SECONDS = 1000, 70
RULES = f"[api=chat]\ncreditLimit = {LIMIT}\nper = 60s\n\n[default]\ncreditLimit = 0\n"
OPERATION = {"api": "chat"}
UNKNOWN = 10**9  # a number of credits that no peek returns

HIT = {"at": 0, "operation": OPERATION, "cost": 100, "expect": {"allowed": True}}
DENIED = {"at": 13, "operation": OPERATION, "cost": 600, "expect": {"allowed": False}}


def reserve(at, name, cost, ttl):
    return {"at": at, "intent": "reserve", "id": name, "operation": OPERATION, "cost": cost, "ttl": ttl,
            "expect": {"allowed": True}}


STEPS = [
    HIT,
    reserve(6, "a", 400, 30),
    DENIED,
    {"at": 21, "intent": "commit", "id": "a", "cost": 150},
    reserve(29, "b", 500, 14),
    reserve(51, "c", 300, 30),
]
NOTES = {
    0: ("hit", "100"),
    6: ("reserve", "400"),
    13: ("hit 600:", "denied"),
    21: ("commit", "150"),
    29: ("reserve 500,", "no commit"),
    43: ("its time", "is over"),
    51: ("reserve", "300"),
    60: ("window", "ends"),
}

LEFT, TOP, WIDTH, HEIGHT = 62, 88, 640, 280


def draw(binary):
    left = credits_left(binary)
    used, reserved, changes = replay(left)
    if sorted({0, DENIED["at"], *changes}) != sorted(NOTES):
        raise RuntimeError(f"credits change at {changes} s: describe that in NOTES")
    picture = Picture(720, 404, "Credits that are used, reserved and left for 70 seconds, while requests reserve and commit")
    for credits in range(0, LIMIT + 1, 250):
        picture.line(LEFT, y(credits), LEFT + WIDTH, y(credits), "grid")
        picture.text(LEFT - 8, y(credits) + 5, f"{credits:,}", anchor="end", size=14)
    taken = [a + b for a, b in zip(used, reserved)]
    area(picture, taken, used, "pale-orange")
    area(picture, used, [0] * len(used), "pale-blue")
    picture.polyline(steps(taken), "orange")
    picture.polyline(steps(used), "blue")
    notes(picture)
    too_much(picture, taken[DENIED["at"]])
    picture.text(x(36), y(140), "used", "blue", anchor="middle", bold=True)
    picture.text(x(35), y(480), "reserved", "orange", anchor="middle", bold=True)
    picture.text(x(35), y(850), "left", "soft", anchor="middle", bold=True)
    for second in range(0, SECONDS + 1, 10):
        picture.text(x(second), y(0) + 22, f"{second} s", anchor="middle", size=14)
    picture.text(12, 24, f"A limit of {LIMIT:,} credits in 60 seconds", bold=True)
    return picture.svg()


def credits_left(binary):
    """Returns what is left at the end of each second."""
    peeks = [
        {"at": second, "intent": "peek", "operation": OPERATION, "expect": {"remaining": UNKNOWN}}
        for second in range(SECONDS + 1)
    ]
    in_order = sorted(STEPS + peeks, key=lambda step: step["at"])
    got = divvy.simulate(binary, RULES, in_order)
    if {field for _, field in got} != {"remaining"}:
        raise RuntimeError(f"a step got another answer: {got}")
    return [credits for _, credits in sorted(got.items())]


def replay(left):
    """Returns the credits used and reserved in each second, and the seconds in which they change. Fails unless they and
    the credits left add up to the limit."""
    used, reserved, changes, spent, held = [], [], [], 0, {}
    for second, credits in enumerate(left):
        before = spent, dict(held)
        for step in (step for step in STEPS if step["at"] == second and step is not DENIED):
            if step.get("intent") == "reserve":
                held[step["id"]] = step["cost"]
            else:
                held.pop(step.get("id"), None)
                spent += step["cost"]
        surplus = credits + spent + sum(held.values()) - LIMIT
        if surplus and credits == LIMIT:
            spent, held = 0, {}
        elif surplus:
            held = {name: cost for name, cost in held.items() if cost != surplus}
        if credits + spent + sum(held.values()) != LIMIT:
            raise RuntimeError(f"at {second} s, {credits} credits are left, {spent} used, and reserved: {held}")
        if (spent, held) != before:
            changes.append(second)
        used.append(spent)
        reserved.append(sum(held.values()))
    return used, reserved, changes


def x(second):
    return LEFT + WIDTH * second / SECONDS


def y(credits):
    return TOP + HEIGHT * (1 - credits / LIMIT)


def steps(credits):
    """Returns the points of a line that changes in steps."""
    points = []
    for second, (before, now) in enumerate(zip([credits[0], *credits], credits)):
        if second == 0 or before != now:
            points += [(x(second), y(before)), (x(second), y(now))]
    return [*points, (x(SECONDS), y(credits[-1]))]


def area(picture, upper, lower, fill):
    picture.polygon(steps(upper) + steps(lower)[::-1], fill)


def notes(picture):
    for second, (first, second_line) in NOTES.items():
        fill = "orange" if second == DENIED["at"] else "text"
        picture.line(x(second), 44, x(second), y(0), stroke_dasharray="2 3")
        picture.text(x(second) + 5, 56, first, fill, size=14)
        picture.text(x(second) + 5, 73, second_line, fill, size=14)


def too_much(picture, taken):
    """Shows that a denied hit does not fit below the limit."""
    at = x(DENIED["at"])
    picture.polyline([(at, y(taken)), (at, y(taken + DENIED["cost"]))], "orange", 5, stroke_dasharray="6 3")
