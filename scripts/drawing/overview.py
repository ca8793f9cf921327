"""Draws docs/images/overview.svg: the parts of divvy, and what is around it. Nothing is measured."""

from drawing.svg import Picture

FRONTS = (("HTTP", "8322"), ("RESP", "9049"), ("gRPC", "8323"), ("line", "8321"))
LEFT, MIDDLE, RIGHT = 12, 226, 548
BOX = 160


def draw():
    picture = Picture(720, 424, "Services and gateways send hits to divvy, which decides by rules and keeps counters")
    clients(picture)
    server(picture)
    stores(picture)
    operator(picture)
    return picture.svg()


def box(picture, x, y, width, height, title, *lines):
    picture.rect(x, y, width, height, "box", "line", radius=6)
    picture.text(x + width / 2, y + 26, title, anchor="middle", bold=True)
    for number, line in enumerate(lines):
        picture.text(x + width / 2, y + 48 + 20 * number, line, "soft", size=14, anchor="middle")


def clients(picture):
    box(picture, LEFT, 60, BOX, 84, "Your services", "any language,", "any Redis client")
    box(picture, LEFT, 176, BOX, 84, "Gateways", "Envoy, Kuadrant,", "nginx, Traefik")
    for y, reply, reply_color in ((102, "allow", "blue"), (218, "deny", "orange")):
        picture.arrow([(LEFT + BOX, y - 8), (MIDDLE, y - 8)])
        picture.arrow([(MIDDLE, y + 10), (LEFT + BOX, y + 10)], reply_color)
        picture.text(LEFT + BOX + 27, y - 18, "hit", "soft", size=14, anchor="middle")
        picture.text(LEFT + BOX + 27, y + 30, reply, reply_color, size=14, anchor="middle")


def server(picture):
    picture.rect(MIDDLE, 28, 268, 264, "background", "blue", radius=8, stroke_width=2)
    picture.text(MIDDLE + 14, 18, "divvy", "blue", bold=True)
    for number, (name, port) in enumerate(FRONTS):
        y = 42 + 61 * number
        picture.rect(MIDDLE + 14, y, 84, 53, "box", "line", radius=6)
        picture.text(MIDDLE + 56, y + 23, name, anchor="middle", bold=True)
        picture.text(MIDDLE + 56, y + 43, port, "soft", size=14, anchor="middle")
    box(picture, MIDDLE + 130, 42, 124, 104, "Rules", "the first match", "answers, or all", "of a stack")
    box(picture, MIDDLE + 130, 188, 124, 90, "Counters", "one for each", "rule and actor")
    picture.arrow([(MIDDLE + 98, 94), (MIDDLE + 130, 94)])
    picture.arrow([(MIDDLE + 192, 146), (MIDDLE + 192, 188)])


def stores(picture):
    picture.text(RIGHT, 18, "one of these stores", "soft", size=14)
    for number, (name, *lines) in enumerate((
        ("RocksDB", "on its own disk"), ("Redis", "for several servers"), ("Memory", "for tests"),
    )):
        y = 28 + 92 * number
        box(picture, RIGHT, y, BOX, 68, name, *lines)
        picture.arrow([(MIDDLE + 254, 233), (521, 233), (521, y + 34), (RIGHT, y + 34)])


def operator(picture):
    top, bottom = 292, 340
    picture.rect(LEFT, bottom, 482, 72, "box", "line", radius=6)
    picture.text(LEFT + 80, bottom + 26, "Operator", anchor="middle", bold=True)
    picture.text(LEFT + 80, bottom + 48, "owns the limits", "soft", size=14, anchor="middle")
    for x, name, detail in ((272, "rules.ini", "reloaded"), (360, "page", "/ui/"), (448, "metrics", "/metrics")):
        picture.text(x, bottom + 26, name, anchor="middle", bold=True)
        picture.text(x, bottom + 48, detail, "soft", size=14, anchor="middle")
        ends = [(x, bottom), (x, top)]
        picture.arrow(ends if name == "rules.ini" else ends[::-1])
    box(picture, RIGHT, bottom, BOX, 72, "Prometheus", "Grafana, alerts")
    picture.arrow([(LEFT + 482, bottom + 36), (RIGHT, bottom + 36)])
