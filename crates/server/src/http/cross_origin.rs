//! Requests that web pages cause in a browser: which pages of other sites may, by Cross-Origin Resource Sharing, and which may not.

use std::str::FromStr;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    ALLOW, HOST, HeaderName, HeaderValue, ORIGIN, VARY,
};
use hyper::{HeaderMap, Method, StatusCode, Uri};
use url::Url;

use super::response::Problem;

/// Header of browsers: whether the page that causes a request is of the same site.
const FETCH_SITE: &str = "sec-fetch-site";

/// Checks that no page of another site causes the request. Programs that are no browsers send neither header.
///
/// # Errors
/// A browser says that one does.
pub fn check_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let hosts = || headers.get_all(HOST).iter().map(HeaderValue::as_bytes).chain(host_in_uri(uri));
    let is_own = |origin: &HeaderValue| {
        let origin = origin.as_bytes();
        let own = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
        own.is_some_and(|own| hosts().next().is_some() && hosts().all(|host| host.eq_ignore_ascii_case(own)))
    };
    let is_of_this_site = headers.get_all(ORIGIN).iter().all(is_own)
        && headers.get_all(FETCH_SITE).iter().all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"));
    match is_of_this_site {
        true => Ok(()),
        false => Err(Problem::new(StatusCode::FORBIDDEN, "this request comes from a page of another site")),
    }
}

/// Returns the host in the URI, which HTTP/2 has in place of the header.
pub fn host_in_uri(uri: &Uri) -> Option<&[u8]> {
    uri.authority().map(|authority| authority.as_str().as_bytes())
}

/// Headers of the answer to a preflight request. A browser may remember it for an hour.
const PREFLIGHT: [(HeaderName, &str); 4] = [
    (ACCESS_CONTROL_ALLOW_METHODS, "GET"),
    (ACCESS_CONTROL_ALLOW_HEADERS, "authorization"),
    (ACCESS_CONTROL_MAX_AGE, "3600"),
    (ALLOW, "GET,HEAD"),
];

/// The origin of a web page, as browsers send it: `https://example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebOrigin(HeaderValue);

impl FromStr for WebOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            "must be an origin as browsers send it: https://HOST or https://HOST:PORT, without a path, and without a default port"
                .to_owned()
        };
        let url = Url::parse(text).map_err(|_| invalid())?;
        let is_web = matches!(url.scheme(), "http" | "https");
        // Otherwise no browser would ever send it. A pattern is not an origin.
        let is_canonical = url.origin().ascii_serialization() == text && !text.contains('*');
        let value = HeaderValue::from_str(text).map_err(|_| invalid())?;
        if is_web && is_canonical { Ok(Self(value)) } else { Err(invalid()) }
    }
}

/// Adds the headers of an answer to a request with this method from a page of this origin, if `known` origins may read the status
/// of an actor. Tokens are in a header, so browsers need to send no credentials of their own.
pub fn add_headers(known: &[WebOrigin], method: &Method, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_static("origin"));
    if *method == Method::OPTIONS {
        headers.extend(PREFLIGHT.map(|(name, value)| (name, HeaderValue::from_static(value))));
    }
    if let Some(origin) = origin.filter(|origin| known.iter().any(|WebOrigin(known)| known == *origin)) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn requests_of_other_origins_are_recognized() {
        let is_own = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            check_origin(&Uri::from_static("/ui/api/login"), &headers).is_ok()
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

    #[test]
    fn origin_is_the_text_that_browsers_send() {
        for text in
            ["https://example.com", "http://localhost:3000", "https://xn--bcher-kva.example", "http://[::1]:8080"]
        {
            assert_eq!(text.parse::<WebOrigin>().map(|origin| origin.0), Ok(HeaderValue::from_static(text)));
        }
        let others = "* null example.com https://example.com/ https://example.com:443 http://example.com:80 \
            https://example.com/path https://*.example.com https://Example.com https://bücher.example \
            https://user@example.com https://example.com? ftp://example.com file:///x \
            https://a.example,https://b.example";
        for text in others.split_whitespace().chain([""]) {
            assert!(text.parse::<WebOrigin>().is_err(), "{text}");
        }
    }
}
