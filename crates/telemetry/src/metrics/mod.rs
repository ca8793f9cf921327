//! Counters, gauges and timings of the server: typed handles to update them, and their text for Prometheus and statsd.
//!
//! Each theme has a file with a struct of handles, and [`Metrics`] owns one of each. The code that counts calls a
//! method on a handle that was looked up before, so no update looks up a name. Label values are constants of this crate
//! or come from the rules file. They never contain bytes from a client. A store keeps its own measurements, and returns
//! them as [`Metric`]s on request. Nothing here depends on rules, stores or protocols, and [`statsd`] has the only
//! socket.
//!
//! To add a theme, write a struct that creates its metrics through [`Registry`](registry::Registry) in `new`, and add a
//! field to [`Metrics`].

mod access;
mod audit;
mod batches;
mod catalog;
mod config;
mod connections;
mod crowdsec;
mod errors;
mod external_counter;
mod histogram;
mod hits;
mod limits;
mod metric;
mod process;
mod registry;
mod requests;
mod shard;
mod statsd;
mod tasks;

pub use prometheus::IntCounter as Counter;

pub use self::access::Access;
pub use self::audit::Audit;
pub use self::batches::Batches;
pub use self::catalog::Metrics;
pub use self::config::Config;
pub use self::connections::{Connections, FrontConnections, OpenConnection};
pub use self::crowdsec::{Crowdsec, Effect};
pub use self::errors::ErrorKind;
pub use self::histogram::{Histogram, Unit};
pub use self::hits::{Hits, RuleCount, RuleHits};
pub use self::limits::{Bound, Bounds};
pub use self::metric::Metric;
pub use self::requests::{FrontRequests, RequestKind, RequestTally, Requests};
pub use self::statsd::{Statsd, StatsdOptions, Transport};
pub use self::tasks::{Task, Tasks};

#[cfg(test)]
mod tests;
