//! Connections of all fronts, and the bounds on them. This module does not depend on a protocol.
//!
//! | purpose | modules |
//! |---|---|
//! | sockets | [`listen`], [`accept`] (the accept loops), [`admission`] (bounds on open connections), [`stream`], [`tls`] |
//! | clients | [`auth`] (logins), [`sessions`] (logins of browsers), [`origin`] (where requests come from) |
//! | a connection's life | [`connection`] (read, answer, write), [`session`] (the protocol's side), [`progress`] (does the client read its replies?) |
//! | memory | [`memory`] (the budget of all buffers), [`request_memory`] (requests in work), [`pool`], [`freed_memory`] |
//! | work | [`workers`] (threads), [`work_slots`] (bound on expensive requests), [`calls_in_flight`] (one call per key) |

pub mod accept;
pub mod admission;
pub mod auth;
pub mod calls_in_flight;
pub mod connection;
pub mod freed_memory;
pub mod listen;
pub mod memory;
pub mod origin;
pub mod pool;
pub mod progress;
pub mod request_memory;
pub mod session;
pub mod sessions;
pub mod stream;
pub mod tls;
pub mod work_slots;
pub mod workers;
