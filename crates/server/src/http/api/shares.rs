//! `/v1/shares`: gives clients shares of a counter, which they grant on their own, and takes back what they have not used. Like
//! reservations, these requests require the password even if hits do not.

use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Api;
use super::answer::Answer;
use super::body::{self, Pairs};
use super::reservations::respond;
use crate::http::response::{Answered, Problem, json};
use crate::http::transport::bodies::RequestBody;
use crate::net::auth::RequestOrigin;
use divvy_core::clock::{NANOS_PER_MILLI, ceil_seconds};
use divvy_core::json::WholeNumber;
use divvy_core::rules::Operation;
use divvy_limiter::{Refusal, Settlement};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShareRequest<'a> {
    #[serde(borrow)]
    operation: Pairs<'a>,
    want: WholeNumber,
}

#[derive(Debug, Serialize)]
struct ShareResponse<'a> {
    credits: u32,
    /// How long they may be granted, from the moment when the request was sent.
    milliseconds: u64,
    /// The id for returning the share; `None` if it has no credits.
    id: Option<String>,
    remaining: u64,
    reset: u64,
    rule: &'a str,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReturnRequest {
    credits: WholeNumber,
}

impl Api {
    /// Gives a share, perhaps of 0 credits: 200, or 429 if the actor is blocked.
    pub async fn share(&self, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Answered {
        let body = self.read(&head.headers, body)?;
        let _request_memory = self.request_memory(body.len(), 1).await;
        let ShareRequest { operation: pairs, want: WholeNumber(want) } = body::parse(&body)?;
        let mut operation = Operation::new();
        pairs.read(&body, self.server.limits.max_pairs, "/operation", &mut operation)?;
        let answers = self.ask_limiter(origin, |builder| builder.add_share(&operation, want)).await;
        let report = answers.report();
        let share = report.share(0).map_err(describe)?;
        let answer = Answer::with_note(report, 0)?;
        if !share.verdict.allowed {
            let mut headers = HeaderMap::new();
            answer.write_headers(self.settings.headers, &mut headers, &mut Vec::new());
            return Ok(respond(StatusCode::TOO_MANY_REQUESTS, headers, json(&answer)?));
        }
        json(&ShareResponse {
            credits: share.credits,
            milliseconds: share.usable_ns / NANOS_PER_MILLI,
            id: share.id.map(|id| self.server.limiter.write_id(id)).transpose()?,
            remaining: share.verdict.credit,
            reset: ceil_seconds(share.verdict.reset_ns),
            rule: answer.rule,
        })
    }

    /// Takes back unused credits of a share.
    pub async fn return_share(&self, id: &str, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Answered {
        let id = self.read_id(id)?;
        let ReturnRequest { credits: WholeNumber(credits) } = self.parse(&head.headers, body)?;
        if credits == 0 {
            return Err(Problem::from(Refusal::NoCredits).at("/credits"));
        }
        let answers = self.ask_limiter(origin, |builder| builder.settle(&id, Settlement::Return { credits })).await;
        json(&json!({ "returned": answers.report().settled(0)?.is_returned() }))
    }
}

/// Describes why a request is refused, with the field that it is about.
fn describe(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::NoCredits => Problem::from(refusal).at("/want"),
        refusal => refusal.into(),
    }
}
