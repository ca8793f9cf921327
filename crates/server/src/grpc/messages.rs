//! The messages of the services, generated from the files in `proto`; and unary calls: how a message is read from the body of a
//! request, and written into the body of a response.

use hyper::header::HeaderName;
use hyper::{HeaderMap, Response};
use prost::Message;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::http::transport::bodies::{Reply, RequestBody};

/// The code that the files in proto/ compile to.
#[allow(clippy::all, clippy::allow_attributes_without_reason, missing_docs, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/services/messages.rs"));
}
pub use generated::{envoy, kuadrant};

/// The same for gRPC's reflection: an encoded `FileDescriptorSet`.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const IDENTITY: &str = "identity";
/// Length of a message's prefix: a byte that says whether it is compressed, and its length in four bytes.
pub const PREFIX: usize = 5;

/// Reads the message of a call with these headers, which may have `max` bytes. Returns it with its length.
///
/// # Errors
/// There is no message that can be decoded. The code is `OutOfRange` if it is too long.
pub(super) fn read<M: Message + Default>(
    headers: &HeaderMap,
    body: RequestBody,
    max: usize,
) -> Result<(M, usize), Status> {
    if let Some(encoding) = headers.get(ENCODING).filter(|encoding| *encoding != IDENTITY) {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        let mut status =
            Status::unimplemented(format!("Content is compressed with `{encoding}` which isn't supported"));
        status.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static(IDENTITY));
        return Err(status);
    }
    let Some(data) = body.within(usize::MAX) else {
        return Err(Status::out_of_range(format!("Error, the message is longer than {max} bytes")));
    };
    if data.is_empty() {
        return Err(Status::internal("Missing request message."));
    }
    let length = message_length(&data, max)?.filter(|length| *length <= data.len() - PREFIX);
    let length = length.ok_or_else(|| Status::internal("Unexpected EOF decoding stream."))?;
    let message = M::decode(data.slice(PREFIX..PREFIX + length));
    Ok((message.map_err(|error| Status::internal(error.to_string()))?, length))
}

/// Returns the length of the message that begins with these bytes; `None` if they are too few.
fn message_length(data: &[u8], max: usize) -> Result<Option<usize>, Status> {
    let Some([flag, length @ ..]) = data.first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    match flag {
        0 if length > max => Err(Status::out_of_range(format!(
            "Error, decoded message length too large: found {length} bytes, the limit is: {max} bytes"
        ))),
        0 => Ok(Some(length)),
        1 => Err(Status::internal(
            "protocol error: received message with compressed-flag but no grpc-encoding was specified",
        )),
        flag => Err(Status::internal(format!(
            "protocol error: received message with invalid compression flag: {flag} (valid flags are 0 and 1), while sending \
             request"
        ))),
    }
}

/// Returns a message after its prefix.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    // A vector of exactly this capacity becomes `Bytes` without a copy.
    let mut bytes = Vec::with_capacity(PREFIX + length);
    bytes.push(0);
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    message.encode_raw(&mut bytes);
    bytes
}

/// Returns the response with a message.
pub(super) fn write(message: &impl Message) -> Response<Reply> {
    Response::new(Reply::Message(framed(message).into()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tonic::Code;

    use super::envoy::service::ratelimit::v3::RateLimitRequest;
    use super::*;

    const MAX: usize = 100;

    fn request(domain: &str) -> RateLimitRequest {
        RateLimitRequest { domain: Bytes::copy_from_slice(domain.as_bytes()), ..RateLimitRequest::default() }
    }

    fn encoded(domain: &str) -> Vec<u8> {
        let message = request(domain).encode_to_vec();
        [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()
    }

    /// Reads a message from this body.
    fn read(encoding: Option<&str>, body: RequestBody) -> Result<RateLimitRequest, Code> {
        let mut headers = HeaderMap::new();
        headers.extend(encoding.map(|encoding| (ENCODING, encoding.parse().unwrap())));
        super::read(&headers, body, MAX).map(|(message, _)| message).map_err(|status| status.code())
    }

    fn whole(bytes: &[u8]) -> RequestBody {
        RequestBody::Whole(Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn first_message_of_a_body_is_read() {
        let bytes = encoded("edge");
        assert_eq!(read(None, whole(&bytes)), Ok(request("edge")));
        assert_eq!(read(Some("identity"), whole(&bytes)), Ok(request("edge")));
        assert_eq!(read(None, whole(&[0; PREFIX])), Ok(request("")), "an empty message");
        assert_eq!(
            read(None, whole(&[&bytes[..], &bytes].concat())),
            Ok(request("edge")),
            "only the first message counts"
        );
    }

    #[test]
    fn mistakes_have_the_codes_of_the_library() {
        let bytes = encoded("edge");
        let changed = |place: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[place] = to;
            whole(&bytes)
        };
        for (encoding, body, expected) in [
            (Some("gzip"), whole(&bytes), Code::Unimplemented),
            (None, whole(&[]), Code::Internal),
            (None, whole(&bytes[..3]), Code::Internal),
            (None, whole(&bytes[..7]), Code::Internal),
            (None, changed(0, 1), Code::Internal),
            (None, changed(0, 2), Code::Internal),
            (None, changed(1, 0xff), Code::OutOfRange),
            (None, changed(6, 0xff), Code::Internal),
            (None, whole(&encoded(&"a".repeat(MAX))), Code::OutOfRange),
            (None, RequestBody::Unread, Code::OutOfRange),
        ] {
            assert_eq!(read(encoding, body), Err(expected), "{encoding:?}");
        }
    }
}
