//! `GET /openapi.json`: the description of the API.

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde_json::Value;

use crate::http::json_line::json_line;
use divvy_api::add_operations;

/// The description. Requests of applications and gateways are described by hand, and tests compare them with the server's
/// behavior. Operations of operators follow from their table.
pub static DESCRIPTION: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut description: Value = serde_json::from_str(include_str!("openapi.json")).unwrap_or_default();
    add_operations(&mut description);
    json_line(&description).unwrap_or_default()
});

pub async fn describe() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DESCRIPTION.as_slice())
}
