"""Drives a running server with valkey-glide: drive_glide.py RESP_PORT

Exits with 0 when every answer is what the rules of tests/compat/line-protocol.ini promise.
"""

import asyncio
import sys

from glide import GlideClient, GlideClientConfiguration, InfoSection, NodeAddress, ProtocolVersion

PORT = int(sys.argv[1])


async def drive(protocol):
    configuration = GlideClientConfiguration(
        [NodeAddress("127.0.0.1", PORT)], protocol=protocol, client_name="test", request_timeout=60_000
    )
    client = await GlideClient.create(configuration)
    hit = ["DIVVY.HIT", "method=GET", "path=/pantry/cookies/x", f"ip=glide-{protocol.name}"]
    answers = [(await client.custom_command(hit))[:2] for _ in range(4)]
    assert answers == [[1, 2], [1, 1], [1, 0], [0, 0]], answers
    assert b"role:master" in await client.info([InfoSection.REPLICATION])
    assert await client.custom_command(["ROLE"]) == [b"master", 0, []]
    assert b"lib-name=GlidePy" in await client.custom_command(["CLIENT", "INFO"])
    await client.close()


async def main():
    for protocol in ProtocolVersion:
        await drive(protocol)


asyncio.run(main())
