//! The wire: bytes ↔ requests and replies.
//!
//! - [`mod@line`]: the line protocol of Button's Divvy, `HIT key=value …`.
//! - [`resp`]: Redis's protocol, versions 2 and 3: framing of requests, writing of replies.
//! - [`command`]: the commands that RESP requests name, typed, and their table.
//! - [`envoy`]: the messages of Envoy's Rate Limit Service, and what they ask.
//! - [`kuadrant`]: what the messages of Kuadrant's service ask, which are made of Envoy's.
//!
//! Decoders take bytes and keep their place between reads, so that input fed byte by byte costs no more than input fed
//! whole; every limit is checked before the bytes that it forbids are waited for. Nothing here touches a socket, keeps a
//! counter or knows a rule.

pub mod command;
pub mod envoy;
pub mod kuadrant;
pub mod line;
pub mod resp;

/// How many pairs one operation may have, unless the operator says otherwise.
pub const DEFAULT_MAX_PAIRS: usize = 256;
