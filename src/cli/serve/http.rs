//! Flags of the HTTP API and of the live page, and the conditions for the page.

use std::sync::Arc;

use anyhow::{bail, ensure};
use hyper::StatusCode;

use super::access::{AccessUsers, is_loopback};
use super::listen::local_addresses;
use divvy_core::config::ratelimit::options::Options;
use divvy_core::rules::{FinalSlash, Spellings};
use divvy_core::units;
use divvy_server::http::page;
use divvy_server::http::{ApiSettings, CheckFrom, CheckId, CheckOperation, CheckSettings, RateLimitHeaders, WebOrigin};
use divvy_server::sessions::Sessions;
use divvy_server::{Fronts, GrpcSettings};

/// Upper bound for trusted proxies, more than any header contains.
const MAX_TRUSTED_HOPS: u64 = 1_000;

/// Upper bound for open live pages.
const MAX_STREAMS: u64 = 10_000;

#[derive(clap::Args)]
#[command(next_help_heading = "HTTP and gateways")]
pub struct HttpArgs {
    /// Rate limit headers of HTTP responses, separated by commas: `draft` (RateLimit and RateLimit-Policy of the IETF
    /// draft), `triple` (RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset), `x` (the same three with X- in front),
    /// or `none`
    #[arg(long, value_name = "DIALECTS", default_value = "draft")]
    rate_limit_headers: RateLimitHeaders,
    /// The same headers for gRPC. Gateways add them to their responses
    #[arg(long, value_name = "DIALECTS", default_value = "none")]
    grpc_rate_limit_headers: RateLimitHeaders,
    /// Over gRPC, take from all of a request's descriptors, or from none if one is over its limit
    #[arg(long)]
    grpc_atomic: bool,
    /// Sources of an operation's pairs in /v1/check: KEY=SOURCE, separated by spaces. SOURCE is method, path, uri,
    /// host, ip, raw, header:NAME, header:NAME|hash or query:NAME. `+` before the first one adds pairs to the default ones
    #[arg(long, value_name = "PAIRS", default_value = CheckOperation::DEFAULT)]
    check_operation: CheckOperation,
    /// The family of headers that describe a request to /v1/check. The gateway sets them, and others are ignored [default:
    /// all; a check is refused if they contradict each other]
    #[arg(long, value_name = "FAMILY")]
    check_from: Option<CheckFrom>,
    /// header:NAME: the header that names a request in /v1/check. Checks of one request and operation count once. Only
    /// for gateways that overwrite the header
    #[arg(long, value_name = "SOURCE", requires = "check_from")]
    check_id: Option<CheckId>,
    /// The slash at the end of a path in /v1/check. Without it, /login/ is /login
    #[arg(long, value_name = "HOW", default_value = "keep", value_parser = ["keep", "drop"])]
    check_final_slash: String,
    /// Number of addresses at the end of X-Forwarded-For that belong to your own proxies. The one before them is the
    /// client's
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = units::count::<usize>(0..=MAX_TRUSTED_HOPS))]
    trusted_hops: usize,
    /// HTTP status of /v1/check's denials, from 400 to 599. nginx's auth_request understands only 403
    #[arg(long, value_name = "STATUS", default_value = "429", value_parser = deny_status)]
    deny_status: StatusCode,
    /// Origins of web pages that may read the status of an actor with a token, such as https://example.com, separated
    /// by commas
    #[expect(rustdoc::bare_urls, reason = "this is the text of --help")]
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<WebOrigin>,
    /// Serve the live page at /ui/ on the HTTP listener. Without a password or users, it is read-only, and only for
    /// browsers on this machine
    #[arg(long, value_parser = clap::builder::BoolishValueParser::new())]
    ui: bool,
    /// Maximum number of open live pages, over all browsers. One user may open half of them [default: 64]
    #[arg(long, value_name = "N", value_parser = units::count::<usize>(1..=MAX_STREAMS))]
    pub ui_streams: Option<usize>,
}

impl HttpArgs {
    /// Checks flags that depend on each other.
    ///
    /// # Errors
    /// A flag has no effect because of another.
    pub fn check(&self) -> anyhow::Result<()> {
        self.check_operation.check_family(self.check_from).map_err(anyhow::Error::msg)
    }

    /// Returns the keys whose values checks normalize.
    pub fn spellings(&self) -> Spellings {
        self.operation().spellings()
    }

    fn operation(&self) -> CheckOperation {
        let final_slash = if self.check_final_slash == "drop" { FinalSlash::Drop } else { FinalSlash::Keep };
        self.check_operation.clone().with_final_slash(final_slash)
    }

    pub fn grpc(&self, ratelimit: Arc<Options>) -> GrpcSettings {
        GrpcSettings { headers: self.grpc_rate_limit_headers, atomic: self.grpc_atomic, ratelimit }
    }

    /// Returns the settings of the API.
    pub fn settings(&self) -> ApiSettings {
        ApiSettings {
            headers: self.rate_limit_headers,
            check: CheckSettings {
                operation: self.operation(),
                from: self.check_from,
                id: self.check_id.clone(),
                trusted_hops: self.trusted_hops,
                deny_status: self.deny_status,
            },
            origins: self.cors_origin.clone(),
        }
    }

    /// Returns whether the page is served.
    ///
    /// # Errors
    /// A flag has no effect, this build has no page, or the metrics have a path of it.
    pub fn has_page(&self, metrics_path: &str) -> anyhow::Result<bool> {
        if !self.ui {
            ensure!(self.ui_streams.is_none(), "--ui-streams (or DIVVY_UI_STREAMS) has no effect without --ui: add it");
            return Ok(false);
        }
        ensure!(cfg!(feature = "ui"), "--ui: this divvy was built without the live page (feature `ui`)");
        ensure!(
            !page::is_path(metrics_path),
            "--metrics-path is {metrics_path:?}, but the live page has this path: choose another one"
        );
        Ok(true)
    }

    /// Returns the sessions of the page; `None` if it is not served. `is_secure` says that HTTP is served over TLS.
    ///
    /// # Errors
    /// The page has no listener, or anybody in the network could see it.
    pub fn sessions(
        &self,
        fronts: &Fronts,
        is_secure: bool,
        users: &AccessUsers,
    ) -> anyhow::Result<Option<Arc<Sessions>>> {
        if !self.ui {
            return Ok(None);
        }
        let addresses = local_addresses(&fronts.http)?;
        let Some(first) = addresses.first() else {
            bail!("--ui needs the HTTP listener, but --http-listen is `none`");
        };
        for address in &addresses {
            ensure!(
                users.are_required() || is_loopback(address.ip()),
                "--ui on {address} needs users, because other machines can reach it: set --requirepass or --access-file, or \
                 listen on 127.0.0.1 with --http-listen"
            );
        }
        Ok(Some(Arc::new(Sessions::new(first.port(), is_secure))))
    }
}

/// Parses the status of denials. Success is not accepted, because gateways let a request pass on any 2xx and may follow
/// a 3xx.
fn deny_status(text: &str) -> Result<StatusCode, String> {
    let status = text.parse::<StatusCode>().ok().filter(|status| (400..600).contains(&status.as_u16()));
    status.ok_or_else(|| "must be a status from 400 to 599".to_owned())
}
