//! The messages of discovery and the resources in them, generated from the files in `proto`. Their strings are UTF-8.

/// The code that the files compile to.
#[allow(clippy::all, clippy::allow_attributes_without_reason, missing_docs, dead_code, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/discovery/messages.rs"));
}
pub use generated::envoy::config::core::v3::Node;
pub use generated::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
pub use generated::google::rpc::Status;
#[cfg(test)]
pub use generated::ratelimit::config::ratelimit::v3::RateLimitReplace;
pub use generated::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
