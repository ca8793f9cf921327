//! JSON that ends in a newline.

use serde::Serialize;

/// Serializes a value as JSON with a newline.
///
/// # Errors
/// The value cannot be represented in JSON.
pub fn json_line(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut body = serde_json::to_vec(value)?;
    body.push(b'\n');
    Ok(body)
}
