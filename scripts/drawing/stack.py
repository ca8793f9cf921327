"""Draws docs/images/stack.svg: two requests and the rules of config/examples/stacks.ini. The rules, their limits, the
replies and what is left are divvy's answers."""

import re
from urllib.parse import urlencode

from drawing import divvy
from drawing.svg import Picture

RULES = "config/examples/stacks.ini"
OPERATION = {"tenant": "acme", "key": "k-1"}
# Credits that earlier requests took: of the same key, and of the tenant's other keys
EARLIER = ((OPERATION, 99), *(({"tenant": "acme", "key": f"k-{number}"}, 100) for number in range(2, 72)))

NAME, NAME_WIDTH, TOP, ROW, BOX = 12, 214, 84, 104, 80
COLUMNS, BAR = (250, 496), 212


def draw(binary, root):
    with divvy.serve(binary, root / RULES, "--store=memory") as (_, address):
        for operation, cost in EARLIER:
            divvy.ask(address, "/v1/hit", {"operation": operation, "cost": cost})
        rules = divvy.ask(address, "/v1/explain", {"operation": OPERATION})["rules"]
        states, replies = [counters(address)], []
        for _ in COLUMNS:
            replies.append(divvy.ask(address, "/v1/hit", {"operation": OPERATION}))
            states.append(counters(address))
    bottom = TOP + ROW * len(rules)
    picture = Picture(720, bottom + 68, "A request takes a credit from each of three rules, and the next one takes none")
    picture.text(NAME, 30, "Rules in the file", bold=True)
    for index, rule in enumerate(rules):
        rule_box(picture, rule, TOP + ROW * index, is_last=index == len(rules) - 1)
    for left, reply, before, after in zip(COLUMNS, replies, states, states[1:]):
        request(picture, left, bottom, rules, reply, before, after)
    return picture.svg()


def counters(address):
    """Returns the status of the request's counter under each rule."""
    found = {}
    for fields in (("tenant",), ("tenant", "key")):
        query = urlencode({field: OPERATION[field] for field in fields})
        found |= {rule["rule"]: rule for rule in divvy.ask(address, f"/v1/status?{query}")["rules"]}
    return found


def rule_box(picture, rule, top, is_last):
    picture.rect(NAME, top, NAME_WIDTH, BOX, "box", "line", radius=6)
    picture.text(NAME + 12, top + 24, rule["label"], bold=True)
    picture.text(NAME + 12, top + 46, f"[{rule['operation']}]", code=True, size=14)
    limit = re.match(r"allows (\d+)( in \d+ s| a day)", rule["grants"]["limit"])
    picture.text(NAME + 12, top + 67, f"{int(limit[1]):,}{limit[2]}", "soft", size=14)
    if not is_last:
        picture.arrow([(NAME + NAME_WIDTH / 2, top + BOX), (NAME + NAME_WIDTH / 2, top + ROW)])
        picture.text(NAME + NAME_WIDTH / 2 + 10, top + BOX + 17, "and", "soft", size=14)


def request(picture, left, bottom, rules, reply, before, after):
    picture.text(left, 30, f"Request {before[rules[0]['name']]['used'] + 1} of the key", bold=True)
    picture.text(left, 51, "in this minute", bold=True)
    for index, rule in enumerate(rules):
        name = rule["name"]
        was, now, limit = before[name]["remaining"], after[name]["remaining"], before[name]["limit"]
        top = TOP + ROW * index
        denies = not reply["allowed"] and reply["rule"] == name
        picture.text(left, top + 24, "✗ denies" if denies else "✓ allows", "orange" if denies else "blue", bold=True)
        picture.rect(left, top + 34, BAR, 12, "box", "line")
        if now:
            picture.rect(left, top + 34, BAR * now / limit, 12, "blue")
        change = f"{was:,} → {now:,} left" if was != now else f"{now:,} left"
        picture.text(left, top + 67, change, size=14)
    fill = "blue" if reply["allowed"] else "orange"
    result = "Allowed:" if reply["allowed"] else "Denied:"
    # Fails unless the rules agree.
    (taken,) = {before[name]["remaining"] - after[name]["remaining"] for name in before}
    picture.line(left, bottom, left + BAR, bottom)
    picture.text(left, bottom + 27, result, fill, bold=True)
    picture.text(left, bottom + 49, f"takes {taken} from each" if taken else "takes nothing from any", fill, bold=True)
