//! The layers between the limiter and a distant store.

pub mod denial_cache;
mod denials;
pub mod fallback;
pub mod layered_store;
mod uninterrupted;
