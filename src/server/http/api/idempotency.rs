//! `Idempotency-Key`, as the IETF's draft has it (draft-ietf-httpapi-idempotency-key-header-07): requests that a client may send
//! again when it got no answer. Here are the header, and what is in flight; what was answered is remembered with the counters.

use std::collections::HashSet;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;

use super::problem::Problem;
use crate::limiter::{MAX_IDEMPOTENCY_KEY, Payload};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What a client calls its request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// The key of the request with these headers, if it has one.
    ///
    /// # Errors
    /// More than one, or one that is no key.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let mut values = headers.get_all(KEY).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let key = parse(value.as_bytes()).filter(|_| values.next().is_none());
        key.map(Some).ok_or_else(|| {
            Problem::bad_request(format!(
                "Idempotency-Key is one text of 1 to {MAX_IDEMPOTENCY_KEY} characters, in double quotes (\"…\"), or without them if \
                 it has no spaces, quotes and commas"
            ))
        })
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// A structured field string (RFC 9651), whose parameters mean nothing; or the text alone.
fn parse(value: &[u8]) -> Option<Key> {
    let is_bare = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',');
    let text = if value.first() == Some(&b'"') {
        let item: sfv::Item = sfv::Parser::new(value).parse().ok()?;
        item.bare_item.as_string()?.as_str().to_owned()
    } else {
        let text = str::from_utf8(value).ok()?;
        text.bytes().all(|byte| is_bare(&byte)).then(|| text.to_owned())?
    };
    (1..=MAX_IDEMPOTENCY_KEY).contains(&text.len()).then_some(Key(text))
}

/// Says of a response that it was given before.
pub fn mark_replayed(headers: &mut HeaderMap) {
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
}

/// The keys of the requests that are being answered, each with what it asks for.
#[derive(Debug, Clone, Default)]
pub struct InFlight(Arc<Mutex<HashSet<(Key, u64)>>>);

/// A request under a key. It is over when this is dropped, whatever became of it.
#[derive(Debug)]
#[must_use]
pub struct Flight {
    all: InFlight,
    request: (Key, u64),
}

impl InFlight {
    /// Begins to answer the request. One that asks for something else is another one: what it comes to is up to the counters.
    ///
    /// # Errors
    /// 409: the same is being answered.
    pub fn begin(&self, key: &Key, payload: &Payload) -> Result<Flight, Problem> {
        let request = (key.clone(), payload.fingerprint());
        if !self.0.lock().insert(request.clone()) {
            let detail = "the first request with this Idempotency-Key is being answered: send it again later";
            return Err(Problem::new(StatusCode::CONFLICT, detail).that_may_pass());
        }
        Ok(Flight { all: self.clone(), request })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Intent;
    use proptest::prelude::*;

    fn key(values: &[&str]) -> Result<Option<String>, u16> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(KEY, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let key = Key::of(&headers).map_err(|problem| problem.status().as_u16())?;
        Ok(key.map(|Key(text)| text))
    }

    #[test]
    fn a_key_is_a_structured_string_or_bare() {
        let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
        let ok = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(key(&[]), Ok(None));
        assert_eq!(key(&[&format!("\"{uuid}\"")]), ok(uuid));
        assert_eq!(key(&[uuid]), ok(uuid));
        assert_eq!(key(&[r#""a \"b\" \\ c, d";v=1"#]), ok(r#"a "b" \ c, d"#));
        assert_eq!(key(&["a;b=c:d/e=="]), ok("a;b=c:d/e=="));
        assert_eq!(key(&[&"k".repeat(255)]), ok(&"k".repeat(255)));
        for wrong in [
            "",
            "\"\"",
            "\"a",
            "\"a\"b",
            "\"a\", \"b\"",
            "a, b",
            "a,b",
            "a b",
            "a\"",
            "\"é\"",
            "é",
            "\"a\\n\"",
            &"k".repeat(256),
        ] {
            assert_eq!(key(&[wrong]), Err(400), "{wrong}");
        }
        assert_eq!(key(&[uuid, uuid]), Err(400));
    }

    #[test]
    fn a_request_is_in_flight_until_it_is_dropped() {
        let (in_flight, one, other) = (InFlight::default(), Key("a".to_owned()), Key("b".to_owned()));
        let mut different = Payload::new(Intent::Hit);
        different.together(true);
        let payload = Payload::new(Intent::Hit);
        let flight = in_flight.begin(&one, &payload).unwrap();
        assert_eq!(in_flight.begin(&one, &payload).unwrap_err().status(), StatusCode::CONFLICT);
        assert!(in_flight.begin(&other, &payload).is_ok() && in_flight.begin(&one, &different).is_ok());
        drop(flight);
        assert!(in_flight.begin(&one, &payload).is_ok());
        assert!(in_flight.0.lock().is_empty());
    }

    proptest! {
        #[test]
        fn any_printable_text_in_quotes_is_itself(text in "[ -~]{1,255}") {
            let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
            prop_assert_eq!(key(&[&quoted]), Ok(Some(text)));
        }

        #[test]
        fn any_header_is_a_key_or_refused(value in "[ -~\u{e9}]{0,300}") {
            match key(&[&value]) {
                Ok(Some(text)) => prop_assert!((1..=255).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))),
                Ok(None) => prop_assert!(false, "a header is there"),
                Err(status) => prop_assert_eq!(status, 400),
            }
        }
    }
}
