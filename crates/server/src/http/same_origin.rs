//! Requests that a page of another site causes in a browser.

use hyper::header::{HOST, ORIGIN};
use hyper::{HeaderMap, StatusCode, Uri};

use super::response::Problem;

/// Header of browsers: whether the page that causes a request is of the same site.
const FETCH_SITE: &str = "sec-fetch-site";

/// Checks that no page of another site causes the request.
///
/// # Errors
/// A browser says that one does.
pub fn check_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    match is_of_this_origin(uri, headers) {
        true => Ok(()),
        false => Err(Problem::new(StatusCode::FORBIDDEN, "this request comes from a page of another site")),
    }
}

/// Returns whether a browser sends the request for a page of this server. Programs that are no browsers send neither header.
fn is_of_this_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let mut sites = headers.get_all(FETCH_SITE).iter();
    origins.all(|origin| host_of_origin(origin.as_bytes()).is_some_and(|own| names_host(own, uri, headers)))
        && sites.all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"))
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
pub fn host_in_uri(uri: &Uri) -> Option<&[u8]> {
    uri.authority().map(|authority| authority.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

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
