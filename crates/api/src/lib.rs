//! The operations of operators, each declared once: a row of [`ENDPOINTS`] has its fields, its reply, and its places in
//! HTTP, RESP, the command line, the access rights, the metrics and the audit log.
//!
//! Fronts read requests with [`Arguments`], and write replies in the [`Shape`] of the row. Each operation is carried out by one
//! function of the server. OpenAPI's description follows from the same rows, and from the routes of
//! [`hits`], whose requests have parsers of their own.

mod arguments;
mod declaration;
mod endpoints;
mod hits;
mod openapi;
mod rule_replies;

pub use arguments::{ArgumentError, Arguments};
pub use declaration::{Field, Kind, Member, Place, Reply, Route, Shape};
pub use endpoints::{
    BACK_UP, ENDPOINTS, EXPLAIN, Edit, Endpoint, FIND_LIMITS, FORGET_COUNTERS, Inspection, LIST_RULES, LIST_USERS,
    RANK, RELOAD, REMOVE_LIMIT, RESET_COUNTERS, SET_LIMIT, SHOW_STATS, Task, find,
};
pub use openapi::description;
