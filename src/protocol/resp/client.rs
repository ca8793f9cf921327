//! The client's side: requests written, replies read.

use redis_protocol::error::RedisProtocolError;
/// A reply of either version of the protocol.
pub use redis_protocol::resp3::types::OwnedFrame as Frame;
use redis_protocol::{resp2, resp3};

use super::{ReplyWriter, Version};

/// Appends a request of these arguments.
pub fn write_request<A: AsRef<[u8]>>(out: &mut Vec<u8>, arguments: &[A]) {
    // A request is what a reply of the same shape is, too: an array of bulk strings.
    let mut writer = ReplyWriter::new(out, Version::Resp2);
    writer.array(arguments.len());
    for argument in arguments {
        writer.bulk(argument.as_ref());
    }
}

/// Reads the reply at the front of `bytes`, from a connection that speaks `version`: it, and how many bytes it took;
/// `None` while it is unfinished.
///
/// For replies of a server that one trusts: it recurses into nested ones.
///
/// # Errors
/// When `bytes` start with no reply.
pub fn decode_reply(bytes: &[u8], version: Version) -> Result<Option<(Frame, usize)>, RedisProtocolError> {
    match version {
        Version::Resp2 => {
            let reply = resp2::decode::decode(bytes)?;
            Ok(reply.map(|(frame, consumed)| (frame.into_resp3(), consumed)))
        }
        Version::Resp3 => resp3::decode::complete::decode(bytes),
    }
}
