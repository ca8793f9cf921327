//! Request bodies: JSON of a bounded length, parsed directly into the endpoints' types.

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeSeed;
use serde_path_to_error::{Path, Segment, Track};

use crate::http::response::{JSON, Problem};
use crate::http::transport::bounds::Incoming;
use crate::http::transport::reply::BoxError;
use divvy_core::json::{self, Object};
use divvy_telemetry::metrics::Bound;

/// U+FEFF in UTF-8. JSON in a message must not begin with it (RFC 8259, section 8.1).
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads a JSON body of at most `max` bytes.
///
/// # Errors
/// 415 for another type, 413 for a longer body, 400 for an incomplete body.
pub async fn read(headers: &HeaderMap, mut body: impl Incoming, max: usize) -> Result<Bytes, Problem> {
    if !is_json(headers) {
        let detail = "the body must be JSON: send it with `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    // The declared length is reason enough to refuse the body.
    if body.size_hint().lower() > max as u64 {
        return Err(too_long(max));
    }
    let first = next(&mut body).await?.unwrap_or_default();
    if first.len() > max {
        return Err(too_long(max));
    }
    // Fast path: the whole body is one frame, which is not copied.
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut all = BytesMut::from(first);
    while let Some(piece) = next(&mut body).await? {
        if piece.len() > max - all.len() {
            return Err(too_long(max));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

/// Returns the next data frame of a body.
async fn next<B: Incoming>(body: &mut B) -> Result<Option<Bytes>, Problem> {
    while let Some(frame) = body.frame().await {
        let incomplete = |error: BoxError| Problem::bad_request(format!("the body is incomplete: {error}"));
        let frame = frame.map_err(|error| incomplete(error.into()))?;
        // Other frames are trailers.
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn too_long(max: usize) -> Problem {
    let detail = format!("the body is longer than {max} bytes (--max-body)");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).with_limit(Bound::Body)
}

/// Returns whether the content type is JSON. No other type is accepted, because a web page can post other types to
/// another site without the user's consent.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case(JSON)
}

/// Parses a body.
///
/// # Errors
/// The problem, and its position.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    parse_seed(body, || PhantomData::<Object<T>>).map(|Object(value)| value)
}

/// Parses a body as the seed reads it.
///
/// # Errors
/// The problem, and its position.
pub fn parse_seed<'a, S: DeserializeSeed<'a>>(body: &'a [u8], seed: impl Fn() -> S) -> Result<S::Value, Problem> {
    // One check of the whole body is faster than one per string. A body that is not UTF-8 is reported with the position.
    let parsed = match str::from_utf8(body) {
        Ok(text) => read_all(seed(), serde_json::Deserializer::from_str(text)),
        Err(_) => read_all(seed(), serde_json::Deserializer::from_slice(body)),
    };
    parsed.map_err(|error| {
        if body.trim_ascii().is_empty() {
            return Problem::bad_request("the body is empty").at("");
        }
        if body.starts_with(BYTE_ORDER_MARK) {
            return Problem::bad_request("the body begins with a byte order mark: send it without one").at("");
        }
        locate(body, seed()).unwrap_or_else(|| problem(&error, String::new()))
    })
}

fn read_all<'a, S: DeserializeSeed<'a>, R: serde_json::de::Read<'a>>(
    seed: S,
    mut json: serde_json::Deserializer<R>,
) -> serde_json::Result<S::Value> {
    let value = seed.deserialize(&mut json)?;
    json.end()?;
    Ok(value)
}

/// Parses the body again to find the position of an error, so that valid bodies do not pay for it. Returns `None` for
/// text after a complete value, which has no position.
fn locate<'a, S: DeserializeSeed<'a>>(body: &'a [u8], seed: S) -> Option<Problem> {
    let (mut json, mut track) = (serde_json::Deserializer::from_slice(body), Track::new());
    let error = seed.deserialize(serde_path_to_error::Deserializer::new(&mut json, &mut track)).err()?;
    Some(problem(&error, pointer(&track.path())))
}

fn problem(error: &serde_json::Error, pointer: String) -> Problem {
    let (message, line, column) = (json::message(error), error.line(), error.column());
    Problem::bad_request(format!("{message} at line {line} column {column}")).at(pointer)
}

fn pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            }
            Segment::Unknown => break,
        }
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::api::hits::HitsRequest;

    fn refused(body: &str) -> serde_json::Value {
        let problem = parse::<HitsRequest>(body.as_bytes()).err().unwrap_or_else(|| panic!("{body} was taken"));
        serde_json::to_value(problem).unwrap()
    }

    #[test]
    fn error_has_its_position() {
        for (body, pointer, detail) in [
            ("", "#", "the body is empty"),
            (" \n", "#", "the body is empty"),
            ("\u{feff}{\"hits\":[]}", "#", "begins with a byte order mark"),
            ("{\"hits\":[]} x", "#", "there is more text after the end of the value at line 1 column 13"),
            ("{}", "#", "missing field `hits`"),
            (
                "{\"hits\":[{\"operation\":{\"a/b~\":[]}}]}",
                "#/hits/0/operation/a~1b~0",
                "expected a string, a number or a boolean",
            ),
            (
                "{\"hits\":[{\"operation\":{}},{\"operation\":{},\"cost\":-1}]}",
                "#/hits/1/cost",
                "expected a whole number from 0 to",
            ),
            ("{\"hits\":[{\"operation\":{},\"price\":1}]}", "#/hits/0/price", "unknown field `price`"),
            ("{\"hits\":[{\"operation\":[]}]}", "#/hits/0/operation", "expected an object"),
            ("{\"hits\":[{\"cost\":1}]}", "#/hits/0", "missing field `operation`"),
            ("{\"hits\":{}}", "#/hits", "expected a list, got an object"),
            ("[[]]", "#", "expected an object"),
            ("{\"hits\":[[{},1]]}", "#/hits/0", "expected an object"),
            ("{\"hits\":[{\"operation\":{\"a\":\"\\ud800\"}}]}", "#/hits/0/operation/a", "hex escape"),
        ] {
            let problem = refused(body);
            assert_eq!(problem["pointer"], pointer, "{body}: {problem}");
            assert!(problem["detail"].as_str().unwrap().contains(detail), "{body}: {problem}");
            assert_eq!(problem["status"], 400);
        }
    }

    #[test]
    fn detail_repeats_only_a_part_of_the_input() {
        let problem = refused(&format!("{{\"{}\":1}}", "ü".repeat(10_000)));
        assert!(problem["detail"].as_str().unwrap().len() < 600);
    }
}
