//! JSON from operators and clients: stricter types, and messages in JSON's own words.
//!
//! Derived types accept more than one form of a value, and serde's messages name types of Rust. Rules files, test cases and
//! request bodies share the remedies.

mod message;
mod object;
mod whole_number;

pub use message::message;
pub use object::Object;
pub use whole_number::WholeNumber;
