//! Keys and values as bytes.

pub mod key;
pub mod record_key;
pub mod value;
mod version;
