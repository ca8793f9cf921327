//! The live page, for people who look at a server in a browser (`--ui`).
//!
//! It shows the rules with their hits, the reloads of the rules, and the health of the server. The page's actions are
//! requests to the API. The routes below `/ui/api` belong to the page alone, and change with it.
//!
//! | module | purpose |
//! |---|---|
//! | [`state`] | what the page is made of |
//! | [`assets`] | the files of the page, in a fixed table |
//! | [`protection`] | headers of all responses; requests of other sites, and of proxies |
//! | [`viewer`] | the user who looks at the page, and its rights; logins and logouts |
//! | [`history`] | the counts of each rule, once a second |
//! | [`mod@health`], [`values`] | the state of the server, every few seconds |
//! | [`feed`], [`view`], [`rules_event`] | the stream of events that a page receives |

mod assets;
mod feed;
mod health;
mod history;
mod protection;
mod rules_event;
mod state;
mod values;
mod view;
mod viewer;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

use self::assets::INDEX;
pub use self::health::PageHealth;
pub use self::history::Sampler;
pub use self::state::{DEFAULT_STREAMS, Ui, UiSettings};
pub use self::values::StoreBounds;
use super::problem::{not_found, wrong_method};
use super::request_count::count;
use divvy_access::Category;
use divvy_telemetry::metrics::{FrontRequests, RequestKind};

/// A path, and its methods with the category that each needs.
type Route = (&'static str, Vec<(Category, MethodRouter<Arc<Ui>>)>);

fn routes() -> Vec<Route> {
    vec![
        ("/ui", vec![(Category::Connection, get(redirect))]),
        ("/ui/", vec![(Category::Connection, get(index))]),
        ("/ui/{*name}", vec![(Category::Connection, get(asset))]),
        ("/ui/api/session", vec![(Category::Connection, get(viewer::show))]),
        ("/ui/api/login", vec![(Category::Connection, post(viewer::log_in))]),
        ("/ui/api/logout", vec![(Category::Connection, post(viewer::log_out))]),
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

/// `GET /ui`: names in the page are relative to `/ui/`.
async fn redirect() -> Response {
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "/ui/")]).into_response()
}

/// `GET /ui/`
async fn index(State(ui): State<Arc<Ui>>, headers: HeaderMap, uri: Uri) -> Response {
    respond(&ui, INDEX, headers, uri).await
}

/// `GET /ui/NAME`
async fn asset(State(ui): State<Arc<Ui>>, Path(name): Path<String>, headers: HeaderMap, uri: Uri) -> Response {
    // The page has one address.
    let name = if name == INDEX { "" } else { name.as_str() };
    respond(&ui, name, headers, uri).await
}

async fn respond(ui: &Ui, name: &str, headers: HeaderMap, uri: Uri) -> Response {
    match ui.assets.find(name) {
        Some(asset) => asset.respond(&headers),
        None => not_found(headers, uri).await,
    }
}
