//! The live page, for people who look at a server in a browser (`--ui`).
//!
//! It shows the rules with their hits, the reloads of the rules, and the health of the server. The page's actions are
//! requests to the API. The routes below `/ui/api` belong to the page alone, and change with it.
//!
//! | module | purpose |
//! |---|---|
//! | [`assets`] | the files of the page, in a fixed table |
//! | [`protection`], [`host`] | headers of all responses; requests of other sites, and of proxies |
//! | [`viewer`] | the user who looks at the page, and its rights |
//! | [`session`] | logins and logouts |
//! | [`sampler`], [`history`] | the counts of each rule, once a second |
//! | [`feed`], [`view`], [`rules_event`] | the stream of events that a page receives |

mod assets;
mod feed;
mod history;
mod host;
mod protection;
mod rules_event;
mod sampler;
mod session;
mod view;
mod viewer;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::assets::Assets;
pub use self::sampler::Sampler;
use super::problem::wrong_method;
use super::request_count::count;
use crate::access::Category;
use crate::limiter::Limiter;
use crate::metrics::{FrontRequests, RequestKind};
use crate::server::net::auth::Guard;
use crate::server::net::work_slots::WorkSlots;

/// Default maximum number of open streams of all pages.
pub const DEFAULT_STREAMS: usize = 64;

/// Settings of the page.
#[derive(Debug, Clone)]
pub struct UiSettings {
    /// Maximum number of open streams of all pages.
    pub max_streams: usize,
}

/// The state that all routes of the page share.
pub struct Ui {
    limiter: Arc<Limiter>,
    /// Logs users in. Without a guard, the page is read-only, and for this machine alone.
    guard: Option<Arc<Guard>>,
    sampler: Arc<Sampler>,
    slots: WorkSlots,
    assets: Assets,
    max_body: usize,
    /// A permit for each stream that may still be opened.
    streams: Arc<Semaphore>,
    max_streams: usize,
    /// Cancelled when the server accepts no more connections, so that streams end.
    stopping: CancellationToken,
}

impl Ui {
    /// Creates the page. `max_body` bounds a login (bytes), and `slots` bound the searches at a time.
    pub fn new(
        settings: &UiSettings,
        limiter: Arc<Limiter>,
        guard: Option<Arc<Guard>>,
        sampler: Arc<Sampler>,
        slots: WorkSlots,
        max_body: usize,
        stopping: CancellationToken,
    ) -> Arc<Self> {
        let (max_streams, assets) = (settings.max_streams, Assets::new());
        let streams = Arc::new(Semaphore::new(max_streams));
        Arc::new(Self { limiter, guard, sampler, slots, assets, max_body, streams, max_streams, stopping })
    }
}

/// A path, and its methods with the category that each needs.
type Route = (&'static str, Vec<(Category, MethodRouter<Arc<Ui>>)>);

fn routes() -> Vec<Route> {
    vec![
        ("/ui", vec![(Category::Connection, get(assets::redirect))]),
        ("/ui/", vec![(Category::Connection, get(assets::index))]),
        ("/ui/{*name}", vec![(Category::Connection, get(assets::asset))]),
        ("/ui/api/session", vec![(Category::Connection, get(session::show))]),
        ("/ui/api/login", vec![(Category::Connection, post(session::log_in))]),
        ("/ui/api/logout", vec![(Category::Connection, post(session::log_out))]),
        ("/ui/api/feed", vec![(Category::Read, get(feed::open))]),
    ]
}

/// Returns the routes of the page.
pub fn router(ui: Arc<Ui>, requests: &FrontRequests) -> Router {
    let counted = || from_fn_with_state((requests.clone(), RequestKind::Server), count);
    let add = |router: Router<_>, (path, methods): Route| {
        let methods = methods.into_iter().map(|(category, methods)| {
            let methods: MethodRouter<_> = methods.layer(counted());
            methods.layer(from_fn_with_state((Arc::clone(&ui), category), viewer::admit))
        });
        let methods = methods.reduce(MethodRouter::merge).unwrap_or_default();
        // The fallback is set here, because the router would replace the default one, without the layer.
        let methods = methods.fallback(wrong_method);
        router.route(path, methods.layer(from_fn_with_state(Arc::clone(&ui), protection::protect)))
    };
    routes().into_iter().fold(Router::new(), add).with_state(ui)
}
