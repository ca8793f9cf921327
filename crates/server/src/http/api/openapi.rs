//! `GET /openapi.json`: the description of the API.

use std::sync::LazyLock;

use hyper::Response;

use crate::http::response::{JSON, json_line, of_type};
use crate::http::transport::reply::Reply;
use divvy_api::description;

/// The description. Tests compare it with the server's behavior.
pub static DESCRIPTION: LazyLock<Vec<u8>> = LazyLock::new(|| json_line(&description()).unwrap_or_default());

/// Describes the API.
pub fn describe() -> Response<Reply> {
    of_type(JSON, Reply::Whole(DESCRIPTION.as_slice().into()))
}
