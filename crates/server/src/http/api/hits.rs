//! Hits and what is like them: `POST /v1/hit`, `/v1/peek` (the answer to a hit, without its effect), the corrections
//! `/v1/charge` (credits that were used already) and `/v1/refund` (at most as many as were taken), and batches of hits.
//! Corrections change counters regardless of the credits left, so they require the password even if hits do not.
//!
//! The header `Idempotency-Key` follows the IETF's draft (draft-ietf-httpapi-idempotency-key-header-07): a client may send
//! the request again if it got no answer. The counters remember the answers.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response, StatusCode, Version};
use serde::{Deserialize, Serialize};

use super::Api;
use super::answer::Answer;
use super::body::{self, Pairs};
use crate::errors;
use crate::http::response::{Answered, Problem, count_error, json, refused_member};
use crate::http::transport::bodies::{Reply, RequestBody};
use crate::http::transport::http1::request::{Framing, HeaderSpace, header_space, read_head};
use crate::http::transport::http1::response::write_end;
use crate::http::transport::http1::{HitSession, write_whole};
use crate::net::auth::RequestOrigin;
use crate::net::memory::{self, SMALL, pooled};
use crate::net::places::{Place, Places};
use crate::net::protocol::Protocol;
use divvy_core::json::{Object, WholeNumber};
use divvy_core::rules::Operation;
use divvy_limiter::{
    Answers, ErrorClass, Intent, LimiterError, MAX_IDEMPOTENCY_KEY, MAX_TOGETHER, Payload, PlanBuilder, Refusal,
    Report, Scope, Together,
};
use divvy_telemetry::metrics::{Bound, ErrorKind, RequestKind};

/// The body of a hit, a peek, a charge or a refund.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HitRequest<'a> {
    /// The operation's pairs, as a JSON object.
    #[serde(borrow)]
    pub operation: Pairs<'a>,
    /// Cost in credits, instead of the rules' `costField`s.
    cost: Option<WholeNumber>,
}

/// Buffers of a request.
#[derive(Default)]
struct Work {
    operation: Operation,
    text: Vec<u8>,
}

pooled!(Box<Work>, |work| work.operation.memory() + work.text.capacity());

impl Api {
    /// Sends the operation in the body to the limiter. A hit is answered with 200 or 429. Any other request is answered
    /// with 200, even if the answer is a denial.
    pub async fn ask(
        &self,
        intent: Intent,
        headers: &HeaderMap,
        body: RequestBody,
        origin: &RequestOrigin,
    ) -> Answered {
        let body = self.read(headers, body)?;
        let _request_memory = self.request_memory(body.len(), 1).await;
        let mut work: Box<Work> = memory::take();
        let answered = self.answer(intent, headers, &body, origin, &mut work).await;
        memory::give(work);
        answered
    }

    async fn answer(
        &self,
        intent: Intent,
        headers: &HeaderMap,
        body: &[u8],
        origin: &RequestOrigin,
        work: &mut Work,
    ) -> Answered {
        let request: HitRequest = body::parse(body)?;
        request.operation.read(body, self.server.limits.max_pairs, "/operation", &mut work.operation)?;
        // A peek has no effect, so a client may repeat it without a key.
        let key = if intent == Intent::Peek { None } else { find_key(headers)? };
        let (Work { operation, text }, cost) = (&mut *work, request.cost.map(|WholeNumber(cost)| cost));
        let keyed = key.map(|key| (key, payload_of(intent, operation, cost)));
        let (answers, is_keyed) = self.ask_one(origin, keyed, intent, operation, cost).await?;
        let answer = Answer::with_note(answers.report(), 0)?;
        let mut headers = HeaderMap::new();
        if is_keyed && answers.report().is_replay() == Ok(true) {
            mark_replayed(&mut headers);
        }
        let body = answer.write(self.settings.headers, &mut headers, text);
        let mut response = Response::new(Reply::Whole(body));
        *response.headers_mut() = headers;
        if intent == Intent::Hit && !answer.allowed {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        Ok(response)
    }
}

/// The beginning of a hit that may be answered together with others.
const HIT_LINE: &[u8] = b"POST /v1/hit HTTP/1.1\r\n";
/// The beginnings of the answers to such hits.
const ALLOWED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
const DENIED: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n";
/// Maximum number of hits that are answered together over HTTP/1.1.
const MAX_BATCH: usize = 512;
/// Assumed length of a response to a hit. Its actual length is unknown until it is written (bytes).
const LONG_RESPONSE: usize = 512;

impl Api {
    /// Answers the hits at the front of a client's input that need neither a login nor an idempotency key. See
    /// [`Responder::answer_hits`](crate::http::transport::Responder::answer_hits).
    pub async fn answer_hits(&self, session: &mut HitSession, input: &mut BytesMut, output: &mut Vec<u8>) -> bool {
        if !input.starts_with(HIT_LINE) {
            return false;
        }
        let (mut work, mut is_turn_over): (Box<Work>, _) = (memory::take(), false);
        let Ok(asked) = self.server.limiter.ask(&Scope::EVERYTHING, |builder| {
            is_turn_over = self.collect_hits(session, builder, &mut work.operation, input);
            Ok::<_, Infallible>(())
        });
        let answers = asked.answers().await;
        let report = answers.report();
        for index in 0..report.len() {
            match Answer::with_note(report, index) {
                Ok(answer) => self.write_answer(&answer, &mut work.text, output),
                Err(refusal) => {
                    let response = Problem::from(refusal).into_response();
                    let metrics = self.server.limiter.metrics();
                    count_error(&response, metrics, Protocol::Http, || session.client());
                    write_whole(response, Version::HTTP_11, true, output);
                }
            }
        }
        memory::give(work);
        session.memory.give_back();
        self.requests.take(&mut session.tally);
        is_turn_over
    }

    /// Adds hits to the plan, and removes them from the input. Returns whether other connections must have a turn.
    fn collect_hits(
        &self,
        session: &mut HitSession,
        builder: &mut PlanBuilder,
        operation: &mut Operation,
        input: &mut BytesMut,
    ) -> bool {
        let most = MAX_BATCH.min(self.server.limits.write_threshold / LONG_RESPONSE);
        for _ in 0..most {
            if !session.memory.fits(builder.weight()) {
                return true;
            }
            let mut space = header_space();
            let Some((hit, end)) = find_hit(input, &mut space) else { return false };
            // A faulty hit is answered alone.
            let Ok(request) = body::parse::<HitRequest>(hit) else { return false };
            if request.operation.read(hit, self.server.limits.max_pairs, "/operation", operation).is_err() {
                return false;
            }
            session.tally.count(RequestKind::Hit);
            builder.add(operation, Intent::Hit, request.cost.map(|WholeNumber(cost)| cost));
            input.advance(end);
        }
        true
    }

    /// Appends the response with an answer.
    fn write_answer(&self, answer: &Answer<'_>, text: &mut Vec<u8>, output: &mut Vec<u8>) {
        output.extend_from_slice(if answer.allowed { ALLOWED } else { DENIED });
        answer.write_headers(self.settings.headers, output, text);
        text.clear();
        answer.write_json(text);
        write_end(text.len(), output);
        output.extend_from_slice(text);
    }
}

/// Returns the body of a hit at the front of the input, and where the hit ends; `None` if something else is there, if it is
/// incomplete or long, or if the head asks for more than a hit.
fn find_hit<'a>(input: &'a [u8], space: &'a mut HeaderSpace<'a>) -> Option<(&'a [u8], usize)> {
    if !input.starts_with(HIT_LINE) {
        return None;
    }
    let head = read_head(input, space).ok()??;
    let Framing::Length(length) = head.framing else { return None };
    let end = head.length + usize::try_from(length).ok().filter(|length| *length <= SMALL)?;
    let kinds = || head.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("content-type"));
    let is_plain = head.keeps_open
        && kinds().next().is_some_and(|header| body::is_json(header.value))
        && !head.headers.iter().any(|header| header.name.eq_ignore_ascii_case(KEY.as_str()));
    Some((input.get(head.length..end).filter(|_| is_plain)?, end))
}

/// Maximum number of hits in a request. The default `--max-body` has room for about as many.
const MAX_HITS: usize = 1_000;
/// Minimum length of a hit in a body: `{"operation":{}}` (bytes).
const SHORTEST_HIT: usize = 16;

/// The body of a batch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HitsRequest<'a> {
    #[serde(borrow)]
    hits: Vec<Object<HitRequest<'a>>>,
    /// Count all hits or none.
    #[serde(default)]
    atomic: bool,
}

#[derive(Debug, Serialize)]
struct HitsResponse<'a> {
    /// Whether all hits of an atomic batch are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<bool>,
    results: Vec<AnswerOrProblem<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AnswerOrProblem<'a> {
    Answer(Answer<'a>),
    Problem(Problem),
}

impl Api {
    /// Answers 200, with an answer or a problem for each hit. If a hit is malformed, none of them counts. An `Idempotency-Key`
    /// applies to the whole batch.
    pub async fn hits(&self, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Answered {
        let body = self.read(&head.headers, body)?;
        let most_hits = MAX_HITS.min(body.len() / SHORTEST_HIT);
        let _request_memory = self.request_memory(body.len(), most_hits).await;
        let request: HitsRequest = body::parse(&body)?;
        if request.hits.len() > MAX_HITS {
            let problem = Problem::bad_request(format!("more than {MAX_HITS} hits"));
            return Err(problem.with_limit(Bound::Hits).at("/hits"));
        }
        if request.atomic && request.hits.len() > MAX_TOGETHER {
            let problem = Problem::bad_request(format!("more than {MAX_TOGETHER} hits cannot be taken together"));
            return Err(problem.at("/hits"));
        }
        let mut operation = Operation::new();
        let mut each = |take: &mut dyn FnMut(&Operation, Option<u64>)| {
            for (index, Object(hit)) in request.hits.iter().enumerate() {
                hit.operation.read(
                    &body,
                    self.server.limits.max_pairs,
                    format_args!("/hits/{index}/operation"),
                    &mut operation,
                )?;
                take(&operation, hit.cost.map(|WholeNumber(cost)| cost));
            }
            Ok::<_, Problem>(())
        };
        let keyed = match find_key(&head.headers)? {
            None => None,
            Some(key) => {
                let mut payload = Payload::new(Intent::Hit);
                payload.together(request.atomic);
                each(&mut |operation, cost| payload.add(operation, cost))?;
                Some((key, payload))
            }
        };
        let mut add = |builder: &mut PlanBuilder| {
            let mut add_each =
                |builder: &mut PlanBuilder| each(&mut |operation, cost| builder.add(operation, Intent::Hit, cost));
            match request.atomic {
                true => builder.together(Together::Summed, refused_member, add_each),
                false => add_each(builder),
            }
        };
        let mut _guard = None;
        let answers = origin.ask(&self.server.limiter, |builder| match &keyed {
            None => add(builder),
            Some((key, payload)) => {
                builder.idempotent(key.as_bytes(), payload, add)??;
                // A user learns nothing about calls that are outside its scope.
                let is_in_scope = |(_, refusal): (usize, &Refusal)| refusal.class() != ErrorClass::Forbidden;
                if builder.refusals().all(is_in_scope) {
                    _guard = Some(enter(&self.calls, key, payload)?);
                }
                Ok(())
            }
        });
        let answers = answers.await?;
        let report = answers.report();
        let is_replayed = match keyed {
            None => false,
            Some(_) => report
                .is_replay()
                .map_err(|index| Problem::from(Refusal::DifferentRequest).at(format_args!("/hits/{index}")))?,
        };
        let mut response = if request.atomic { all_or_none(report)? } else { self.one_by_one(report, origin)? };
        if is_replayed {
            mark_replayed(response.headers_mut());
        }
        Ok(response)
    }

    /// Answers hits that count each for itself.
    fn one_by_one(&self, report: Report<'_>, origin: &RequestOrigin) -> Answered {
        let metrics = self.server.limiter.metrics();
        let answer = |index| match Answer::with_note(report, index) {
            Ok(answer) => AnswerOrProblem::Answer(answer),
            Err(refusal) => {
                let problem = Problem::from(refusal);
                errors::count(metrics, Protocol::Http, ErrorKind::Unknown, || origin.error_client(), problem.detail());
                AnswerOrProblem::Problem(problem)
            }
        };
        json(&HitsResponse { allowed: None, results: (0..report.len()).map(answer).collect() })
    }
}

/// Answers an atomic batch. If the store fails, it fails for all hits.
fn all_or_none(report: Report<'_>) -> Answered {
    let answers: Vec<_> =
        (0..report.len()).map(|index| Answer::with_note(report, index)).collect::<Result<_, Refusal>>()?;
    let allowed = Some(answers.iter().all(|answer| answer.allowed));
    let results = answers.into_iter().map(AnswerOrProblem::Answer).collect();
    json(&HitsResponse { allowed, results })
}

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Returns the idempotency key of the request with these headers, if it has one.
///
/// # Errors
/// There are several keys, or the key is invalid.
pub(super) fn find_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
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

/// Parses a structured field string (RFC 9651), ignoring its parameters, or a text without quotes.
fn parse(value: &[u8]) -> Option<String> {
    let is_bare = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',');
    let text = if value.first() == Some(&b'"') {
        let item: sfv::Item = sfv::Parser::new(value).parse().ok()?;
        item.bare_item.as_string()?.as_str().to_owned()
    } else {
        let text = str::from_utf8(value).ok()?;
        text.bytes().all(|byte| is_bare(&byte)).then(|| text.to_owned())?
    };
    (1..=MAX_IDEMPOTENCY_KEY).contains(&text.len()).then_some(text)
}

/// Marks a response as a replay.
pub(super) fn mark_replayed(headers: &mut HeaderMap) {
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
}

/// Returns the payload of one request.
pub(super) fn payload_of(intent: Intent, operation: &Operation, cost: Option<u64>) -> Payload {
    let mut payload = Payload::new(intent);
    payload.add(operation, cost);
    payload
}

impl Api {
    /// Asks the limiter about one operation. Returns also whether the request has an idempotency key.
    ///
    /// # Errors
    /// A request with a key is refused, or the same one is in flight.
    pub(super) async fn ask_one(
        &self,
        origin: &RequestOrigin,
        keyed: Option<(String, Payload)>,
        intent: Intent,
        operation: &Operation,
        cost: Option<u64>,
    ) -> Result<(Answers, bool), Problem> {
        let mut guard = None;
        let answers = origin.ask(&self.server.limiter, |builder| {
            let Some((key, payload)) = &keyed else {
                builder.add(operation, intent, cost);
                return Ok(());
            };
            builder.idempotent(key.as_bytes(), payload, |builder| builder.add(operation, intent, cost))?;
            // A user learns nothing about calls that are outside its scope.
            if let Some((_, refusal)) = builder.refusals().next() {
                return Err(Problem::from(refusal.clone()));
            }
            guard = Some(enter(&self.calls, key, payload)?);
            Ok(())
        });
        Ok((answers.await?, guard.is_some()))
    }
}

/// Enters a request with an idempotency key. A request with the same key and another payload is another request, and the
/// counters decide its outcome.
///
/// # Errors
/// 409: the same request is in flight.
fn enter(calls: &Arc<Places<Box<[u8]>>>, key: &str, payload: &Payload) -> Result<Place<Box<[u8]>>, Problem> {
    let call = [&payload.fingerprint().to_be_bytes(), key.as_bytes()].concat();
    calls.take(Some(call.into())).map_err(|_taken| {
        let detail = "the first request with this Idempotency-Key is still being answered: send it again later";
        Problem::new(StatusCode::CONFLICT, detail).with_retry()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(values: &[&str]) -> Result<Option<String>, u16> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(KEY, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        find_key(&headers).map_err(|problem| problem.status().as_u16())
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
