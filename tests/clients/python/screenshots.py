"""Takes pictures of the live page of a busy server. Arguments: the binary, and the directory for the pictures."""

import hashlib
import itertools
import math
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import redis
from PIL import Image
from playwright.sync_api import expect

from page_driver import live_page

# Seconds that a chart shows
HISTORY = 60
PASSWORD = "screenshot"
RULES = """
[path=/login ip=*]
creditLimit = 5
per = 1m
actorField = ip
label = login
comment = 'passwords are not for guessing'

[path=/api/* tenant=* key=*]
creditLimit = 500
per = 1m
actorField = tenant, key
matchPolicy = and
label = key-minute

[path=/api/* tenant=* key=*]
creditLimit = 50000
window = day
timezone = Europe/Berlin
actorField = tenant, key
matchPolicy = and
label = key-day

[path=/api/* tenant=*]
creditLimit = 6000
per = 1m
actorField = tenant
label = tenant-minute

[path=/search user=*]
creditLimit = 40
per = 1m
actorField = user
matchPolicy = canary
label = search-trial
comment = 'would 40 searches a minute be too few?'

[path=/search user=*]
algorithm = token-bucket
creditLimit = 120
refillCredits = 2
refillSeconds = 1
resetSeconds = 60
actorField = user
label = search

[job=export user=*]
algorithm = concurrency
creditLimit = 3
resetSeconds = 600
actorField = user
label = exports

[service=mail kind="weekly digest" user=*]
creditLimit = 1
per = 7d
actorField = user
label = weekly-digest

[path=/status]
creditLimit = 1
resetSeconds = 0
label = status
comment = 'the status is free'

[default]
creditLimit = 0
comment = 'everything else is denied'
"""
PICTURES = [
    ("live-page-light", "light", {"width": 1240, "height": 760}, "rules?rule=login"),
    ("live-page-dark", "dark", {"width": 1240, "height": 760}, "rules?rule=login"),
    ("live-page-explain", "light", {"width": 1240, "height": 520}, "explain?op=path%3D%2Fapi%2Fcart+tenant%3Dacme+key%3Dk-1"),
]


def serve(binary, directory):
    """Starts the server. Returns it, and the ports of its fronts."""
    rules, users = Path(directory, "rules.ini"), Path(directory, "users.acl")
    rules.write_text(RULES.replace("creditLimit = 5\n", "creditLimit = 10\n", 1))
    users.write_text(f"user operator on #{hashlib.sha256(PASSWORD.encode()).hexdigest()} +@all ~*\n")
    listen = [f"--{front}listen=127.0.0.1:0" for front in ("", "resp-", "http-", "grpc-")]
    command = [binary, "serve", rules, "--ui", "--access-file", users, "--data-dir", Path(directory, "data"), *listen]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    ports = {}
    for line in server.stdout:
        front, _, address = line.strip().partition(" on ")
        if address.startswith("127.0.0.1:"):
            ports[front] = int(address.rpartition(":")[2])
        if line.startswith("rules:"):
            break
    rules.write_text(RULES)
    return server, ports


def hits(chance, second):
    """Yields the operations of a tenth of a second."""
    wave = math.sin(second / 7)

    def times(rate):
        whole, rest = divmod(max(rate, 0) / 10, 1)
        return int(whole) + (chance.random() < rest)

    for _ in range(times(9 + 7 * wave)):
        yield "path=/login", f"ip=203.0.113.{7 if chance.random() < 0.7 else chance.randrange(1, 250)}"
    for _ in range(times(90 + 50 * math.sin(second / 11))):
        tenant = chance.choice(["acme", "acme", "globex", "initech"])
        yield f"path=/api/{chance.choice(['cart', 'stock'])}", f"tenant={tenant}", f"key=k-{chance.randrange(1, 4)}"
    for _ in range(times(25 + 15 * math.cos(second / 9))):
        yield "path=/search", f"user={chance.choice(['ann', 'bob', 'carol', 'dave', 'erin'])}"
    for _ in range(times(12 + 3 * wave)):
        yield ("path=/status",)
    for _ in range(times(2 - 3 * wave)):
        yield ("path=/wp-login.php",)


def load(client, has_ended):
    """Sends hits until an event is set."""
    chance, start = random.Random(1), time.monotonic()
    for user, count in [("ann", 3), ("bob", 1)]:
        for _ in range(count):
            client.execute_command("DIVVY.RESERVE", "job=export", f"user={user}", "AMOUNT", 1, "TTL", 600)
    for tick in itertools.count():
        pipeline = client.pipeline(transaction=False)
        for operation in hits(chance, tick / 10):
            pipeline.execute_command("DIVVY.HIT", *operation)
        pipeline.execute()
        if has_ended.wait(max(0, start + (tick + 1) / 10 - time.monotonic())):
            return


def compress(path):
    """Keeps the 256 colors that are used the most: a page without photographs needs no others."""
    picture = Image.open(path).convert("RGB")
    colors = sorted(picture.getcolors(picture.width * picture.height), reverse=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, color in colors[:256] for part in color])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


def take(port, directory):
    for name, scheme, size, view in PICTURES:
        with live_page(port, color_scheme=scheme, viewport=size, device_scale_factor=1.5) as page:
            page.open(view)
            page.log_in("operator", PASSWORD)
            page.expect_live()
            expect(page.tab.locator("h1")).to_be_visible()
            expect(page.tab.get_by_text("Loading…")).to_have_count(0)
            if view.startswith("explain"):
                # Each minute begins with hits that are allowed.
                expect(page.tab.locator("#verdict")).to_contain_text("Denied", timeout=60_000)
            path = Path(directory, f"{name}.png")
            page.tab.screenshot(path=path)
            compress(path)


def main(binary, directory):
    with tempfile.TemporaryDirectory() as place:
        server, ports = serve(binary, place)
        try:
            client = redis.Redis(port=ports["RESP"], username="operator", password=PASSWORD)
            has_ended = threading.Event()
            clients = threading.Thread(target=load, args=(client, has_ended))
            clients.start()
            time.sleep(HISTORY)
            take(ports["HTTP"], directory)
        finally:
            has_ended.set()
            clients.join()
            server.terminate()
            server.wait()


main(*sys.argv[1:])
