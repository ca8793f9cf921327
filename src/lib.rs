pub mod algorithm;
pub mod clock;
pub mod limiter;
pub mod protocol;
pub mod rules;
pub mod server;
pub mod store;
