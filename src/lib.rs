pub mod algorithm;
pub mod clock;
pub mod protocol;
pub mod rules;
pub mod store;
