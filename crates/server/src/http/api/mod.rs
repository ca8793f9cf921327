//! The HTTP API: hits in JSON, checks for gateways, and requests about rules and counters.
//!
//! The endpoints are methods of [`Api`], their state. [`body`] and [`query`] read requests, and [`answer`] and
//! [`ratelimit`] represent the limiter's answers. This module makes no decisions.

pub mod answer;
pub mod body;
pub mod check;
pub mod hit;
pub mod hits;
mod idempotency;
mod openapi;
mod operation;
pub(super) mod operations;
pub mod query;
pub mod ratelimit;
mod reservations;
mod state;
mod web_origins;

#[cfg(test)]
pub(super) use self::openapi::DESCRIPTION;
pub(super) use self::openapi::describe;
pub(super) use self::state::Api;
pub use self::state::ApiSettings;
pub use self::web_origins::{InvalidOrigin, WebOrigin, WebOrigins};
