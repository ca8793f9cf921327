//! JSON bodies, each of which is a line.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::Problem;

/// A body of JSON that ends in a newline, so that a shell's next prompt begins on a line of its own.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match line(&self.0) {
            Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}

/// JSON and a newline.
///
/// # Errors
/// When the value has no form in JSON.
pub fn line(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut body = serde_json::to_vec(value)?;
    body.push(b'\n');
    Ok(body)
}
