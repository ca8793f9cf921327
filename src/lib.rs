//! divvy: quotas and rate limits as a service. This page is the map of the house.
//!
//! ```text
//! bytes ─► protocol (decode) ─► limiter ─► rules (which limits apply?) ─► store (take credit) ─► verdict ─► protocol (encode) ─► bytes
//! ```
//!
//! One read of a connection may carry many requests. **The batch is the unit everywhere**: read once, decode every
//! complete request, apply them as one batch, encode every reply, write once. Order on a connection, pipelining, one
//! commit for many hits and few system calls all come from that.
//!
//! | room | what lives there | what never does |
//! |---|---|---|
//! | [`cli`] | one file a subcommand; words for the operator | decisions |
//! | [`config`] | rules files (INI, JSON) → validated rules, or every problem with its line; ratelimit's YAML → rules | counting |
//! | [`server`] | sockets: accept, TLS, the password, read, write, timeouts, the end; a session per protocol, the HTTP API | judgement |
//! | [`protocol`] | bytes ↔ requests and replies: Divvy's line protocol, RESP and its commands, Envoy's and Kuadrant's messages | sockets |
//! | [`limiter`] | requests and rules → a plan; the store's outcomes → a report | protocols, files |
//! | [`rules`] | what the operator wrote, compiled: which limits apply to an operation | time, counters |
//! | [`store`] | what remembers: RocksDB, Redis, memory; one contract | rules |
//! | [`calendar`] | windows by the calendar: when a day or a month begins and ends in a time zone | counting, the present time |
//! | [`algorithm`] | pure decisions: (limit, state, ask, time) → (outcome, state) | clocks, I/O |
//! | [`files`] | files that operators name: read whole, without waiting | what is in them |
//! | [`logging`] | the log: its queue, its form, what is safe to print in it, how often | what happened |
//! | [`clock`] | the only place that asks what time it is | |
//! | [`metrics`] | what is counted and timed, a file a theme; Prometheus's text and statsd's packets | rules, stores, protocols |
//!
//! Imports go downward only: `cli` → `server`, `config` → `limiter`, `protocol` → `rules`, `store` →
//! `calendar` → `algorithm` → `files`, `logging`, `metrics` → `clock`; rooms of one height do not import each other, and neither do files within a
//! room in circles (`tests/architecture.rs`). Fronts call the limiter and nothing below it: from `rules` they take the words in which a request
//! is put (operations and patterns), from the limiter everything else, the store's name and backups included. A line
//! of code that needs two rooms is two lines. `unsafe` is forbidden here: the calls that need it are in `crates/sys`.
//!
//! What holds throughout:
//! - Time is a parameter. What decides is read once per batch, in [`limiter`], and passed down.
//! - An acknowledged hit is on disk: unless the operator chose otherwise (`lazy`, `memory`), a reply leaves only after
//!   the write-ahead log has what it rests on.
//! - The limit is part of a bucket's identity, unless the rule names its counter: change it and the rule counts afresh, leave it and a restart keeps
//!   every counter.
//! - Nothing that came from outside is unwrapped, or used as an index; a client's mistake is an error reply and the server lives
//!   on.

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

pub mod algorithm;
pub mod calendar;
pub mod cli;
pub mod clock;
pub mod config;
pub mod files;
pub mod limiter;
pub mod logging;
pub mod metrics;
pub mod protocol;
pub mod rules;
pub mod server;
pub mod store;
