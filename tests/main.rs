//! Tests over real sockets, real processes and real stores: one binary, a module a theme.
//!
//! Every server here listens on a free loopback port and is ended by its own process id.

mod access;
mod algorithms;
mod buckets;
mod cli;
mod clients;
mod conformance;
mod envoy;
mod flood;
mod grpc;
mod health;
mod kill;
mod line_protocol;
mod listing;
mod logs;
mod ops;
mod redis;
mod redis_cluster;
mod redis_failover;
mod redis_server;
mod redis_tls;
mod reference;
mod reload;
mod resp;
mod robustness;
mod rocks;
mod support;
mod tls;
mod token_bucket;
