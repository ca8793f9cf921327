//! Protocols: bytes ↔ requests and replies.
//!
//! - [`mod@line`]: the line protocol of Button's Divvy, `HIT key=value …`.
//! - [`resp`]: Redis's protocol, versions 2 and 3: decoding of requests, writing of replies.
//! - [`command`]: the commands of RESP requests as a typed enum, and their table.
//!
//! Decoders keep their position between reads, so input that arrives byte by byte costs no more than input that arrives at
//! once. They check each limit before they wait for the bytes that would exceed it. Nothing here touches a socket, keeps a
//! counter or depends on rules.

pub mod command;
pub mod line;
pub mod resp;

/// Default maximum number of pairs in an operation.
pub const DEFAULT_MAX_PAIRS: usize = 256;
