//! Connections of all fronts, and the bounds on them. This module does not depend on a protocol's requests.
//!
//! | module | purpose |
//! |---|---|
//! | [`accept`] | what a front is; listening sockets, accept loops, bounds on open connections, worker threads |
//! | [`protocol`] | the protocols of the fronts, and clients on the wrong port |
//! | [`stream`], [`tls`] | a connection's bytes, with or without TLS |
//! | [`connection`] | a connection's life: read, answer, write; the [`Session`](connection::Session) is the protocol's side |
//! | [`auth`], [`sessions`] | logins, and where requests come from; logins of browsers |
//! | [`memory`] | the budget of all buffers, memory of requests in work, buffers that are used again |
//! | [`places`] | what may be open at the same time, in total and for each client |
//! | [`work`] | bound on expensive requests, one call per key |

pub mod accept;
pub mod auth;
pub mod connection;
pub mod memory;
pub mod places;
pub mod protocol;
pub mod sessions;
pub mod stream;
pub mod tls;
pub mod work;
