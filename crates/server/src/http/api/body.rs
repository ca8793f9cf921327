//! Requests: parameters in the query of a URL, and bodies, which are JSON of a bounded length, parsed directly into the endpoints'
//! types. An operation is an object whose values are strings, numbers or booleans.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::marker::PhantomData;

use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_path_to_error::{Path, Segment, Track};
use url::form_urlencoded;

use crate::http::response::{JSON, Problem};
use crate::http::transport::bodies::RequestBody;
use divvy_core::json::{self, Object};
use divvy_core::rules::Operation;
use divvy_telemetry::metrics::Bound;

/// Parses the query of a URL.
///
/// # Errors
/// The parameters are not valid UTF-8, or do not match `T`.
pub fn parse_query<'a, T: Deserialize<'a>>(uri: &'a Uri) -> Result<T, Problem> {
    // The library would replace invalid bytes with U+FFFD, and the result may be the name of another actor.
    let is_text = |pair: &&str| percent_decode_str(pair).decode_utf8().is_ok();
    let query = uri.query().unwrap_or_default();
    if let Some(pair) = query.split('&').find(|pair| !is_text(pair)) {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        return Err(Problem::bad_request(format!("the query's parameter '{name}' is not valid UTF-8")));
    }
    let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
    T::deserialize(pairs).map_err(|error| Problem::bad_request(format!("the query is not valid: {error}")))
}

/// Returns the JSON body of a request, which may have `max` bytes.
///
/// # Errors
/// 415 for another type, 413 for a longer body.
pub fn read(headers: &HeaderMap, body: RequestBody, max: usize) -> Result<Bytes, Problem> {
    if !headers.get(CONTENT_TYPE).is_some_and(|kind| is_json(kind.as_bytes())) {
        let detail = "the body must be JSON: send it with `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    within(body, max)
}

/// Returns a body of any type, which may have `max` bytes.
///
/// # Errors
/// 413 for a longer body.
pub fn within(body: RequestBody, max: usize) -> Result<Bytes, Problem> {
    body.within(max).ok_or_else(|| {
        let detail = format!("the body is longer than {max} bytes (--max-body)");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).with_limit(Bound::Body)
    })
}

/// Checks that a request has no body.
///
/// # Errors
/// It has one.
pub fn refuse(body: RequestBody) -> Result<(), Problem> {
    if body.within(0).is_none() {
        return Err(Problem::bad_request("this request takes no body: its fields are in the query"));
    }
    Ok(())
}

/// Checks that a request has no query.
///
/// # Errors
/// It has one.
pub fn refuse_query(uri: &Uri) -> Result<(), Problem> {
    match uri.query() {
        Some(query) if !query.is_empty() => {
            Err(Problem::bad_request("this request takes no parameters: its fields are in the body"))
        }
        _ => Ok(()),
    }
}

/// Returns whether a content type is JSON. No other type is accepted, because a web page can post other types to
/// another site without the user's consent.
pub fn is_json(kind: &[u8]) -> bool {
    let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(JSON.as_bytes())
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
    parsed.map_err(|error| locate(body, seed()).unwrap_or_else(|| problem(&error, String::new())))
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

/// The pairs of an operation, in order.
#[derive(Debug, Default)]
pub struct Pairs<'a>(Vec<(Value<'a>, Value<'a>)>);

#[derive(Debug)]
enum Value<'a> {
    /// The text of a string, a whole number or a boolean. Without escapes, a string is borrowed from the body.
    Text(Cow<'a, str>),
    /// Any other number. The body has its text.
    Number(f64),
}

impl Pairs<'_> {
    /// Copies the pairs of `body` into `operation`. `pointer` is their position in the body.
    ///
    /// # Errors
    /// There are more than `max_pairs`, or a field is given twice.
    pub fn read(
        &self,
        body: &[u8],
        max_pairs: usize,
        pointer: impl Display,
        operation: &mut Operation,
    ) -> Result<(), Problem> {
        // The number is checked first, because finding a repeated key compares each key with all others.
        if self.0.len() > max_pairs {
            return Err(Problem::bad_request(format!("more than {max_pairs} pairs"))
                .with_limit(Bound::Pairs)
                .at(pointer));
        }
        operation.clear();
        for (key, value) in &self.0 {
            // Every key is a string.
            let Value::Text(key) = key else { continue };
            let value = match value {
                Value::Text(text) => Cow::Borrowed(&**text),
                // Beside a key with escapes, it is the shortest text of the number.
                Value::Number(number) => match number_after(key, body) {
                    Some(text) => text.into(),
                    None => serde_json::Number::from_f64(*number).map_or_else(String::new, |n| n.to_string()).into(),
                },
            };
            if !operation.set(key, &value) {
                return Err(Problem::bad_request(format!("the field {:?} is given twice", key)).at(pointer));
            }
        }
        Ok(())
    }
}

/// Returns the text of the number that follows the key, which is a part of the body unless it has escapes.
fn number_after<'a>(key: &str, body: &'a [u8]) -> Option<&'a str> {
    let key_start = (key.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
    let after_key = body.get(key_start.checked_add(key.len())?..)?.strip_prefix(b"\"")?;
    let number = after_key.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let length = number.iter().position(|byte| !is_part(byte)).unwrap_or(number.len());
    str::from_utf8(number.get(..length)?).ok()
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose values are strings, numbers or booleans")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a number or a boolean")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Value::Text(number.to_string().into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Value::Text(number.to_string().into()))
    }

    /// Two ids of many digits must not become one, and `1.0` is not `1` in a rules file either.
    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_bool<E: Error>(self, is_true: bool) -> Result<Self::Value, E> {
        Ok(Value::Text(is_true.to_string().into()))
    }
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
            ("", "#", "the text is empty"),
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

    fn read(json: &str) -> Result<Vec<(String, String)>, String> {
        let pairs: Pairs = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let mut operation = Operation::new();
        pairs.read(json.as_bytes(), 12, "/operation", &mut operation).map_err(|problem| format!("{problem:?}"))?;
        Ok(operation.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn numbers_and_booleans_are_their_json_text() {
        let json = r#"{"s": "a\u0062", "n": 42, "max": 18446744073709551615, "i": -7, "f": 1.50, "e": 1e3, "b": true, "no": false,
            "one" : 1.0 , "zero":-0, "long":0.1234567890123456789, "": 18446744073709551616}"#;
        let expected = [
            ("s", "ab"),
            ("n", "42"),
            ("max", "18446744073709551615"),
            ("i", "-7"),
            ("f", "1.50"),
            ("e", "1e3"),
            ("b", "true"),
            ("no", "false"),
            ("one", "1.0"),
            ("zero", "-0"),
            ("long", "0.1234567890123456789"),
            ("", "18446744073709551616"),
        ];
        let expected: Vec<_> = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(read(json), Ok(expected));
        for json in [r#"{"a": null}"#, r#"{"a": []}"#, r#"{"a": {}}"#] {
            assert!(read(json).unwrap_err().contains("a string, a number or a boolean"), "{json}");
        }
        assert_eq!(read(r#"{"\u0061": 1.50}"#), Ok(vec![("a".to_owned(), "1.5".to_owned())]), "an escaped key");
    }

    fn parsed(query: &str) -> Result<Vec<(String, String)>, Problem> {
        parse_query(&format!("/v1/check?{query}").parse().unwrap())
    }

    #[test]
    fn query_is_decoded() {
        let pairs = parsed("a=%c3%bc+%2B&a=&b%3D=%26&%F0%9F%8D%AA").unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("a", "ü +"), ("a", ""), ("b=", "&"), ("🍪", "")]);
        assert!(parsed("").unwrap().is_empty());
    }

    #[test]
    fn parameters_that_are_not_utf_8_are_refused_by_name() {
        for query in ["actor=%ff", "a=b&actor=x%C3", "actor=%c3&b=%bc", "actor=%ED%A0%80"] {
            let detail = format!("{:?}", parsed(query).unwrap_err());
            assert!(detail.contains("the query's parameter 'actor' is not valid UTF-8"), "{query}: {detail}");
        }
        assert!(format!("{:?}", parsed("%ff=a").unwrap_err()).contains("'%ff'"));
    }
}
