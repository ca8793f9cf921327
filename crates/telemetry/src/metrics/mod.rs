//! Counters, gauges and timings of the server: typed handles to update them, and their text for Prometheus and statsd.
//!
//! Each theme has a struct of handles, and [`Metrics`] owns one of each. The code that counts calls a
//! method on a handle that was looked up before, so no update looks up a name. Label values are constants of this crate
//! or come from the rules file. They never contain bytes from a client. A store keeps its own measurements, and returns
//! them as [`Metric`]s on request. Nothing here depends on rules, stores or protocols, and [`statsd`] has the only
//! socket.
//!
//! To add a theme, write a struct that creates its metrics through [`Registry`](registry::Registry) in `new`, and add a
//! field to [`Metrics`]. The values of its labels are [`named_values`].

mod background;
mod catalog;
mod connections;
mod histogram;
mod hits;
mod process;
mod registry;
mod requests;
mod statsd;

pub use prometheus::IntCounter as Counter;

pub use self::background::{Audit, Config, RuleBlocks, Task, Tasks};
pub use self::catalog::Metrics;
pub use self::connections::{Access, Connections, FrontAccess, FrontConnections, OpenConnection};
pub use self::histogram::{Histogram, Unit};
pub use self::hits::{Hits, RuleCount, RuleHits};
pub use self::registry::Metric;
pub use self::registry::named_values;
pub use self::requests::{Batches, Bound, Bounds, ErrorKind, FrontRequests, RequestKind, RequestTally, Requests};
pub use self::statsd::{Statsd, StatsdOptions, Transport};

#[cfg(test)]
mod tests;
