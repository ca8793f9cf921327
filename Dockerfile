# Builds divvy and puts the one binary into a small image that does not run as root.
#
#   docker build -t divvy .
#   docker run -p 8321:8321 -p 9049:9049 -p 8322:8322 -p 8323:8323 \
#       -v divvy-data:/var/lib/divvy -v "$PWD/config:/etc/divvy:ro" divvy
#
# packaging/compose.yaml runs it with Prometheus and Grafana beside it, packaging/kubernetes has manifests. Without RocksDB
# (memory and Redis stores only) the image builds in minutes:
#
#   docker build -t divvy --build-arg CARGO_FLAGS="--no-default-features --features ui" .
#
# Before you publish an image, run `make notices`: the image then contains the licenses of all code in the binary.

FROM rust:1.95.0-bookworm AS build
# Debian removes a version of a package when it has a security update, so none is named.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libclang-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
ARG CARGO_FLAGS=
RUN make libraries CARGO_FLAGS="$CARGO_FLAGS" && cargo build --release --locked --bin divvy $CARGO_FLAGS && strip target/release/divvy

FROM debian:12.15-slim
LABEL org.opencontainers.image.title="divvy" \
      org.opencontainers.image.description="Quotas and rate limits as a service, over HTTP, gRPC, RESP and plain TCP" \
      org.opencontainers.image.version="0.2.0" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.base.name="docker.io/library/debian:12.15-slim"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libstdc++6 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --home-dir /var/lib/divvy --create-home --shell /usr/sbin/nologin divvy
COPY --from=build /src/target/release/divvy /usr/local/bin/divvy
# In place of envoyproxy/ratelimit: divvy reads its environment if it is called by its name.
RUN ln -s /usr/local/bin/divvy /bin/ratelimit
COPY LICENSE THIRD-PARTY-NOTICES* /usr/share/doc/divvy/
COPY config/example.ini /etc/divvy/example.ini
# The numbers, so that Kubernetes can tell that it is not root.
USER 10001:10001
VOLUME /var/lib/divvy
# Where ./divvy-data is; a DIVVY_DATA_DIR would be refused with --store redis.
WORKDIR /var/lib/divvy
# In a container loopback reaches nobody: the container's network decides who may connect.
ENV DIVVY_CONFIG=/etc/divvy/example.ini \
    DIVVY_LISTEN=0.0.0.0:8321 \
    DIVVY_RESP_LISTEN=0.0.0.0:9049 \
    DIVVY_HTTP_LISTEN=0.0.0.0:8322 \
    DIVVY_GRPC_LISTEN=0.0.0.0:8323
# The line protocol, RESP, HTTP, gRPC
EXPOSE 8321 9049 8322 8323
# Answers the requests in flight, writes the last counters and exits (docs/operations.md).
STOPSIGNAL SIGTERM
# The process answers, whether or not its store does: a restart would not mend the store. This asks without TLS: with
# certificates, leave `http` out of DIVVY_TLS_FRONTS, or put a health check of your own in its place. The start has a
# minute, in which failed checks do not count: the upgrade of a large data directory takes time.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8322 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && read -r -t 2 answer <&3 && [[ $answer == *' 200 '* ]]"]
ENTRYPOINT ["divvy"]
CMD ["serve"]
