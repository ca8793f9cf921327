//! `GET /openapi.json`: the description of the API.

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::http::json_line::json_line;
use divvy_api::description;

/// The description. Tests compare it with the server's behavior.
pub static DESCRIPTION: LazyLock<Vec<u8>> = LazyLock::new(|| json_line(&description()).unwrap_or_default());

pub async fn describe() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DESCRIPTION.as_slice())
}
