//! Redis's protocol (RESP), versions 2 and 3, as <https://redis.io/docs/latest/develop/reference/protocol-spec/> has it.
//!
//! Requests are flat arrays of bulk strings, or inline commands. [`Decoder`] scans them itself: a general RESP decoder
//! recurses into nested arrays and starts an unfinished array again at every read, neither of which is wise with
//! untrusted bytes, and it builds a tree where a list of ranges will do. [`ReplyWriter`] writes the server's replies.
//! [`client`] is the other side, on the crate `redis-protocol`.

pub mod client;
mod inline;
mod queue;
mod reply;
mod request;

pub use queue::{Queue, QueuedRequest};
pub use reply::{ReplyWriter, Version};
pub use request::{Arguments, Decoder, Limits, ProtocolError};
