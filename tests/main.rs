//! Tests over real sockets, real processes and real stores: one binary, a module a theme.
//!
//! Every server here listens on a free loopback port and is ended by its own process id.

mod access;
mod algorithms;
mod buckets;
mod cli;
mod clients;
mod conformance;
mod damage;
mod drain;
mod envoy;
mod flood;
mod grpc;
mod health;
mod http;
mod http_check;
mod kill;
mod limits;
mod line_protocol;
mod listing;
mod logs;
mod max_counters;
mod metrics;
mod middlewares;
mod nginx;
mod openapi;
mod ops;
mod redis;
mod redis_cluster;
mod redis_failover;
mod redis_outage;
mod redis_scripts;
mod redis_server;
mod redis_tls;
mod redis_unreachable;
mod reference;
mod reload;
mod resp;
mod robustness;
mod rocks;
mod sockets;
mod statsd;
mod support;
mod tls;
mod token_bucket;
