//! Settings of checks for gateways.

use axum::http::StatusCode;

use super::spec::CheckOperation;

/// Settings of checks for gateways.
#[derive(Debug, Clone)]
pub struct CheckSettings {
    /// How the checked request becomes an operation.
    pub operation: CheckOperation,
    /// Number of addresses at the end of `X-Forwarded-For` that belong to the operator's proxies.
    pub trusted_hops: usize,
    /// Status of a denial.
    pub deny_status: StatusCode,
}
