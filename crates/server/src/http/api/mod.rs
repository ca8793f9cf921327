//! The HTTP API: hits in JSON, checks for gateways, and requests about rules and counters.
//!
//! The endpoints are methods of [`Api`], their state. [`body`] reads requests, and [`answer`] represents the
//! limiter's answers. The operations of operators are here: their requests and replies, as the table of operations has them,
//! and the record of changes that are refused before they begin. This module makes no decisions.

pub mod answer;
pub mod body;
pub mod check;
pub mod hits;
mod reservations;
mod shares;

use std::fmt::Display;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinError;
use url::form_urlencoded;

use self::answer::RateLimitHeaders;
use self::body::Pairs;
use self::check::CheckSettings;
use super::cross_origin::{WebOrigin, check_origin};
use super::response::{Answered, Problem, json, json_line};
use super::transport::bodies::RequestBody;
use crate::net::auth::RequestOrigin;
use crate::net::memory::RequestMemory;
use crate::net::places::Places;
use crate::net::protocol::Protocol;
use crate::operations::Operator;
use crate::server_context::ServerContext;
use divvy_access::audit::{Action, Caller, Change};
use divvy_api::{ArgumentError, Arguments, Endpoint, Inspection, Task, description};
use divvy_core::rules::Operation;
use divvy_telemetry::metrics::{Bound, FrontRequests};

/// Settings of the API.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// The dialects of rate limit headers.
    pub headers: RateLimitHeaders,
    /// Checks for gateways.
    pub check: CheckSettings,
    /// Web pages that may read the status of an actor.
    pub origins: Vec<WebOrigin>,
}

/// The state that all endpoints share.
pub(crate) struct Api {
    pub server: ServerContext,
    pub settings: ApiSettings,
    /// Counts requests.
    pub requests: FrontRequests,
    /// A place for each idempotency key in use.
    pub calls: Arc<Places<Box<[u8]>>>,
}

impl Api {
    /// Waits for the memory of at most `count` requests in this many bytes.
    pub async fn request_memory(&self, bytes: usize, count: usize) -> Option<RequestMemory> {
        RequestMemory::wait_for_call(&self.server.memory, &self.server.limiter, bytes, count).await
    }

    /// Reads the JSON body of a request with these headers.
    ///
    /// # Errors
    /// See [`body::read`].
    pub fn read(&self, headers: &HeaderMap, body: RequestBody) -> Result<Bytes, Problem> {
        body::read(headers, body, self.server.limits.max_body)
    }

    /// Reads and parses a body that borrows nothing.
    ///
    /// # Errors
    /// See [`body::read`] and [`body::parse`].
    pub fn parse<T: DeserializeOwned>(&self, headers: &HeaderMap, body: RequestBody) -> Result<T, Problem> {
        body::parse(&self.read(headers, body)?)
    }
}

/// A request for an operation. If it is a change that ends before it has begun, because it was refused or because its client
/// left, that is recorded.
pub(crate) struct Attempt<'a> {
    pub api: &'a Api,
    pub origin: &'a RequestOrigin,
    /// Whether clients have to log in.
    pub has_guard: bool,
    /// The change, until it begins. From then on, it records its own outcome.
    pub change: Option<Change>,
}

impl Attempt<'_> {
    /// Returns the operator with the rights that its user has now. Call it right before the change.
    fn begin(&mut self) -> Operator {
        self.change = None;
        Operator { caller: self.caller(true), passed_check: self.origin.passed_check() }
    }

    /// Records that the change was refused, unless it has begun.
    pub fn refuse(&mut self, error: impl Display) {
        if let Some(change) = self.change.take() {
            let is_admitted = !self.has_guard || self.origin.has_passed();
            self.api.server.operations.audit.refuse(self.caller(is_admitted), change, error);
        }
    }

    fn caller(&self, is_admitted: bool) -> Caller {
        let name = is_admitted.then(|| self.origin.caller_name()).flatten();
        let caller = Caller::client(Protocol::Http.name(), Some(self.origin.peer), name);
        if self.origin.has_actor_token() { caller.as_stranger() } else { caller }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.refuse("the request was aborted before its answer");
    }
}

/// Returns the change that a request asks for.
pub(crate) fn change_of(action: Action, uri: &Uri) -> Change {
    let query = uri.query().unwrap_or_default().as_bytes();
    let parameter = |name| form_urlencoded::parse(query).find(|(found, _)| found == name).map(|(_, value)| value);
    Change::new(action).with("rule", parameter("rule")).with("actor", parameter("actor"))
}

impl Api {
    /// Carries an operation out.
    pub async fn operate(
        &self,
        endpoint: &'static Endpoint,
        head: &Parts,
        body: RequestBody,
        attempt: &mut Attempt<'_>,
    ) -> Answered {
        if endpoint.needs_user() {
            check_user(head, attempt.origin)?;
        }
        let parameters: Vec<(String, String)> = body::parse_query(&head.uri)?;
        let max_pairs = self.server.limits.max_pairs;
        let mut arguments = Arguments::from_query(endpoint, &parameters, max_pairs).map_err(bad_argument)?;
        if endpoint.has_body() {
            let body = self.read(&head.headers, body)?;
            arguments = match endpoint.task {
                Task::Read(Inspection::Explanation) => arguments.with_pairs(read_operation(&body, max_pairs)?),
                _ => body::parse_seed(&body, || arguments.clone().with_body(endpoint))?,
            };
        } else {
            // A client that sends one believes that it is read.
            body::refuse(body)?;
        }
        let slot = match endpoint.task {
            Task::Read(Inspection::Status) if attempt.origin.has_actor_token() => {
                self.server.slots.take_for_customer().await
            }
            _ => self.server.operations.take_slot(endpoint, &self.server.slots).await,
        };
        let (operations, operator) = (self.server.operations.clone(), attempt.begin());
        let work = async move { operations.run(&operator, endpoint, &arguments, None).await };
        // The work may have panicked, or ended at the shutdown.
        let broken = |error: JoinError| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        match slot.run(work).await.map_err(broken)?? {
            Value::Null => Err(Problem::new(StatusCode::NOT_FOUND, endpoint.missing)),
            reply => {
                let mut response = json(&reply)?;
                // A browser must show the current state, and keep nothing of it.
                response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                Ok(response)
            }
        }
    }
}

/// Checks that a user has logged in, and that no page of another site sends the request.
///
/// # Errors
/// The server has no users, or a browser says that the page is of another site.
fn check_user(head: &Parts, origin: &RequestOrigin) -> Result<(), Problem> {
    if !origin.has_passed() {
        let detail = "over HTTP, only a user may ask for this: start the server with --requirepass or --access-file, or \
                      send the command over RESP, with redis-cli";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    check_origin(&head.uri, &head.headers)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainRequest<'a> {
    #[serde(borrow)]
    operation: Pairs<'a>,
}

/// Reads the operation that is to be explained. Its numbers are their text.
///
/// # Errors
/// The body is not an operation, or has more than `max_pairs` pairs.
fn read_operation(body: &[u8], max_pairs: usize) -> Result<Operation, Problem> {
    let request: ExplainRequest = body::parse(body)?;
    let mut operation = Operation::new();
    request.operation.read(body, max_pairs, "/operation", &mut operation)?;
    Ok(operation)
}

fn bad_argument(error: ArgumentError) -> Problem {
    let problem = Problem::bad_request(error.to_string());
    match error {
        ArgumentError::ManyPairs { .. } => problem.with_limit(Bound::Pairs),
        _ => problem,
    }
}

/// The description. Tests compare it with the server's behavior.
pub(crate) static DESCRIPTION: LazyLock<Vec<u8>> = LazyLock::new(|| json_line(&description()).unwrap_or_default());
