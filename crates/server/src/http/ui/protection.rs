//! Protection of the page, its viewers and the server: headers of each response, and the refusal of requests that another
//! site or a proxy may have caused.
//!
//! Without users, the page is for this machine alone. A name that an attacker's name server resolves to a loopback address,
//! or a proxy that forwards requests of others, would let anybody else look at it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, FORWARDED, HOST, HeaderName, ORIGIN, REFERRER_POLICY, VIA,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::state::Ui;
use crate::http::problem::Problem;

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
        check_local(request.version(), uri, headers)?;
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
    origins.all(|origin| host_of_origin(origin.as_bytes()).is_some_and(|own| names_host(own, uri, headers)))
        && sites.all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"))
}

/// Beginning of the names of headers that proxies add.
const FORWARDING: &str = "x-forwarded-";
/// Other headers that proxies add.
const OF_PROXIES: [&str; 6] =
    ["x-real-ip", "x-client-ip", "client-ip", "true-client-ip", "cf-connecting-ip", "x-envoy-external-address"];

/// Checks that a request was sent on this machine, to one of its loopback names, without a proxy.
///
/// # Errors
/// The problem, and what to do about it.
fn check_local(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    // No browser has sent HTTP/1.0 for decades, but nginx does by default, with a loopback host and no header of its own.
    if version < Version::HTTP_11 || headers.keys().any(is_of_proxy) {
        return Err(not_local("a proxy forwarded this request"));
    }
    let mut hosts = headers.get_all(HOST).iter().map(|host| host.as_bytes()).chain(host_in_uri(uri)).peekable();
    if hosts.peek().is_none() || !hosts.all(is_local) {
        return Err(not_local("this request names a host other than localhost, 127.0.0.1 or [::1]"));
    }
    Ok(())
}

fn is_of_proxy(name: &HeaderName) -> bool {
    *name == FORWARDED || *name == VIA || name.as_str().starts_with(FORWARDING) || OF_PROXIES.contains(&name.as_str())
}

fn not_local(reason: &str) -> Problem {
    let remedy = "without users, the page is for this machine alone: set --requirepass or --access-file";
    Problem::new(StatusCode::FORBIDDEN, format!("{reason}; {remedy}"))
}

/// Returns the host and port of an origin, as browsers send it.
fn host_of_origin(origin: &[u8]) -> Option<&[u8]> {
    origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"))
}

/// Returns whether the request names this host and port, and no other.
fn names_host(host: &[u8], uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter().map(|host| host.as_bytes()).chain(host_in_uri(uri)).peekable();
    hosts.peek().is_some() && hosts.all(|named| named.eq_ignore_ascii_case(host))
}

/// Returns the host in the URI, which HTTP/2 has in place of the header.
fn host_in_uri(uri: &Uri) -> Option<&[u8]> {
    uri.authority().map(|authority| authority.as_str().as_bytes())
}

/// Returns whether this is a name of the loopback interface, with any port.
fn is_local(host: &[u8]) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let host = authority.host();
    // The parser accepts text after a bracket, as in `[::1]evil`.
    let port = authority.as_str().strip_prefix(host);
    if !port.is_some_and(|port| port.is_empty() || port.starts_with(':')) {
        return false;
    }
    let is_v4 = host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_v6 = v6.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback()));
    !authority.as_str().contains('@') && (is_v4 || is_v6 || host.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

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

    fn is_refused(uri: &'static str, pairs: &[(&'static str, &'static str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        check_local(Version::HTTP_11, &Uri::from_static(uri), &headers).is_err()
    }

    #[test]
    fn only_names_of_the_loopback_interface_are_local() {
        for local in ["localhost", "LocalHost:8322", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8322"] {
            assert!(!is_refused("/ui/", &[("host", local)]), "{local}");
        }
        for other in [
            "",
            "divvy.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "128.0.0.1",
            "0.0.0.0",
            "127.1",
            "0x7f.0.0.1",
            "2130706433",
            "[::]",
            "[::ffff:127.0.0.1]",
            "::1",
            "localhost@evil.example",
            "evil.example@localhost",
            "localhost:80:80",
            "localhost/",
            "localhost ",
            "localhost.",
            "[::1]evil",
            "[::1].evil.example",
        ] {
            assert!(is_refused("/ui/", &[("host", other)]), "{other}");
        }
    }

    #[test]
    fn every_named_host_must_be_local() {
        assert!(is_refused("/ui/", &[]));
        assert!(!is_refused("http://localhost:8322/ui/", &[]));
        assert!(is_refused("http://evil.example/ui/", &[("host", "localhost")]));
        assert!(is_refused("http://localhost/ui/", &[("host", "evil.example")]));
        assert!(is_refused("/ui/", &[("host", "localhost"), ("host", "evil.example")]));
    }

    #[test]
    fn forwarded_requests_are_not_local() {
        let names = ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-x"];
        for name in names.into_iter().chain(OF_PROXIES) {
            assert!(is_refused("/ui/", &[("host", "localhost"), (name, "127.0.0.1")]), "{name}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        let of_version = |version| check_local(version, &Uri::from_static("/ui/"), &headers).is_ok();
        assert_eq!([Version::HTTP_10, Version::HTTP_11, Version::HTTP_2].map(of_version), [false, true, true]);
    }
}
