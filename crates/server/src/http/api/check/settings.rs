//! Settings of checks for gateways.

use axum::http::StatusCode;

use super::forwarded::CheckFrom;
use super::id::CheckId;
use super::sources::CheckOperation;

/// Settings of checks for gateways.
#[derive(Debug, Clone)]
pub struct CheckSettings {
    /// How the checked request becomes an operation.
    pub operation: CheckOperation,
    /// The headers that the gateway sets; `None` if that is unknown.
    pub from: Option<CheckFrom>,
    /// The header that names the checked request, if there is one.
    pub id: Option<CheckId>,
    /// Number of addresses at the end of `X-Forwarded-For` that belong to the operator's proxies.
    pub trusted_hops: usize,
    /// Status of a denial.
    pub deny_status: StatusCode,
}
