//! divvy: quotas and rate limits as a service. This page is the map of the code.
//!
//! ```text
//! bytes ─► protocol (decode) ─► limiter ─► rules (which limits apply?) ─► store (take credit) ─► verdict ─► protocol (encode) ─► bytes
//! ```
//!
//! One read of a connection may contain many requests. **The batch is the unit everywhere**: divvy reads once, decodes
//! every complete request, applies them as one batch, encodes every reply, and writes once. Batches keep the order of a
//! connection, allow pipelining, share one commit among many hits, and need few system calls.
//!
//! | module | contains | does not contain |
//! |---|---|---|
//! | [`cli`] | subcommands, one per file; messages for the operator | decisions |
//! | [`config`] | parsing of rules files (INI, JSON) into validated rules, or a report of every problem with its line; conversion of ratelimit's YAML | counting |
//! | [`server`] | sockets: accept, TLS, logins, read, write, timeouts, shutdown; a session per protocol, the HTTP API, decisions from and for CrowdSec; `net` has the parts that no protocol owns | policy |
//! | [`protocol`] | conversion between bytes and requests or replies: Divvy's line protocol, RESP and its commands, Envoy's, Kuadrant's and CrowdSec's messages | sockets |
//! | [`limiter`] | planning of requests by the rules; reports from the store's outcomes; rankings of the actors of each rule; blocks of actors that a rule keeps denying | protocols, files |
//! | [`access`] | users and tokens: the access file, the key file, logins, the categories and the scope of each user | sockets |
//! | [`rules`] | the operator's rules, compiled: the limits that apply to an operation | time, counters |
//! | [`api`] | what operators can ask for, declared once: fields, replies, rights, metrics and audit lines of each operation | how a front reads and writes it |
//! | [`store`] | storage of counters in RocksDB, Redis or memory, behind one contract; keys and values as bytes, bounds, and layers in front of a distant store | rules |
//! | [`calendar`] | calendar windows: when a day or a month begins and ends in a time zone | counting, the current time |
//! | [`algorithm`] | pure decisions: (limit, state, request, time) → (outcome, state) | clocks, I/O |
//! | [`audit`] | the audit log: a line for each change by an operator; its file, queue and writer | the changes themselves |
//! | [`files`] | reading of files that operators name, without waiting | their format |
//! | [`json`] | objects, whole numbers and messages, for JSON from operators and clients | the structure of files and bodies |
//! | [`logging`] | the log: queue, format, escaping, throttling | the events themselves |
//! | [`clock`] | reading of the clock, which happens nowhere else | |
//! | [`nearest`] | the known word that a misspelled one stands for | |
//! | [`units`] | times and sizes as operators write them | flags |
//! | [`metrics`] | counters and timings, one topic per file; Prometheus's text and statsd's packets | rules, stores, protocols |
//!
//! Imports go downward only: `cli` → `server`, `config` → `protocol` → `api` → `limiter` → `access` → `rules`, `store` →
//! `calendar` → `algorithm`, `audit` → `files`, `json`, `logging`, `metrics` → `clock`, `nearest`, `units`. Modules on the same
//! level do not import each other, and files within a module do not import each other in circles
//! (`tests/architecture.rs`). Fronts, the servers of the protocols,
//! call the limiter and nothing below it. From `rules` they use the types of a request (operations and patterns), and
//! everything else comes from the limiter, including the store's name and backups. Code that needs two modules is
//! divided between them. `unsafe` is forbidden here: the calls that need it are in `crates/sys`.
//!
//! Invariants:
//! - Time is a parameter. The time for decisions is read once per batch, in [`limiter`], and passed down.
//! - An acknowledged hit is on disk: a reply is sent only after the write-ahead log contains the changes that it
//!   depends on, unless the operator chose otherwise (`lazy`, `memory`).
//! - The limit is part of a bucket's identity, unless the rule names its counter. If the limit changes, the rule starts
//!   with new counters. If it stays, every counter survives a restart.
//! - Nothing from outside is unwrapped or used as an index. A client's mistake causes an error reply, and the server
//!   keeps running.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unwrap_used,
        reason = "a test may panic"
    )
)]

pub mod access;
pub mod algorithm;
pub mod api;
pub mod audit;
pub mod calendar;
pub mod cli;
pub mod clock;
pub mod config;
pub mod files;
pub mod json;
pub mod limiter;
pub mod logging;
pub mod metrics;
mod nearest;
pub mod protocol;
pub mod rules;
pub mod server;
pub mod store;
mod units;
