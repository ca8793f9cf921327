//! HTTP/1.1 and HTTP/2 connections, for the HTTP and gRPC fronts. A library parses them. This module bounds a
//! connection's time and memory.
//!
//! | module | purpose |
//! |---|---|
//! | [`serve`] | one connection, from its first byte to its end |
//! | [`fast_routes`] | the routes: frequent requests are answered before the router |
//! | [`bounds`] | the library's settings; bounds on request bodies |
//! | [`unsent_replies`], [`accounted_body`] | memory of calls, and of replies that the client has not read |
//! | [`timed`], [`read_budget`] | how long a client may be slow, and how much of its input is read in one run |
//! | [`endless`] | streams of events, whose clients must read, too |
//! | [`wakes`], [`one_timer`] | fewer wake-ups and timers than the library alone would cause |

mod accounted_body;
pub mod bounds;
pub mod endless;
pub mod fast_routes;
mod one_timer;
mod read_budget;
pub mod reply;
pub mod serve;
mod timed;
pub mod unsent_replies;
mod wakes;
