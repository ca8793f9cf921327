//! Layers between the limiter and a distant store.

pub mod denial_cache;
mod denials;
pub mod fallback_store;
pub mod uninterrupted;
