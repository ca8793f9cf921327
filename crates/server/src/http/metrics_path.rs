//! The path of the metrics.

/// Default path.
pub const DEFAULT_METRICS_PATH: &str = "/metrics";
/// Paths of the front's other pages.
const TAKEN: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];
/// Beginning of the API's paths.
const API: &str = "/v1";

/// Reason why the metrics cannot have a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMetricsPath {
    /// The first character is not a slash, or the second one is also a slash.
    #[error("the path must begin with one slash, such as {DEFAULT_METRICS_PATH}")]
    NoSlash,
    /// The path contains a character that clients might escape.
    #[error("the path may contain only letters, digits, slashes, and . _ ~ -")]
    Character,
    /// Another page of the front, or the API, has this path.
    #[error("this path is taken; choose another one, such as {DEFAULT_METRICS_PATH}")]
    Taken,
}

/// Checks a path for the metrics.
///
/// # Errors
/// The metrics cannot have this path.
pub fn check_metrics_path(path: &str) -> Result<(), InvalidMetricsPath> {
    if !path.starts_with('/') || path.starts_with("//") {
        return Err(InvalidMetricsPath::NoSlash);
    }
    if !path.chars().all(|c| c.is_ascii_alphanumeric() || "/._~-".contains(c)) {
        return Err(InvalidMetricsPath::Character);
    }
    let is_api = path.strip_prefix(API).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_api || TAKEN.contains(&path) { Err(InvalidMetricsPath::Taken) } else { Ok(()) }
}
