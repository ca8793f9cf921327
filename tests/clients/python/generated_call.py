"""Calls gRPC methods through code that is generated from a definition:

    generated_call.py ADDRESS DIRECTORY DEFINITION

Reads a call a line, `SERVICE/METHOD {message as JSON}`, and prints a line each: the reply as JSON with all of its fields, or
`ERROR CODE message`. The service's stub and messages are those that protoc makes of DEFINITION, a file in DIRECTORY, as any
client of the service has them.
"""

import importlib
import importlib.resources
import json
import sys
import tempfile
from pathlib import Path

import grpc
from google.protobuf import json_format
from grpc_tools import protoc

address, directory, definition = sys.argv[1:]
with tempfile.TemporaryDirectory() as generated:
    files = [str(file.relative_to(directory)) for file in Path(directory).rglob("*.proto")]
    of_google = importlib.resources.files("grpc_tools") / "_proto"
    options = [f"-I{directory}", f"-I{of_google}", f"--python_out={generated}", f"--grpc_python_out={generated}"]
    if protoc.main(["", *options, *files]):
        sys.exit("protoc failed")
    # Otherwise Python might find another package of the same name.
    for package in Path(generated).rglob("*/"):
        (package / "__init__.py").touch()
    sys.path.insert(0, generated)
    module = definition.removesuffix(".proto").replace("/", ".")
    protos, services = (importlib.import_module(module + suffix) for suffix in ("_pb2", "_pb2_grpc"))
channel = grpc.insecure_channel(address)


def call(name, message):
    service, method = name.split("/")
    service = protos.DESCRIPTOR.services_by_name[service.rpartition(".")[2]]
    stub = getattr(services, f"{service.name}Stub")(channel)
    request = service.methods_by_name[method].input_type._concrete_class()
    json_format.ParseDict(message, request)
    try:
        reply = getattr(stub, method)(request, timeout=20)
    except grpc.RpcError as error:
        return f"ERROR {error.code().name} {error.details()}"
    as_dict = json_format.MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps(as_dict)


for line in sys.stdin:
    name, message = line.split(" ", 1)
    print(call(name, json.loads(message)), flush=True)
