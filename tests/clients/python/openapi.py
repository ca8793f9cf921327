"""Compares answers of each kind with the server's description: openapi.py URL URL_WITHOUT_RULES URL_WITH_PASSWORD URL_WITH_STACK

The first server has the rules of config/algorithms.ini. The last one has too many rules for the fields k1 to k17. Exits with 0
when every answer is as described.
"""

import re
import sys

import requests
import schemathesis

SERVED, RULELESS, LOCKED, STACKED = sys.argv[1:]
UNDENIED = {"api": "status"}


def drive(server, method, path, status, **request):
    response = requests.request(method, server + path, timeout=30, **request)
    assert response.status_code == status, (method, path, response.status_code, response.text)
    described = "/v1/check/{path}" if path.startswith("/v1/check/x") else path.partition("?")[0]
    described = re.sub("^/v1/reservations/[^/]+", "/v1/reservations/{id}", described)
    description[described][method].validate_response(response)
    return response


description = schemathesis.openapi.from_url(SERVED + "/openapi.json")

for operation in (
    UNDENIED,
    {"api": "search", "user": "ann"},
    {"api": "password-reset", "user": "ann"},
    {"api": "reports", "user": "ann"},
    {"api": "orders", "user": "ann"},
    {"api": "upload", "user": "ann", "bytes": "17"},
):
    drive(SERVED, "POST", "/v1/hit", 200, json={"operation": operation})
    drive(SERVED, "POST", "/v1/peek", 200, json={"operation": operation, "cost": 5})
    drive(SERVED, "POST", "/v1/explain", 200, json={"operation": operation})
    drive(SERVED, "POST", "/v1/check", 200, headers={"X-Forwarded-For": "192.0.2.1"}, params=operation)
    hits = [{"operation": operation}, {"operation": operation, "cost": 10**9}, {"operation": {}}]
    results = drive(SERVED, "POST", "/v1/hits", 200, json={"hits": hits}).json()["results"]
    assert [result["allowed"] for result in results] == [True, False, False], results

upload = {"api": "upload", "user": "ann"}
drive(SERVED, "POST", "/v1/hit", 429, json={"operation": {}})
drive(SERVED, "POST", "/v1/hit", 429, json={"operation": upload, "cost": 10**6})
drive(SERVED, "POST", "/v1/hit", 429, json={"operation": UNDENIED, "cost": 2**64 - 1})
drive(SERVED, "GET", "/v1/check", 429)
drive(SERVED, "PATCH", "/v1/check/x", 429)
refused = {**upload, "bytes": "many"}
drive(SERVED, "POST", "/v1/hit", 400, json={"operation": refused})
drive(SERVED, "POST", "/v1/hits", 200, json={"hits": [{"operation": refused}]})
drive(SERVED, "POST", "/v1/explain", 200, json={"operation": refused})
drive(SERVED, "GET", "/v1/check", 400, params=refused)
drive(SERVED, "POST", "/v1/peek", 400, json={"operation": {"api": []}})
drive(SERVED, "POST", "/v1/explain", 415, data="{}")
drive(SERVED, "POST", "/v1/hits", 413, json={"hits": ["x" * 100_000]})

key = {"Idempotency-Key": '"8e03978e"'}
for path, one, other in (
    ("/v1/hit", {"operation": UNDENIED}, {"operation": UNDENIED, "cost": 2}),
    ("/v1/charge", {"operation": upload, "cost": 1}, {"operation": upload, "cost": 2}),
    ("/v1/refund", {"operation": upload, "cost": 1}, {"operation": upload, "cost": 2}),
    ("/v1/hits", {"hits": [{"operation": upload, "cost": 1}]}, {"hits": [{"operation": upload, "cost": 2}]}),
):
    for replayed in (None, "true"):
        answer = drive(SERVED, "POST", path, 200, json=one, headers=key)
        assert UNDENIED in one.values() or answer.headers.get("Idempotent-Replayed") == replayed, (path, answer.headers)
    if UNDENIED not in one.values():
        drive(SERVED, "POST", path, 422, json=other, headers=key)
    drive(SERVED, "POST", path, 400, json=one, headers={"Idempotency-Key": "a, b"})

report = {"operation": {"api": "reports", "user": "bob"}, "amount": 5, "ttl": 60, "id": "x"}
reserved = drive(SERVED, "POST", "/v1/reservations", 201, json=report)
drive(SERVED, "POST", "/v1/reservations", 200, json=report)
drive(SERVED, "POST", "/v1/reservations", 422, json={**report, "amount": 6})
drive(SERVED, "POST", "/v1/reservations", 429, json={**report, "amount": 10**6, "id": "y"})
for field, wrong in (("amount", 0), ("ttl", 601), ("id", "")):
    problem = drive(SERVED, "POST", "/v1/reservations", 400, json={**report, field: wrong}).json()
    assert problem["pointer"] == "#/" + field, problem
drive(SERVED, "POST", "/v1/reservations", 201, json={"operation": UNDENIED, "amount": 5, "ttl": 60})
drive(SERVED, "POST", "/v1/reservations", 409, json={**report, "operation": {"api": "password-reset", "user": "ann"}})
for reservation in (reserved.headers["Location"], "/v1/reservations/x"):
    missing = reservation.endswith("/x")
    drive(SERVED, "POST", reservation + "/renew", 404 if missing else 200, json={"ttl": 60})
    for _ in range(2):
        drive(SERVED, "POST", reservation + "/commit", 404 if missing else 200, json={"cost": 6})
        drive(SERVED, "DELETE", reservation, 404 if missing else 200)
drive(SERVED, "POST", reserved.headers["Location"] + "/renew", 404, json={"ttl": 60})
drive(SERVED, "POST", reserved.headers["Location"] + "/renew", 400, json={"ttl": 0})
drive(SERVED, "POST", reserved.headers["Location"] + "/commit", 415, data="{}")
drive(RULELESS, "POST", "/v1/reservations", 500, json=report)
drive(RULELESS, "POST", reserved.headers["Location"] + "/commit", 404, json={"cost": 6})
drive(LOCKED, "DELETE", reserved.headers["Location"], 401)

counters = "/v1/counters?rule=sliding-window"
assert drive(SERVED, "GET", counters, 200).json()["counters"]
assert drive(SERVED, "DELETE", counters, 200).json()["forgotten"] == 1
for method in ("GET", "DELETE"):
    drive(SERVED, method, counters + "&cursor=x", 400)
    drive(SERVED, method, "/v1/counters?rule=default", 400)
    drive(SERVED, method, "/v1/counters?rule=x", 404)
    drive(RULELESS, method, "/v1/counters?rule=x", 500)

for query in ("rule=sliding-window", "rule=default&order=taken&last=3600&count=1000"):
    assert drive(SERVED, "GET", "/v1/top?" + query, 200).json()["hasRoom"]
drive(SERVED, "GET", "/v1/top?rule=default&last=61", 400)
drive(SERVED, "GET", "/v1/top", 400)
drive(SERVED, "GET", "/v1/top?rule=x", 404)
drive(RULELESS, "GET", "/v1/top?rule=x", 500)
drive(LOCKED, "GET", "/v1/top?rule=x", 401)

status = drive(SERVED, "GET", "/v1/status?user=ann", 200).json()
assert status["rules"] and status["next"] is None, status
assert drive(SERVED, "GET", "/v1/status?user=nobody", 200).json() == {"rules": [], "next": None}
assert drive(SERVED, "GET", "/v1/status?user=nobody&count=1", 200).json()["next"]
drive(SERVED, "GET", "/v1/status", 400)
drive(SERVED, "GET", "/v1/status?user=ann&cursor=x", 400)
drive(SERVED, "GET", "/v1/status?nothing=ann", 404)
drive(RULELESS, "GET", "/v1/status?user=ann", 500)
drive(LOCKED, "GET", "/v1/status?user=ann", 401)

sequence = drive(SERVED, "GET", "/v1/blocks", 200).json()["sequence"]
block = {"rule": "*", "actor": "ip=192.0.2.0/24"}
edited = drive(SERVED, "POST", "/v1/blocks/bulk", 200, json={"owner": "feed", "set": [{**block, "reason": "scans"}]})
assert edited.json() == {"set": 1, "removed": 0, "kept": 0, "full": 0}, edited.text
drive(SERVED, "PUT", "/v1/blocks?rule=*&actor=ip=192.0.2.0/24", 409, json={"owner": "other"})
changes = drive(SERVED, "GET", "/v1/blocks?field=ip&since=" + sequence, 200).json()
assert changes["blocks"][0]["owner"] == "feed" and not changes["reset"], changes
assert drive(SERVED, "GET", "/v1/blocks?since=x", 200).json()["reset"]
drive(SERVED, "POST", "/v1/blocks/bulk", 200, json={"remove": [block]})
drive(SERVED, "POST", "/v1/blocks/bulk", 400, json={"set": [{"rule": "*", "actor": "x"}]})
drive(SERVED, "POST", "/v1/blocks/bulk", 400, json={"owner": "two words", "set": [block]})
drive(SERVED, "POST", "/v1/blocks/bulk", 415, data="{}")
drive(LOCKED, "POST", "/v1/blocks/bulk", 401, json={})

for path in ("/v1/rules", "/openapi.json", "/healthz", "/readyz", "/metrics"):
    drive(SERVED, "GET", path, 200)

for path in ("/v1/hit", "/v1/peek", "/v1/explain"):
    drive(RULELESS, "POST", path, 500, json={"operation": {}})
drive(RULELESS, "POST", "/v1/hits", 200, json={"hits": [{"operation": {}}]})
drive(RULELESS, "GET", "/v1/rules", 500)
drive(RULELESS, "GET", "/v1/check", 500)

for method, path in (("POST", "/v1/hit"), ("POST", "/v1/hits"), ("GET", "/v1/check"), ("DELETE", "/v1/counters")):
    drive(LOCKED, method, path, 401)

stacked = {f"k{key}": "x" for key in range(1, 18)}
for path in ("/v1/hit", "/v1/peek", "/v1/charge", "/v1/refund"):
    drive(STACKED, "POST", path, 500, json={"operation": stacked})
drive(STACKED, "POST", "/v1/hits", 200, json={"hits": [{"operation": stacked}]})
drive(STACKED, "POST", "/v1/hits", 500, json={"hits": [{"operation": stacked}], "atomic": True})
drive(STACKED, "POST", "/v1/reservations", 500, json={"operation": stacked, "amount": 1, "ttl": 60})
drive(STACKED, "GET", "/v1/check", 500, params=stacked)
