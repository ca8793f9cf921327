//! HTTP/1.1 and HTTP/2 connections, for the HTTP and gRPC fronts. A library parses them. This module bounds a
//! connection's time and memory.
//!
//! | module | purpose |
//! |---|---|
//! | [`serve`] | one connection, from its first byte to its end |
//! | [`bounds`] | the library's settings; bounds on request bodies |
//! | [`reply`] | bodies of responses; memory of calls, and of replies that the client has not read |
//! | [`timed_stream`] | how long a client may be slow, even while it reads a stream of events, and how much of its input is read in one run |
//! | [`wakeups`] | fewer wake-ups and timers than the library alone would cause |

pub mod bounds;
pub mod reply;
pub mod serve;
pub mod timed_stream;
mod wakeups;
