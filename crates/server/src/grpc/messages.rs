//! The messages of the services, generated from the files in `proto`; and unary calls: how a message is read from the body of a
//! request, and written into the body of a response.

use bytes::{Bytes, BytesMut};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response};
use prost::Message;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::http::transport::request_body::{Incoming, next_data};
use crate::http::transport::response_body::Reply;

/// The code that the files in proto/ compile to.
#[allow(clippy::all, clippy::allow_attributes_without_reason, missing_docs, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}
pub use generated::{envoy, kuadrant};

/// The same for gRPC's reflection: an encoded `FileDescriptorSet`.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const IDENTITY: &str = "identity";
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");
/// Length of a message's prefix: a byte that says whether it is compressed, and its length in four bytes.
const PREFIX: usize = 5;

/// Reads the message of a call with these headers, which may have `max` bytes. Returns it with its length.
///
/// # Errors
/// There is no message that can be decoded. The code is `OutOfRange` if it is too long.
pub(super) async fn read<M: Message + Default>(
    headers: &HeaderMap,
    mut body: impl Incoming,
    max: usize,
) -> Result<(M, usize), Status> {
    if let Some(encoding) = headers.get(ENCODING).filter(|encoding| *encoding != IDENTITY) {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        let mut status =
            Status::unimplemented(format!("Content is compressed with `{encoding}` which isn't supported"));
        status.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static(IDENTITY));
        return Err(status);
    }
    let mut data = next_data(&mut body).await.map_err(Status::from_error)?.unwrap_or_default();
    // Fast path: the whole message is one frame, which is not copied.
    if !body.is_end_stream() {
        data = read_rest(data, body, max).await?;
    }
    if data.is_empty() {
        return Err(Status::internal("Missing request message."));
    }
    let length = message_length(&data, max)?.filter(|length| *length <= data.len() - PREFIX);
    let length = length.ok_or_else(|| Status::internal("Unexpected EOF decoding stream."))?;
    let message = M::decode(data.slice(PREFIX..PREFIX + length));
    Ok((message.map_err(|error| Status::internal(error.to_string()))?, length))
}

/// Reads a body to its end. Only the first message is kept.
async fn read_rest(first: Bytes, mut body: impl Incoming, max: usize) -> Result<Bytes, Status> {
    let mut all = BytesMut::from(first);
    loop {
        // A message that is too long is refused before it has come in.
        let end = message_length(&all, max)?.map_or(usize::MAX, |length| PREFIX + length);
        let Some(mut piece) = next_data(&mut body).await.map_err(Status::from_error)? else { return Ok(all.freeze()) };
        piece.truncate(end.saturating_sub(all.len()));
        all.extend_from_slice(&piece);
    }
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

/// Returns the response with a message. Reuses `headers`, which are the request's.
pub(super) fn write(message: &impl Message, mut headers: HeaderMap) -> Response<Reply> {
    let length = message.encoded_len();
    // A vector of exactly this capacity becomes `Bytes` without a copy.
    let mut bytes = Vec::with_capacity(PREFIX + length);
    bytes.push(0);
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    message.encode_raw(&mut bytes);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, OK);
    headers.clear();
    headers.insert(CONTENT_TYPE, GRPC);
    let mut response = Response::new(Reply::Message(Some(bytes.into()), Some(trailers)));
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;
    use hyper::body::Frame;
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

    /// Reads a message from a body with these frames.
    async fn read(encoding: Option<&str>, frames: Vec<&[u8]>) -> Result<RateLimitRequest, Code> {
        let mut headers = HeaderMap::new();
        headers.extend(encoding.map(|encoding| (ENCODING, encoding.parse().unwrap())));
        let mut trailers = HeaderMap::new();
        trailers.insert("x-trailer", OK);
        let frames = frames.into_iter().map(|data| Frame::data(Bytes::copy_from_slice(data)));
        let frames: Vec<_> = frames.chain([Frame::trailers(trailers)]).map(Ok::<_, Infallible>).collect();
        let body = StreamBody::new(futures_util::stream::iter(frames));
        super::read(&headers, body, MAX).await.map(|(message, _)| message).map_err(|status| status.code())
    }

    #[tokio::test]
    async fn message_is_read_from_any_number_of_frames() {
        let bytes = encoded("edge");
        for middle in 0..=bytes.len() {
            let (one, two) = bytes.split_at(middle);
            assert_eq!(read(None, vec![one, two]).await, Ok(request("edge")), "{middle}");
        }
        assert_eq!(read(Some("identity"), vec![&bytes]).await, Ok(request("edge")));
        assert_eq!(read(None, vec![&[0; PREFIX]]).await, Ok(request("")), "an empty message");
        assert_eq!(read(None, vec![&bytes, &bytes]).await, Ok(request("edge")), "only the first message counts");
    }

    #[tokio::test]
    async fn mistakes_have_the_codes_of_the_library() {
        let bytes = encoded("edge");
        let changed = |place: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[place] = to;
            bytes
        };
        let long = encoded(&"a".repeat(MAX));
        for (encoding, frames, expected) in [
            (Some("gzip"), vec![&bytes[..]], Code::Unimplemented),
            (None, vec![], Code::Internal),
            (None, vec![&bytes[..3]], Code::Internal),
            (None, vec![&bytes[..7]], Code::Internal),
            (None, vec![&changed(0, 1)], Code::Internal),
            (None, vec![&changed(0, 2)], Code::Internal),
            (None, vec![&changed(1, 0xff)], Code::OutOfRange),
            (None, vec![&changed(6, 0xff)], Code::Internal),
            (None, vec![&long], Code::OutOfRange),
            (None, vec![&long[..PREFIX], &long[PREFIX..]], Code::OutOfRange),
        ] {
            assert_eq!(read(encoding, frames.clone()).await, Err(expected), "{encoding:?} {frames:?}");
        }
    }
}
