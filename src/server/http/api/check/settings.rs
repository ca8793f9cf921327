//! How gateways' questions are understood and answered.

use axum::http::StatusCode;

use super::spec::CheckOperation;

/// How gateways' questions are understood and answered.
#[derive(Debug, Clone)]
pub struct CheckSettings {
    pub operation: CheckOperation,
    /// How many of the last addresses of `X-Forwarded-For` are the operator's own proxies'.
    pub trusted_hops: usize,
    /// The status of a denial.
    pub deny_status: StatusCode,
}
