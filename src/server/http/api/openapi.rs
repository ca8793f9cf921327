//! `GET /openapi.json`: the description of the API.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

/// The description, which is written by hand. Tests compare it with the server's behavior.
pub const DESCRIPTION: &str = include_str!("openapi.json");

pub async fn describe() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DESCRIPTION)
}
