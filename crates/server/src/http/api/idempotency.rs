//! The header `Idempotency-Key` of the IETF's draft (draft-ietf-httpapi-idempotency-key-header-07): a client may send the
//! request again if it got no answer. The counters remember the answers.

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use crate::http::response::Problem;
use crate::net::work::{CallGuard, CallsInFlight};
use divvy_limiter::{MAX_IDEMPOTENCY_KEY, Payload};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// An idempotency key.
#[derive(Debug)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Returns the key of the request with these headers, if it has one.
    ///
    /// # Errors
    /// There are several keys, or the key is invalid.
    pub fn find(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let mut values = headers.get_all(KEY).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let key = parse(value.as_bytes()).filter(|_| values.next().is_none());
        key.map(Some).ok_or_else(|| {
            Problem::bad_request(format!(
                "Idempotency-Key must be one string of 1 to {MAX_IDEMPOTENCY_KEY} characters, in double quotes (\"…\"), or without them if \
                 it has no spaces, quotes and commas"
            ))
        })
    }

    /// Returns a key of divvy's own, which no client can send.
    pub fn internal(key: String) -> Self {
        Self(key)
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Parses a structured field string (RFC 9651), ignoring its parameters, or a text without quotes.
fn parse(value: &[u8]) -> Option<IdempotencyKey> {
    let is_bare = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',');
    let text = if value.first() == Some(&b'"') {
        let item: sfv::Item = sfv::Parser::new(value).parse().ok()?;
        item.bare_item.as_string()?.as_str().to_owned()
    } else {
        let text = str::from_utf8(value).ok()?;
        text.bytes().all(|byte| is_bare(&byte)).then(|| text.to_owned())?
    };
    (1..=MAX_IDEMPOTENCY_KEY).contains(&text.len()).then_some(IdempotencyKey(text))
}

/// Marks a response as a replay.
pub fn mark_replayed(headers: &mut HeaderMap) {
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
}

/// Enters a request with an idempotency key. A request with the same key and another payload is another request, and the
/// counters decide its outcome.
///
/// # Errors
/// 409: the same request is in flight.
pub fn enter(calls: &CallsInFlight, key: &IdempotencyKey, payload: &Payload) -> Result<CallGuard, Problem> {
    let call = [&payload.fingerprint().to_be_bytes(), key.as_bytes()].concat();
    calls.try_enter(call.into()).ok_or_else(|| {
        let detail = "the first request with this Idempotency-Key is still being answered: send it again later";
        Problem::new(StatusCode::CONFLICT, detail).with_retry()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_limiter::Intent;
    use proptest::prelude::*;

    fn key(values: &[&str]) -> Result<Option<String>, u16> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(KEY, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let key = IdempotencyKey::find(&headers).map_err(|problem| problem.status().as_u16())?;
        Ok(key.map(|IdempotencyKey(text)| text))
    }

    #[test]
    fn key_is_a_structured_string_or_bare() {
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
    fn request_is_in_flight_until_it_is_dropped() {
        let (calls, one, other) =
            (CallsInFlight::default(), IdempotencyKey("a".to_owned()), IdempotencyKey("b".to_owned()));
        let mut different = Payload::new(Intent::Hit);
        different.together(true);
        let payload = Payload::new(Intent::Hit);
        let guard = enter(&calls, &one, &payload).unwrap();
        let refused = enter(&calls, &one, &payload).err().unwrap();
        assert_eq!(refused.status(), StatusCode::CONFLICT);
        assert!(enter(&calls, &other, &payload).is_ok() && enter(&calls, &one, &different).is_ok());
        drop(guard);
        assert!(enter(&calls, &one, &payload).is_ok());
        assert_eq!(calls.count(), 0);
    }

    proptest! {
        #[test]
        fn printable_text_in_quotes_is_unchanged(text in "[ -~]{1,255}") {
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
