"""Calls gRPC methods like grpcurl, relying on reflection alone: grpc_call.py ADDRESS

Reads a call a line, `SERVICE/METHOD {message as JSON}`, and prints a line each: the reply as JSON, or `ERROR CODE message`.
`list` prints the names of the services. The connection is kept from call to call.
"""

import json
import sys

import grpc
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1])
database = ProtoReflectionDescriptorDatabase(channel)
pool = DescriptorPool(database)


def call(name, message):
    service, method = name.split("/")
    method = pool.FindServiceByName(service).methods_by_name[method]
    request = json_format.ParseDict(message, message_factory.GetMessageClass(method.input_type)())
    invoke = channel.unary_unary(
        f"/{name}",
        request_serializer=lambda sent: sent.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    try:
        reply = invoke(request, timeout=20)
    except grpc.RpcError as error:
        return f"ERROR {error.code().name} {error.details()}"
    return json.dumps(json_format.MessageToDict(reply, preserving_proto_field_name=True))


for line in sys.stdin:
    if line.strip() == "list":
        print(json.dumps(sorted(database.get_services())), flush=True)
        continue
    name, message = line.split(" ", 1)
    print(call(name, json.loads(message)), flush=True)
