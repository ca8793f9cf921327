"""A shop's requests to divvy, over RESP and HTTP, for the picture of the dashboard."""

import json
import math
import random
import socket
import threading
import time
import urllib.error
import urllib.request

RULES = """
[path=/login ip=*]
creditLimit = 5
per = 1m
actorField = ip
label = login

[path=/api/* key=*]
creditLimit = 3000
per = 1m
actorField = key
matchPolicy = and
label = key-minute

[path=/api/* key=*]
creditLimit = 500000
window = day
actorField = key
label = key-day

[path=/search user=*]
creditLimit = 20
per = 1m
actorField = user
matchPolicy = canary
label = search-trial

[path=/search user=*]
creditLimit = 60
per = 1m
actorField = user
label = search

[job=report tenant=*]
creditLimit = 100000
per = 1m
actorField = tenant
label = tokens

[default]
creditLimit = 0
label = other
"""

TICK = 0.1  # seconds
# Requests a second on average, when all is quiet
API, SEARCHES, LOGINS, REPORTS, TYPOS = 220, 60, 12, 8, 0.4
# The seconds in which one key sends far more than usual, and in which passwords are guessed
RUSH, GUESSES = (110, 190), (205, 260)


def visit(resp, http, seconds):
    """Sends requests for some seconds."""
    threads = [threading.Thread(target=send, args=(address, seconds)) for send, address in
               ((send_resp, resp), (send_http, http))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ticks(seconds):
    """Waits for the next tick again and again. Yields the seconds since the start."""
    start = time.monotonic()
    for tick in range(int(seconds / TICK)):
        time.sleep(max(0, start + tick * TICK - time.monotonic()))
        yield tick * TICK


def send_resp(address, seconds):
    host, port = address.rsplit(":", 1)
    chance = random.Random(1)
    with socket.create_connection((host, int(port))) as connection:
        replies = threading.Thread(target=read_all, args=(connection,))
        replies.start()
        for second in ticks(seconds):
            batch = "".join(f"{command}\r\n" for command in commands(second, chance))
            connection.sendall(batch.encode())
        connection.shutdown(socket.SHUT_WR)
        replies.join()


def read_all(connection):
    while connection.recv(1 << 16):
        pass


def commands(second, chance):
    """Returns the commands of a tick."""
    tide = 1 + 0.25 * math.sin(second / 23)
    found = [f"DIVVY.HIT path=/api/items key={chance.choice('abcdefgh')}" for _ in range(count(API * tide, chance))]
    if RUSH[0] <= second < RUSH[1]:
        found += ["DIVVY.HIT path=/api/orders key=rush"] * count(130, chance)
    found += [f"DIVVY.HIT path=/search user=u{int(abs(chance.gauss(0, 150)))}"
              for _ in range(count(SEARCHES * tide, chance))]
    found += [f"DIVVY.PEEK path=/search user=u{chance.randrange(50)}" for _ in range(count(SEARCHES / 4, chance))]
    found += [f"DIVVY.RESERVE job=report tenant=t{chance.randrange(9)} AMOUNT 500 TTL 20"
              for _ in range(count(REPORTS, chance))]
    found += ["DIVVY.HTI path=/search"] * count(TYPOS, chance)
    chance.shuffle(found)
    return found


def count(per_second, chance):
    """Returns how many requests a tick has."""
    wanted = per_second * TICK * chance.uniform(0.7, 1.3)
    return int(wanted) + (chance.random() < wanted % 1)


def send_http(address, seconds):
    chance = random.Random(2)
    for second in ticks(seconds):
        guesses = 25 if GUESSES[0] <= second < GUESSES[1] else 0
        addresses = [f"192.0.2.{chance.randrange(250)}" for _ in range(count(LOGINS, chance))]
        for ip in addresses + ["198.51.100.7"] * count(guesses, chance):
            hit(address, {"path": "/login", "ip": ip})


def hit(address, operation):
    body = json.dumps({"operation": operation}).encode()
    request = urllib.request.Request(f"http://{address}/v1/hit", body, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request).close()
    except urllib.error.HTTPError as reply:
        reply.close()  # denied
