"""Drives a running server with redis-py or valkey-py: drive.py redis|valkey RESP_PORT [PASSWORD [USER]]

Exits with 0 when every answer is what the rules of tests/compat/line-protocol.ini promise.
"""

import importlib
import sys

library = importlib.import_module(sys.argv[1])
PORT = int(sys.argv[2])
PASSWORD = sys.argv[3] if len(sys.argv) > 3 else None
USER = sys.argv[4] if len(sys.argv) > 4 else None
Client = {"redis": "Redis", "valkey": "Valkey"}[sys.argv[1]]


def operation(ip):
    return ["method=GET", "path=/pantry/cookies/x", f"ip={ip}"]


def drive(protocol):
    client = getattr(library, Client)(
        host="127.0.0.1",
        port=PORT,
        username=USER,
        password=PASSWORD,
        protocol=protocol,
        decode_responses=True,
        client_name="test",
    )
    actor = operation(f"redis-py-{protocol}")
    answers = [client.execute_command("DIVVY.HIT", *actor)[:2] for _ in range(4)]
    assert answers == [[1, 2], [1, 1], [1, 0], [0, 0]], answers
    assert client.execute_command("DIVVY.PEEK", *actor)[0] == 0
    assert client.execute_command("DIVVY.RESET", *actor) == 1

    with client.pipeline(transaction=False) as pipeline:
        for _ in range(3):
            pipeline.execute_command("DIVVY.HIT", *actor)
        pipeline.ping()
        replies = pipeline.execute()
    assert [reply[1] for reply in replies[:3]] == [2, 1, 0], replies
    assert replies[3] is True

    # transaction=True is the default of pipeline().
    multi = operation(f"redis-py-multi-{protocol}")
    with client.pipeline() as pipeline:
        for _ in range(3):
            pipeline.execute_command("DIVVY.HIT", *multi)
        pipeline.ping()
        replies = pipeline.execute()
    assert [reply[1] for reply in replies[:3]] == [2, 1, 0], replies
    assert replies[3] is True
    with client.pipeline() as pipeline:
        pipeline.execute_command("DIVVY.HIT", *operation(f"redis-py-aborted-{protocol}"))
        pipeline.execute_command("NONSENSE")
        try:
            pipeline.execute()
            raise AssertionError("a transaction with an unknown command was executed")
        except library.ResponseError:
            pass
    assert client.execute_command("DIVVY.PEEK", *operation(f"redis-py-aborted-{protocol}"))[1] == 3
    assert any(listed["name"] == "test" for listed in client.client_list())
    info = client.client_info()
    assert (info["name"], info["cmd"], info["oll"], info["tot-mem"]) == ("test", "client|info", 0, 0), info
    assert client.role() == ["master", 0, []]
    assert client.info("replication")["role"] == "master"
    assert client.info("MEMORY", "clients").keys() >= {"used_memory", "used_memory_human", "blocked_clients"}
    assert client.info("keyspace") == {"db0": {"keys": client.dbsize(), "expires": 0, "avg_ttl": 0}}
    assert client.info("nonsense") == {}

    assert client.client_getname() == "test"
    assert client.info()["divvy_version"]
    assert client.dbsize() >= 0
    assert client.command_count() > 10
    assert "divvy.hit" in client.command()
    assert len(client.time()) == 2
    assert client.config_get("appendonly")
    try:
        client.execute_command("DIVVY.HIT", "no-pair")
        raise AssertionError("a malformed pair was accepted")
    except library.ResponseError:
        pass
    client.close()


for version in (2, 3):
    drive(version)
