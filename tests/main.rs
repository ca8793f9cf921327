//! Tests over real sockets, real processes and real stores: one binary, a module a theme.
//!
//! Every server here listens on a free loopback port and is ended by its own process id.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

mod access;
mod algorithms;
mod buckets;
mod cancellation;
mod cli;
mod clients;
mod configuration;
mod conformance;
mod cost;
mod damage;
mod drain;
mod envoy;
mod flags;
mod flood;
mod grpc;
mod health;
mod hit;
mod http;
mod http_2;
mod http_check;
mod kill;
mod large_replies;
mod limits;
mod line_protocol;
mod listing;
mod log_trouble;
mod logs;
mod max_counters;
mod metrics;
mod middlewares;
mod monitoring;
mod nginx;
mod openapi;
mod ops;
mod original_rules;
mod power;
mod recipes;
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
mod storms;
mod subcommands;
mod support;
mod tls;
mod token_bucket;
mod transactions;
mod troubleshooting;
