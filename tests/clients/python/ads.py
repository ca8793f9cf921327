"""A management server of xDS with scripted responses: ads.py DIRECTORY [PORT [CERTIFICATE KEY CLIENT_CA]]

DIRECTORY has the definitions of the messages. Reads a command a line, and prints a line each:

    port                prints the port that it listens on
    request             waits for the next request, and prints it as JSON, or `end` if the client has closed the stream.
                        The first request of a stream has the member `headers`.
    respond RESPONSE    sends a response (JSON) on the newest stream. A resource is a RateLimitConfig, or {"bytes": "HEX"}
    end CODE            ends the newest stream with a status
"""

import json
import queue
import sys
import tempfile
from concurrent import futures
from importlib import resources
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc

TYPE = "ratelimit.config.ratelimit.v3.RateLimitConfig"
directory, port, *tls = [*sys.argv[1:], "0"][: max(2, len(sys.argv) - 1)]

with tempfile.NamedTemporaryFile() as described:
    options = [f"-I{directory}", f"-I{resources.files('grpc_tools') / '_proto'}", "--include_imports"]
    files = ["envoy/service/discovery/v3/discovery.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"]
    if protoc.main(["", *options, f"--descriptor_set_out={described.name}", *files]):
        sys.exit("protoc failed")
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(Path(described.name).read_bytes()).file:
        pool.Add(file)


def message(name):
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


Request, Response, Config = map(
    message,
    ["envoy.service.discovery.v3.DiscoveryRequest", "envoy.service.discovery.v3.DiscoveryResponse", TYPE],
)
requests, streams = queue.Queue(), []


def stream(incoming, context):
    sent = queue.Queue()
    streams.append(sent)

    def read():
        headers = dict(context.invocation_metadata())
        try:
            for request in incoming:
                shown = json_format.MessageToDict(request, preserving_proto_field_name=True)
                if headers:
                    shown["headers"], headers = headers, None
                requests.put(json.dumps(shown))
        except Exception:  # the client or this server has ended the stream
            pass
        requests.put("end")

    futures.ThreadPoolExecutor(1).submit(read)
    while True:
        answer = sent.get()
        if isinstance(answer, int):
            code = next(code for code in grpc.StatusCode if code.value[0] == answer)
            context.abort(code, "as the script says")
        yield answer


def response(scripted):
    resources = scripted.pop("resources", [])
    made = json_format.ParseDict({"type_url": f"type.googleapis.com/{TYPE}"} | scripted, Response())
    for resource in resources:
        if "bytes" in resource:
            value = bytes.fromhex(resource["bytes"])
        else:
            value = json_format.ParseDict(resource, Config()).SerializeToString()
        made.resources.add(type_url=f"type.googleapis.com/{TYPE}", value=value)
    return made


handler = grpc.stream_stream_rpc_method_handler(
    stream, request_deserializer=Request.FromString, response_serializer=lambda answer: answer.SerializeToString()
)
server = grpc.server(futures.ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)])
name = "envoy.service.discovery.v3.AggregatedDiscoveryService"
server.add_generic_rpc_handlers(
    [grpc.method_handlers_generic_handler(name, {"StreamAggregatedResources": handler})]
)
address = f"127.0.0.1:{port}"
if tls:
    certificate, key, authority = (Path(file).read_bytes() for file in tls)
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    port = server.add_secure_port(address, credentials)
else:
    port = server.add_insecure_port(address)
server.start()

for line in sys.stdin:
    command, _, argument = line.strip().partition(" ")
    if command == "port":
        print(port, flush=True)
    elif command == "request":
        print(requests.get(timeout=30), flush=True)
    else:
        streams[-1].put(response(json.loads(argument)) if command == "respond" else int(argument))
        print("sent", flush=True)
