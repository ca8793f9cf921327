//! The client's side: writes requests, and in tests reads replies.

#[cfg(test)]
use redis_protocol::error::RedisProtocolError;
/// A reply in either version of the protocol.
#[cfg(test)]
pub use redis_protocol::resp3::types::OwnedFrame as Frame;
#[cfg(test)]
use redis_protocol::{resp2, resp3};

use super::{ReplyWriter, Version};

/// Appends a request with these arguments.
pub fn write_request<A: AsRef<[u8]>>(out: &mut Vec<u8>, arguments: &[A]) {
    // A request has the same form as a reply that is an array of bulk strings.
    let mut writer = ReplyWriter::new(out, Version::Resp2);
    writer.array(arguments.len());
    for argument in arguments {
        writer.bulk(argument.as_ref());
    }
}

/// Reads the reply at the front of `bytes`, in this version of the protocol. Returns it with its length, or `None` while it is
/// unfinished. Only for tests, because it recurses into nested replies.
///
/// # Errors
/// `bytes` do not begin with a reply.
#[cfg(test)]
pub fn decode_reply(bytes: &[u8], version: Version) -> Result<Option<(Frame, usize)>, RedisProtocolError> {
    match version {
        Version::Resp2 => {
            let reply = resp2::decode::decode(bytes)?;
            Ok(reply.map(|(frame, consumed)| (frame.into_resp3(), consumed)))
        }
        Version::Resp3 => resp3::decode::complete::decode(bytes),
    }
}
