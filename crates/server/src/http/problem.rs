//! Error responses in the format `application/problem+json` (RFC 9457).

use std::fmt::Display;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tonic::Status;

use super::error_counts::ErrorCount;
use super::json_line::json_line;
use crate::error_text::{self, Terms};
use crate::wrong_port::Protocol;
use divvy_limiter::{ErrorClass, LimiterError, RefusedMember};
use divvy_telemetry::metrics::Bound;

const CONTENT: HeaderValue = HeaderValue::from_static("application/problem+json");
/// `Retry-After` for temporary problems (seconds). The time when a store recovers is unknown.
const STORE_RETRY: HeaderValue = HeaderValue::from_static("1");
/// Maximum length of a detail, because it may repeat the client's text (bytes).
const MAX_DETAIL: usize = 512;

const TERMS: Terms = Terms {
    take_lease: Some("take a lease with POST /v1/reservations, and release it when the work is done"),
    list_rules: Some("GET /v1/rules lists them"),
};

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
    #[serde(skip)]
    may_pass: bool,
    /// The limit that the request exceeded.
    #[serde(skip)]
    limit: Option<Bound>,
}

fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.len() > MAX_DETAIL {
            detail.truncate(detail.floor_char_boundary(MAX_DETAIL));
            detail.push('…');
        }
        let title = status.canonical_reason().unwrap_or("Error");
        Self { kind: "about:blank", title, status, detail, pointer: None, may_pass: false, limit: None }
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Marks a temporary problem, so that the client may retry soon.
    pub fn with_retry(self) -> Self {
        Self { may_pass: true, ..self }
    }

    /// Returns what went wrong, for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Marks a problem with the limit that the request exceeded.
    pub fn with_limit(self, limit: Bound) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Adds the position in the body: a JSON pointer without its `#`.
    pub fn at(self, pointer: impl Display) -> Self {
        Self { pointer: Some(format!("#{pointer}")), ..self }
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
    error_text::describe(error, &TERMS)
}

impl<E: LimiterError> From<E> for Problem {
    fn from(error: E) -> Self {
        let class = error.class();
        let may_pass = class == ErrorClass::StoreFailure;
        Self { may_pass, ..Self::new(status(class), describe_error(&error)) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json_line(&self).unwrap_or_default();
        let mut response = (self.status, [(CONTENT_TYPE, CONTENT)], body).into_response();
        if self.may_pass {
            response.headers_mut().insert(RETRY_AFTER, STORE_RETRY);
        }
        response.extensions_mut().insert(ErrorCount::problem(self.detail, self.limit));
        response
    }
}

/// Answers a request for an unknown path. A gRPC client gets a gRPC status, because it shows no other text.
pub async fn not_found(headers: HeaderMap, uri: Uri) -> Response {
    let content = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if content.starts_with(b"application/grpc") {
        let mut response: Response = Status::unimplemented(Protocol::Http.describe(Protocol::Grpc)).into_http();
        response.extensions_mut().insert(ErrorCount::problem("gRPC on the port of HTTP", None));
        return response;
    }
    let detail = format!("{} does not exist; /openapi.json describes the API", uri.path());
    Problem::new(StatusCode::NOT_FOUND, detail).into_response()
}

pub async fn wrong_method(method: Method, uri: Uri) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not accept {method}", uri.path()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_limiter::Refusal;

    #[test]
    fn request_out_of_scope_is_forbidden_and_does_not_pass() {
        let problem = refused_member(RefusedMember { index: 1, refusal: Refusal::OutOfScope });
        assert_eq!((problem.status, problem.may_pass), (StatusCode::FORBIDDEN, false));
        assert_eq!(problem.pointer.as_deref(), Some("#/hits/1"));
    }
}
