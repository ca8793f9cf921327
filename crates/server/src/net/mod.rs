//! Connections of all fronts, and the bounds on them. This module does not depend on a protocol.
//!
//! | purpose | modules |
//! |---|---|
//! | sockets | [`accept`] (listening sockets and accept loops), [`admission`] (bounds on open connections), [`stream`], [`tls`] |
//! | clients | [`auth`] (logins), [`sessions`] (logins of browsers), [`origin`] (where requests come from) |
//! | a connection's life | [`connection`] (read, answer, write), [`session`] (the protocol's side) |
//! | memory | [`memory`] (the budget of all buffers), [`request_memory`] (requests in work), [`pool`] |
//! | work | [`workers`] (threads), [`work_slots`] (bound on expensive requests), [`calls_in_flight`] (one call per key) |

pub mod accept;
pub mod admission;
pub mod auth;
pub mod calls_in_flight;
pub mod connection;
pub mod memory;
pub mod origin;
pub mod pool;
pub mod request_memory;
pub mod session;
pub mod sessions;
pub mod stream;
pub mod tls;
pub mod work_slots;
pub mod workers;
