//! `POST /v1/hits`: a batch of hits, in order. An atomic batch counts all of them or none.

use hyper::http::request::Parts;
use serde::{Deserialize, Serialize};

use super::answer::Answer;
use super::body;
use super::hit::HitRequest;
use super::idempotency::{self, IdempotencyKey, mark_replayed};
use super::state::Api;
use crate::error_log;
use crate::http::response::{Answered, Problem, json, refused_member};
use crate::http::transport::bounds::Incoming;
use crate::net::auth::Origin;
use crate::net::front::Protocol;
use divvy_core::json::Object;
use divvy_core::rules::Operation;
use divvy_limiter::{ErrorClass, Intent, LimiterError, MAX_TOGETHER, Payload, PlanBuilder, Refusal, Report, Together};
use divvy_telemetry::metrics::{Bound, ErrorKind};

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
struct Answers<'a> {
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
    pub async fn hits(&self, head: &Parts, body: impl Incoming, origin: &Origin) -> Answered {
        let body = self.read(&head.headers, body).await?;
        let _request_memory = self.request_memory(body.len(), MAX_HITS.min(body.len() / SHORTEST_HIT)).await;
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
                    self.limits.max_pairs,
                    format_args!("/hits/{index}/operation"),
                    &mut operation,
                )?;
                take(&operation, hit.cost());
            }
            Ok::<_, Problem>(())
        };
        let mut builder = PlanBuilder::default();
        origin.begin(&self.limiter, &mut builder);
        let keyed = match IdempotencyKey::find(&head.headers)? {
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
        let _guard = match &keyed {
            None => {
                add(&mut builder)?;
                None
            }
            Some((key, payload)) => {
                builder.idempotent(key.as_bytes(), payload, add)??;
                // A user learns nothing about calls that are outside its scope.
                let is_in_scope = |(_, refusal): (usize, &Refusal)| refusal.class() != ErrorClass::Forbidden;
                builder
                    .plan()
                    .refusals()
                    .all(is_in_scope)
                    .then(|| idempotency::enter(&self.calls, key, payload))
                    .transpose()?
            }
        };
        let applied = self.limiter.apply(builder.build()).await;
        let report = applied.report();
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
    fn one_by_one(&self, report: Report<'_>, origin: &Origin) -> Answered {
        let metrics = self.limiter.metrics();
        let answer = |index| match Answer::for_request(report, index) {
            Ok(answer) => AnswerOrProblem::Answer(answer),
            Err(refusal) => {
                let problem = Problem::from(refusal);
                error_log::count(
                    metrics,
                    Protocol::Http,
                    ErrorKind::Unknown,
                    || origin.error_client(),
                    problem.detail(),
                );
                AnswerOrProblem::Problem(problem)
            }
        };
        json(&Answers { allowed: None, results: (0..report.len()).map(answer).collect() })
    }
}

/// Answers an atomic batch. If the store fails, it fails for all hits.
fn all_or_none(report: Report<'_>) -> Answered {
    let answers: Vec<_> =
        (0..report.len()).map(|index| Answer::for_request(report, index)).collect::<Result<_, Refusal>>()?;
    let allowed = Some(answers.iter().all(|answer| answer.allowed));
    let results = answers.into_iter().map(AnswerOrProblem::Answer).collect();
    json(&Answers { allowed, results })
}
