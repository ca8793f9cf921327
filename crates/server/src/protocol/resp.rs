//! Redis's protocol (RESP), versions 2 and 3: <https://redis.io/docs/latest/develop/reference/protocol-spec/>.
//!
//! Requests are flat arrays of bulk strings, or inline commands, and [`Decoder`] is written for them. A general RESP decoder
//! recurses into nested arrays and restarts an unfinished array at every read, which is unsafe with untrusted bytes, and it
//! builds a tree where a list of ranges is enough. [`ReplyWriter`] writes the server's replies. [`client`] is the client's
//! side, and uses the crate `redis-protocol`.

pub mod client;
mod inline;
mod queue;
mod reply;
mod request;

pub use queue::{Queue, QueuedRequest};
pub use reply::{ReplyWriter, Version};
pub use request::{Arguments, Decoder, Limits, ProtocolError};
