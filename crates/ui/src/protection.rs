//! Protection of the page, its viewers and the server: headers of each response, and the refusal of requests that another
//! site or a proxy may have caused.
//!
//! Without users, the page is for this machine alone. A name that an attacker's name server resolves to a loopback address,
//! or a proxy that forwards requests of others, would let anybody else look at it.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, FORWARDED, HOST, HeaderName, HeaderValue, REFERRER_POLICY, VIA,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, StatusCode, Uri, Version};

use super::state::Ui;
use divvy_server::http::page::{Problem, check_origin, host_in_uri};

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

/// Adds the headers to a response.
pub fn add_headers(uri: &Uri, headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if uri.path().starts_with(DATA) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// Refuses requests that another site or a proxy may have caused.
///
/// # Errors
/// It is such a request.
pub fn check(ui: &Ui, head: &Parts) -> Result<(), Problem> {
    if ui.guard.is_none() {
        check_local(head.version, &head.uri, &head.headers)?;
    }
    // A link on another site may lead to the page, but not to its data.
    if head.uri.path().starts_with(DATA) { check_origin(&head.uri, &head.headers) } else { Ok(()) }
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
    use super::*;

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
