//! Responses: text, JSON, and errors in the format `application/problem+json` (RFC 9457).

use std::borrow::Cow;
use std::fmt::{self, Display};

use bytes::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use serde::Serialize;
use tonic::Status;

use super::transport::bodies::Reply;
use crate::errors::{self, ErrorClient, Terms};
use crate::net::protocol::Protocol;
use divvy_core::units::shorten;
use divvy_limiter::{ErrorClass, LimiterError, RefusedMember};
use divvy_telemetry::metrics::{Bound, ErrorKind, Metrics};

/// The response to a request, or what is wrong with the request.
pub type Answered = Result<Response<Reply>, Problem>;

pub const JSON: &str = "application/json";
/// `Retry-After` for temporary problems (seconds). The time when a store recovers is unknown.
const STORE_RETRY: HeaderValue = HeaderValue::from_static("1");
/// Maximum length of a detail, because it may repeat the client's text (bytes).
const MAX_DETAIL: usize = 512;

const TERMS: Terms = Terms {
    take_lease: Some("take a lease with POST /v1/reservations, and release it when the work is done"),
    list_rules: Some("GET /v1/rules lists them"),
};

/// Returns a response with this status, and no body.
pub fn empty(status: StatusCode) -> Response<Reply> {
    let mut response = Response::new(Reply::default());
    *response.status_mut() = status;
    response
}

/// Returns a response with a body of this type.
pub fn of_type(kind: &'static str, body: Reply) -> Response<Reply> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Returns a response with this status and text.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Reply> {
    let mut response = of_type("text/plain; charset=utf-8", Reply::Whole(text.into()));
    *response.status_mut() = status;
    response
}

/// Returns a response with a JSON body. See [`json_line`].
///
/// # Errors
/// The value cannot be represented in JSON.
pub fn json(value: &impl Serialize) -> Answered {
    let failed = |error: serde_json::Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    Ok(of_type(JSON, Reply::Whole(json_line(value).map_err(failed)?.into())))
}

/// Serializes a value as JSON that ends in a newline, so that a shell's next prompt begins on a new line.
///
/// # Errors
/// The value cannot be represented in JSON.
pub fn json_line(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut body = serde_json::to_vec(value)?;
    body.push(b'\n');
    Ok(body)
}

/// Returns a response that consists of its status, as programs in Go write errors. `reason` is for the operator.
pub fn bare_error(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Response<Reply> {
    let mut response = text(status, format!("{}\n", status.canonical_reason().unwrap_or("Error")));
    response.extensions_mut().insert(ErrorCount { kind: ErrorKind::Unknown, limit: None, reason: reason.into() });
    response
}

/// How an error response is counted. It is an extension of the response.
#[derive(Debug, Clone)]
pub struct ErrorCount {
    kind: ErrorKind,
    /// The limit that the request exceeded, if any.
    limit: Option<Bound>,
    reason: Cow<'static, str>,
}

/// Counts a response of a front if it is an error.
#[inline]
pub fn count_error<B>(
    response: &Response<B>,
    metrics: &Metrics,
    front: Protocol,
    client: impl FnOnce() -> ErrorClient,
) {
    let Some(ErrorCount { kind, limit, reason }) = response.extensions().get() else { return };
    errors::count(metrics, front, *kind, client, reason);
    if let Some(limit) = limit {
        metrics.limits.reached.count(*limit);
    }
}

/// An error response.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// Type of the problem. It has no meaning of its own, because the status says everything.
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    detail: String,
    /// Position in the body: a JSON pointer in URI fragment form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<String>,
    /// A header besides the type. Few problems have one, and every result would otherwise include its size.
    #[serde(skip)]
    header: Option<Box<(HeaderName, HeaderValue)>>,
    /// The limit that the request exceeded.
    #[serde(skip)]
    limit: Option<Bound>,
    /// Why the client could not be logged in, if this is the problem.
    #[serde(skip)]
    login_error: Option<&'static str>,
}

fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Display for Problem {
    /// Writes the status, the position in the body, and what went wrong.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.status)?;
        if let Some(pointer) = &self.pointer {
            write!(f, "{pointer}: ")?;
        }
        f.write_str(&self.detail)
    }
}

impl Problem {
    /// Describes a problem with this status, for people.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let detail = shorten(detail.into(), MAX_DETAIL);
        let title = status.canonical_reason().unwrap_or("Error");
        let (pointer, header, limit, login_error) = (None, None, None, None);
        Self { kind: "about:blank", title, status, detail, pointer, header, limit, login_error }
    }

    /// Describes a request that is not valid.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Describes a client that could not be logged in. `reason` says why, for the operator.
    pub fn unauthenticated(detail: &'static str, reason: &'static str) -> Self {
        Self { login_error: Some(reason), ..Self::new(StatusCode::UNAUTHORIZED, detail) }
    }

    /// Describes a request with a method that its path does not have.
    pub fn wrong_method(head: &Parts, methods: &str) -> Self {
        let detail = format!("{} does not accept {}", head.uri.path(), head.method);
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, detail);
        // The methods are known words.
        HeaderValue::from_str(methods).into_iter().fold(problem, |problem, allow| problem.with_header(ALLOW, allow))
    }

    /// Marks a temporary problem, so that the client may retry soon.
    pub fn with_retry(self) -> Self {
        self.with_header(RETRY_AFTER, STORE_RETRY)
    }

    /// Adds a header. A problem has at most one.
    pub fn with_header(self, name: HeaderName, value: HeaderValue) -> Self {
        Self { header: Some(Box::new((name, value))), ..self }
    }

    /// Marks a problem with the limit that the request exceeded.
    pub fn with_limit(self, limit: Bound) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Adds the position in the body: a JSON pointer without its `#`.
    pub fn at(self, pointer: impl Display) -> Self {
        Self { pointer: Some(format!("#{pointer}")), ..self }
    }

    /// Returns what went wrong, for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the response.
    pub fn into_response(self) -> Response<Reply> {
        let body = json_line(&self).unwrap_or_default();
        let mut response = of_type("application/problem+json", Reply::Whole(body.into()));
        *response.status_mut() = self.status;
        if let Some((name, value)) = self.header.map(|header| *header) {
            response.headers_mut().insert(name, value);
        }
        let (kind, reason) = match self.login_error {
            Some(reason) => (ErrorKind::Unauthenticated, reason.into()),
            None => (ErrorKind::Unknown, self.detail.into()),
        };
        response.extensions_mut().insert(ErrorCount { kind, limit: self.limit, reason });
        response
    }
}

/// Describes a request of a group that is refused.
pub fn refused_member(RefusedMember { index, refusal }: RefusedMember) -> Problem {
    Problem::from(refusal).at(format_args!("/hits/{index}"))
}

/// Returns the status for errors of this class.
fn status(class: ErrorClass) -> StatusCode {
    match class {
        ErrorClass::RulesMistake => StatusCode::INTERNAL_SERVER_ERROR,
        ErrorClass::BadRequest => StatusCode::BAD_REQUEST,
        ErrorClass::UnsuitableRule | ErrorClass::UnnamedLease => StatusCode::CONFLICT,
        ErrorClass::Forbidden => StatusCode::FORBIDDEN,
        ErrorClass::NotFound => StatusCode::NOT_FOUND,
        ErrorClass::ReusedName => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorClass::Full => StatusCode::INSUFFICIENT_STORAGE,
        ErrorClass::StoreFailure => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Returns the text of an error of the limiter, as clients get it.
pub fn describe_error(error: &impl LimiterError) -> String {
    errors::describe(error, &TERMS)
}

impl<E: LimiterError> From<E> for Problem {
    fn from(error: E) -> Self {
        let class = error.class();
        let problem = Self::new(status(class), describe_error(&error));
        if class == ErrorClass::StoreFailure { problem.with_retry() } else { problem }
    }
}

/// Answers a request for an unknown path. A gRPC client gets a gRPC status, because it shows no other text.
pub fn not_found(head: &Parts) -> Response<Reply> {
    let content = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if content.starts_with(b"application/grpc") {
        let status = Status::unimplemented(Protocol::Http.describe(Protocol::Grpc));
        return grpc_error(status, "gRPC on the port of HTTP", None);
    }
    let detail = format!("{} does not exist; /openapi.json describes the API", head.uri.path());
    Problem::new(StatusCode::NOT_FOUND, detail).into_response()
}

/// Returns a response with a gRPC status that counts as an error.
pub fn grpc_error(status: Status, reason: impl Into<Cow<'static, str>>, limit: Option<Bound>) -> Response<Reply> {
    let mut response = status.into_http();
    response.extensions_mut().insert(ErrorCount { kind: ErrorKind::Unknown, limit, reason: reason.into() });
    response
}
