//! The live page, for people who look at a server in a browser (`--ui`).
//!
//! It shows the rules with their hits, the reloads of the rules, and the health of the server. The page's actions are
//! requests to the API. The routes below `/ui/api` belong to the page alone, and change with it.
//!
//! | module | purpose |
//! |---|---|
//! | this one | what the page is made of, its routes, and its files in a fixed table |
//! | [`access`] | who may see the page: requests of other sites and of proxies, logins, the rights of a viewer |
//! | [`feed`] | the stream of events that a page receives, and the bound on streams |
//! | [`history`] | the counts of each rule, once a second |
//! | [`rules`] | the event `rules`: the rules that a page shows, and their counts |
//! | [`mod@health`] | the event `health`: the state of the server, every few seconds |

mod access;
mod feed;
mod health;
mod history;
mod rules;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, LOCATION};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::feed::share_of_user;
use self::history::Sampler;
use divvy_access::{Category, Digest};
use divvy_limiter::Limiter;
use divvy_server::auth::Guard;
use divvy_server::http::page::{
    Answered, Page, Places, Problem, Reply, RequestBody, RequestOrigin, WorkSlots, empty, not_found, of_type,
};
use divvy_server::{Health, Limits, RecentReloads, keep_running};
use divvy_telemetry::metrics::{FrontRequests, RequestKind, Task};

/// Default maximum number of open streams of all pages.
pub const DEFAULT_STREAMS: usize = 64;
/// Number of searches, and of looks at the health of the server, at a time.
const MAX_AT_ONCE: usize = 2;
/// The name of the page itself, which is served as `/ui/`.
const INDEX: &str = "index.html";

/// Settings of the page.
#[derive(Debug, Clone)]
pub struct UiSettings {
    /// Maximum number of open streams of all pages.
    pub max_streams: usize,
    /// Name of the rules file, without its directories.
    pub rules_file: Option<String>,
    /// The durability of a hit, in words.
    pub durability: &'static str,
    /// Maximum size of the data directory (bytes), if there is one.
    pub max_disk: Option<u64>,
    /// Maximum size of the journal (bytes).
    pub max_journal: Option<u64>,
    /// Maximum memory of the hot table (bytes).
    pub cache_memory: Option<u64>,
    /// Maximum number of limits of single actors.
    pub max_actor_limits: u64,
    /// The last reloads of the rules.
    pub reloads: Arc<RecentReloads>,
}

/// The state that all routes of the page share.
pub struct Ui {
    settings: UiSettings,
    limiter: Arc<Limiter>,
    /// Logs users in. Without a guard, the page is read-only, and for this machine alone.
    guard: Option<Arc<Guard>>,
    health: Arc<Health>,
    limits: Limits,
    sampler: Arc<Sampler>,
    /// The last event `health`; `None` while no page is open.
    health_event: watch::Sender<Option<Arc<str>>>,
    streams: Arc<Places<Box<str>>>,
    slots: WorkSlots,
    /// Cancelled when the server accepts no more connections, so that streams end.
    stopping: CancellationToken,
}

impl Ui {
    /// Creates the page. `guard` is the one of the HTTP API.
    pub fn new(
        settings: UiSettings,
        limiter: Arc<Limiter>,
        guard: Option<Arc<Guard>>,
        health: Arc<Health>,
        limits: Limits,
    ) -> Arc<Self> {
        Arc::new(Self {
            sampler: Sampler::new(Arc::clone(&limiter)),
            health_event: watch::Sender::default(),
            streams: Places::new(settings.max_streams, Some(share_of_user(settings.max_streams))),
            slots: WorkSlots::new(MAX_AT_ONCE),
            stopping: CancellationToken::new(),
            settings,
            limiter,
            guard,
            health,
            limits,
        })
    }

    async fn answer(
        self: &Arc<Self>,
        head: &Parts,
        body: RequestBody,
        origin: &RequestOrigin,
        requests: &FrontRequests,
    ) -> Answered {
        access::check(self, head)?;
        let path = head.uri.path();
        let is_post = matches!(path, "/ui/api/login" | "/ui/api/logout");
        let is_accepted =
            if is_post { head.method == Method::POST } else { [Method::GET, Method::HEAD].contains(&head.method) };
        if !is_accepted {
            return Err(Problem::wrong_method(head, if is_post { "POST" } else { "GET,HEAD" }));
        }
        if path == "/ui/api/feed" {
            let viewer = access::admit(self, Category::Read, head, origin).await?;
            requests.count(RequestKind::Server);
            return feed::open(self, viewer, &head.uri);
        }
        requests.count(RequestKind::Server);
        match path {
            // Names in the page are relative to `/ui/`.
            "/ui" => {
                let mut response = empty(StatusCode::PERMANENT_REDIRECT);
                response.headers_mut().insert(LOCATION, HeaderValue::from_static("/ui/"));
                Ok(response)
            }
            "/ui/api/session" => access::show(self, head, origin).await,
            "/ui/api/login" => access::log_in(self, head, body, origin).await,
            "/ui/api/logout" => Ok(access::log_out(self, &head.headers)),
            "/ui/" => Ok(file(head, INDEX)),
            // The page has one address.
            "/ui/index.html" => Ok(not_found(head)),
            path => Ok(file(head, path.strip_prefix("/ui/").unwrap_or_default())),
        }
    }
}

impl Page for Ui {
    fn respond<'a>(
        self: Arc<Self>,
        head: &'a Parts,
        body: RequestBody,
        origin: &'a RequestOrigin,
        requests: &'a FrontRequests,
    ) -> BoxFuture<'a, Response<Reply>> {
        Box::pin(async move {
            let answered = self.answer(head, body, origin, requests).await;
            let mut response = answered.unwrap_or_else(Problem::into_response);
            access::add_headers(&head.uri, response.headers_mut());
            response
        })
    }

    fn run(self: Arc<Self>, stopping: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let metrics = Arc::clone(self.limiter.metrics());
            let sample_rules = keep_running(Task::Page, &metrics, || self.sampler.sample_forever());
            let sample_health = keep_running(Task::Page, &metrics, || self.sample_health());
            let sample = async { tokio::join!(sample_rules, sample_health) };
            stopping.run_until_cancelled(sample).await;
            self.stopping.cancel();
        })
    }
}

/// Returns the names and the contents of files in `assets`.
macro_rules! files {
    ($($name:literal)*) => { &[$(($name, include_bytes!(concat!("../assets/", $name)))),*] };
}

/// The files of the page: name and content. They are part of the program, so no request reaches the file system.
const FILES: &[(&str, &[u8])] = files! {
    "index.html" "page.css" "views.css" "icon.svg" "preact_htm.js"
    "actor.js" "api.js" "changes.js" "explain.js" "feed.js" "format.js" "health.js" "main.js"
    "rule.js" "rule_text.js" "rules.js" "top.js" "widgets.js"
};

/// The entity tag of all files: a hash of their contents.
static TAG: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let hash = Digest::of(&FILES.iter().map(|(_, content)| *content).collect::<Vec<_>>().concat()).to_word();
    HeaderValue::try_from(format!("\"{}\"", hash.trim_start_matches('#'))).ok()
});

/// Returns the file with this name.
fn file(head: &Parts, name: &str) -> Response<Reply> {
    let Some((_, content)) = FILES.iter().find(|(known, _)| *known == name) else { return not_found(head) };
    let kind = match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        _ => "image/svg+xml",
    };
    let is_known = head.headers.get_all(IF_NONE_MATCH).iter().any(|tag| TAG.as_ref() == Some(tag));
    let mut response = match is_known {
        true => empty(StatusCode::NOT_MODIFIED),
        false => of_type(kind, Reply::Whole(Bytes::from_static(content))),
    };
    response.headers_mut().extend(TAG.clone().map(|tag| (ETAG, tag)));
    // Browsers ask each time, so that an upgraded server is never shown with older files.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn table_has_every_file() {
        let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets")).unwrap();
        let files: BTreeSet<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(files, FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
    }
}
