"""gRPC channels whose calls may have an authorization."""

import grpc


class Authorization(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Adds the metadata `authorization` to each call."""

    def __init__(self, value):
        self.value = value

    def intercept_unary_unary(self, proceed, details, request):
        metadata = [*(details.metadata or ()), ("authorization", self.value)]
        return proceed(details._replace(metadata=metadata), request)

    intercept_stream_stream = intercept_unary_unary


def open_channel(address, authorization=None):
    """Returns a channel to this address."""
    channel = grpc.insecure_channel(address)
    return grpc.intercept_channel(channel, Authorization(authorization)) if authorization else channel
