//! `GET /openapi.json`: what there is, for people and generators.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

/// Written by hand; the tests hold it against what the server does.
pub const DESCRIPTION: &str = include_str!("openapi.json");

pub async fn describe() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DESCRIPTION)
}
