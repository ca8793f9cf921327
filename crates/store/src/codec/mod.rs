//! Keys and values as bytes.

pub mod key;
pub mod leb128;
pub mod record_key;
pub mod value;
mod version;
