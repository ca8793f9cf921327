//! The layers between the limiter and a distant store.

mod denial_cache;
mod denials;
mod fallback;
mod layered_store;
mod uninterrupted;

pub use self::denial_cache::DEFAULT_DENIAL_CACHE;
pub use self::fallback::{FailurePolicy, LOCAL_BUCKETS};
pub use self::layered_store::LayeredStore;
