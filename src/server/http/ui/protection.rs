//! Protection of the page, its viewers and the server: headers of each response, and the refusal of requests that another
//! site or a proxy may have caused.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::host;
use super::state::Ui;
use crate::server::http::problem::Problem;

/// Beginning of the paths with data.
const DATA: &str = "/ui/api/";

const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                              connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                              require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of all responses. No other site may embed, open or read anything of the page, and the page asks no other site.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (X_FRAME_OPTIONS, "DENY"),
];

/// Header of browsers: whether the page that causes a request is of the same site.
const FETCH_SITE: &str = "sec-fetch-site";

/// Refuses requests that another site or a proxy may have caused, and adds the headers. This is a middleware.
pub async fn protect(State(ui): State<Arc<Ui>>, request: Request, next: Next) -> Response {
    let is_data = request.uri().path().starts_with(DATA);
    let mut response = match check(&ui, &request, is_data) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_data {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

fn check(ui: &Ui, request: &Request, is_data: bool) -> Result<(), Problem> {
    let (uri, headers) = (request.uri(), request.headers());
    if ui.guard.is_none() {
        host::check_local(request.version(), uri, headers)?;
    }
    // A link on another site may lead to the page, but not to its data.
    if is_data && !is_of_this_origin(uri, headers) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "this request comes from a page of another site"));
    }
    Ok(())
}

/// Returns whether a browser sends the request for a page of this server. Programs that are no browsers send neither header.
fn is_of_this_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let mut sites = headers.get_all(FETCH_SITE).iter();
    origins.all(|origin| host::of_origin(origin.as_bytes()).is_some_and(|own| host::is_requested(own, uri, headers)))
        && sites.all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_other_origins_are_recognized() {
        let is_own = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            is_of_this_origin(&Uri::from_static("/ui/api/login"), &headers)
        };
        let host = ("host", "divvy.example:8322");
        for own in [
            &[host][..],
            &[host, ("origin", "http://divvy.example:8322")],
            &[host, ("origin", "https://DIVVY.example:8322"), ("sec-fetch-site", "same-origin")],
            &[("host", "divvy.example"), ("origin", "https://divvy.example")],
            &[host, ("sec-fetch-site", "none")],
        ] {
            assert!(is_own(own), "{own:?}");
        }
        for other in [
            &[host, ("origin", "http://evil.example")][..],
            &[host, ("origin", "http://divvy.example")],
            &[host, ("origin", "http://divvy.example:8322.evil.example")],
            &[host, ("origin", "null")],
            &[host, ("origin", "")],
            &[host, ("origin", "http://divvy.example:8322"), ("origin", "http://evil.example")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
            &[("origin", "http://divvy.example:8322")],
        ] {
            assert!(!is_own(other), "{other:?}");
        }
    }
}
