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

use hyper::header::{HeaderValue, LOCATION};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use self::assets::INDEX;
pub use self::health::PageHealth;
pub use self::history::Sampler;
pub use self::state::{DEFAULT_STREAMS, Ui, UiSettings};
pub use self::values::StoreBounds;
use super::response::{Answered, Problem, empty, not_found};
use super::transport::bounds::Incoming;
use super::transport::reply::Reply;
use crate::net::auth::Origin;
use divvy_access::Category;
use divvy_telemetry::metrics::{FrontRequests, RequestKind};

/// Returns whether the page has this path.
pub fn is_path(path: &str) -> bool {
    path.strip_prefix("/ui").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Ui {
    /// Answers a request with a path of the page.
    pub async fn respond(
        self: &Arc<Self>,
        head: &Parts,
        body: impl Incoming,
        origin: &Origin,
        requests: &FrontRequests,
    ) -> Response<Reply> {
        let answered = match protection::check(self, head) {
            Ok(()) => self.answer(head, body, origin, requests).await,
            Err(problem) => Err(problem),
        };
        let mut response = answered.unwrap_or_else(Problem::into_response);
        protection::add_headers(&head.uri, response.headers_mut());
        response
    }

    async fn answer(
        self: &Arc<Self>,
        head: &Parts,
        body: impl Incoming,
        origin: &Origin,
        requests: &FrontRequests,
    ) -> Answered {
        let path = head.uri.path();
        let is_post = matches!(path, "/ui/api/login" | "/ui/api/logout");
        let accepted = match head.method {
            Method::POST => is_post,
            Method::GET | Method::HEAD => !is_post,
            _ => false,
        };
        if !accepted {
            return Err(Problem::wrong_method(head, if is_post { "POST" } else { "GET,HEAD" }));
        }
        let viewer = match path {
            "/ui/api/feed" => Some(viewer::admit(self, Category::Read, head, origin).await?),
            _ => None,
        };
        requests.count(RequestKind::Server);
        match (path, viewer) {
            (_, Some(viewer)) => feed::open(self, viewer, &head.uri),
            // Names in the page are relative to `/ui/`.
            ("/ui", _) => {
                let mut response = empty(StatusCode::PERMANENT_REDIRECT);
                response.headers_mut().insert(LOCATION, HeaderValue::from_static("/ui/"));
                Ok(response)
            }
            ("/ui/api/session", _) => viewer::show(self, head, origin).await,
            ("/ui/api/login", _) => viewer::log_in(self, head, body, origin).await,
            ("/ui/api/logout", _) => Ok(viewer::log_out(self, &head.headers)),
            _ => Ok(self.file(head)),
        }
    }

    /// Returns a file of the page.
    fn file(&self, head: &Parts) -> Response<Reply> {
        let name = match head.uri.path().strip_prefix("/ui/").unwrap_or_default() {
            "" => INDEX,
            // The page has one address.
            INDEX => "",
            name => name,
        };
        self.assets.find(name).map_or_else(|| not_found(head), |asset| asset.respond(&head.headers))
    }
}
