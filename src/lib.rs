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
//! The workspace is a crate for each part. This crate is the binary, and names the others' modules for tests and benches.
//!
//! | crate | contains | does not contain |
//! |---|---|---|
//! | `src/`: [`cli`] | subcommands, a file per subject; the start of a server, and its files that are loaded anew; messages for the operator | decisions about requests |
//! | `ui` | the live page: its files, its streams of figures, and the logins of browsers | actions, which belong to the API |
//! | [`server`] | sockets: accept, TLS, logins, read, write, timeouts, shutdown; a session per protocol, the HTTP API; `net` has the parts that no protocol owns, and [`protocol`] the conversion between bytes and requests or replies | policy |
//! | [`api`] | what operators can ask for, declared once: fields, replies, rights, metrics and audit lines of each operation | how a front reads and writes it |
//! | [`access`] | users and tokens: the access file, the key file, logins, the categories and the scope of each user; in [`audit`] a line for each change by an operator | sockets, the changes themselves |
//! | [`limiter`] | planning of requests by the rules; reports from the store's outcomes; rankings of the actors of each rule; limits, blocks and allows of single actors, by operators and by rules that keep denying them; [`store`], the closed set of stores | protocols, files |
//! | `redis`, `rocks` | the stores on Redis and on RocksDB, the only crate that needs it | rules |
//! | `store` | the contract of stores of counters; keys and values as bytes, bounds, the store in memory, and layers in front of a distant store: shares of hot counters, known denials, and the answer if it fails | rules |
//! | `telemetry` | [`metrics`], counters and timings, one topic per file, and [`logging`] | the events themselves |
//! | `core` | what is decided without sockets and stores: [`rules`] and their files ([`config`]), the [`algorithm`]s, [`calendar`]s and the [`clock`] | I/O, except the files that operators name |
//! | `sys` | the calls that need `unsafe`, which is forbidden in all other crates | |
//!
//! A crate depends only on crates below it in this table. Fronts, the servers of the protocols, call the limiter and no store.
//! From `core` they use types (operations, rules to show, limits of commands that carry their own), the clock and the
//! readers of numbers. Everything else comes from the limiter, including the store's name and backups.
//!
//! The load generator, `divvy-bench`, and the client between divvy and CrowdSec, `divvy-crowdsec`, are programs of their own in
//! `tools/`.
//!
//! Invariants:
//! - Time is a parameter. The time for decisions is read once per batch, in [`limiter`], and passed down. In Redis, Redis's
//!   clock decides.
//! - An acknowledged hit is on disk: a reply is sent only after the write-ahead log contains the changes that it
//!   depends on, unless the operator chose otherwise (`lazy`, `memory`, or a Redis without it).
//! - The limit is part of a bucket's identity, unless the rule names its counter. If the limit changes, the rule starts
//!   with new counters. If it stays, every counter survives a restart.
//! - Nothing from outside is unwrapped or used as an index. A client's mistake causes an error reply, and the server
//!   keeps running.

pub mod cli;

pub use divvy_access::{self as access, audit};
pub use divvy_api as api;
pub use divvy_core::{algorithm, calendar, clock, config, json, regular_file, rules, suggestion, units};
pub use divvy_limiter::{self as limiter, store};
pub use divvy_server::{self as server, protocol};
pub use divvy_telemetry::{logging, metrics};
