//! Web pages that may use the API from a browser: Cross-Origin Resource Sharing.

use std::str::FromStr;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    ALLOW, HeaderName, HeaderValue, VARY,
};
use hyper::{HeaderMap, Method};
use url::Url;

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

/// Reason why a text is not the origin of a web page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be an origin as browsers send it: https://HOST or https://HOST:PORT, without a path, and without a default port"
)]
pub struct InvalidOrigin;

impl FromStr for WebOrigin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        let url = Url::parse(text).map_err(|_| InvalidOrigin)?;
        let is_web = matches!(url.scheme(), "http" | "https");
        // Otherwise no browser would ever send it. A pattern is not an origin.
        let is_canonical = url.origin().ascii_serialization() == text && !text.contains('*');
        let value = HeaderValue::from_str(text).map_err(|_| InvalidOrigin)?;
        if is_web && is_canonical { Ok(Self(value)) } else { Err(InvalidOrigin) }
    }
}

/// The origins of web pages that may read the status of an actor. Tokens are in a header, so browsers need to send no
/// credentials of their own.
#[derive(Debug, Clone, Default)]
pub struct WebOrigins(Vec<WebOrigin>);

impl FromIterator<WebOrigin> for WebOrigins {
    fn from_iter<T: IntoIterator<Item = WebOrigin>>(origins: T) -> Self {
        Self(origins.into_iter().collect())
    }
}

impl WebOrigins {
    /// Returns whether no web page may read anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the headers of an answer to a request with this method from a page of this origin.
    pub fn add_headers(&self, method: &Method, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        headers.append(VARY, HeaderValue::from_static("origin"));
        if *method == Method::OPTIONS {
            headers.extend(PREFLIGHT.map(|(name, value)| (name, HeaderValue::from_static(value))));
        }
        if let Some(origin) = origin.filter(|origin| self.0.iter().any(|WebOrigin(known)| known == *origin)) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_the_text_that_browsers_send() {
        for text in
            ["https://example.com", "http://localhost:3000", "https://xn--bcher-kva.example", "http://[::1]:8080"]
        {
            assert_eq!(text.parse::<WebOrigin>().map(|origin| origin.0), Ok(HeaderValue::from_static(text)));
        }
        for text in [
            "",
            "*",
            "null",
            "example.com",
            "https://example.com/",
            "https://example.com:443",
            "http://example.com:80",
            "https://example.com/path",
            "https://*.example.com",
            "https://Example.com",
            "https://bücher.example",
            "https://user@example.com",
            "https://example.com?",
            "ftp://example.com",
            "file:///x",
            "https://a.example,https://b.example",
        ] {
            assert_eq!(text.parse::<WebOrigin>(), Err(InvalidOrigin), "{text}");
        }
    }
}
