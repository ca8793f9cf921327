//! Tests with real sockets, processes and stores, in one binary with a module per topic.
//!
//! Every server listens on a free loopback port, and is ended by its own process id.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

#[cfg_attr(not(feature = "full"), allow(dead_code, unused_imports, reason = "most of it is for the tests below"))]
mod support;

// These tests need nothing but cargo. `make test-unit` runs them.
mod examples;
mod hostile_http_2;
mod http_2;
mod limits;
mod line_protocol;
mod logs;
mod mistakes;
mod pages;
mod resp;
mod robustness;
mod rule_tests;
mod version;
mod wire;

/// These tests need the whole program, or others such as redis-server. `make test` runs them, too.
#[cfg(feature = "full")]
#[path = "."]
mod full {
    pub mod access;
    pub mod actor_limits;
    pub mod audit;
    pub mod blocks;
    pub mod buckets;
    pub mod calendar;
    pub mod cancellation;
    pub mod check_evasion;
    pub mod cli;
    pub mod client_libraries;
    pub mod clients;
    pub mod concurrency;
    pub mod configuration;
    pub mod conformance;
    pub mod crowdsec;
    pub mod damage;
    pub mod debt;
    pub mod drain;
    pub mod envoy;
    pub mod envoy_storms;
    pub mod exhaustion;
    pub mod flags;
    pub mod flood;
    pub mod formats;
    pub mod gateways;
    pub mod grpc;
    pub mod health;
    pub mod http;
    pub mod idempotency;
    pub mod init;
    pub mod judge;
    pub mod kill;
    pub mod kills;
    pub mod kuadrant;
    pub mod kuadrant_policies;
    pub mod language_models;
    pub mod listing;
    pub mod live_page;
    pub mod log_trouble;
    pub mod metrics;
    pub mod networks;
    pub mod openapi;
    pub mod ops;
    pub mod original_rules;
    pub mod overruns;
    pub mod packaging;
    pub mod plans;
    pub mod power;
    pub mod quota_groups;
    pub mod ratelimit;
    pub mod ratelimit_env;
    pub mod recipes;
    pub mod redis;
    pub mod redis_cluster;
    pub mod redis_failover;
    pub mod redis_outage;
    pub mod redis_replication;
    pub mod redis_scripts;
    pub mod redis_server;
    pub mod redis_tls;
    pub mod redis_versions;
    pub mod reload;
    pub mod reservations;
    pub mod rocks;
    pub mod rule_blocks;
    pub mod shares;
    pub mod sockets;
    pub mod stacks;
    pub mod statsd;
    pub mod status;
    pub mod storms;
    pub mod subcommands;
    pub mod tls;
    pub mod token_bucket;
    pub mod tokens;
    pub mod ui;
    pub mod users;
    pub mod xds;
}
#[cfg(feature = "full")]
use self::full::*;
