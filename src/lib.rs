pub mod algorithm;
pub mod clock;
pub mod rules;
pub mod store;
