//! The HTTP front: one function leads each request to its endpoint ([`routes`]): the API for clients and gateways ([`api`]),
//! pages for [`monitoring`], and the live page ([`page`]). [`transport`] serves the connections.

pub mod api;
pub(super) mod auth;
mod cross_origin;
mod monitoring;
pub mod page;
pub(super) mod response;
mod routes;
pub(super) mod transport;

pub use self::api::ApiSettings;
pub use self::api::answer::RateLimitHeaders;
pub(super) use self::api::answer::{Answer, EXCEEDED};
pub use self::api::check::{CheckFrom, CheckId, CheckOperation, CheckSettings};
pub use self::cross_origin::WebOrigin;
pub use self::monitoring::{DEFAULT_METRICS_PATH, InvalidMetricsPath, check_metrics_path};
pub use self::response::describe_error;
pub(super) use self::routes::HttpFront;
pub use self::transport::http2::frame;
