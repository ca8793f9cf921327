//! The request that a gateway asks about, out of the request that it asks with.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::http::HeaderMap;

use crate::server::http::api::query;
use crate::server::http::problem::Problem;

/// What is known of the request that a gateway holds back.
pub struct ForwardedRequest<'a> {
    headers: &'a HeaderMap,
    /// The parameters that the operator wrote into the gateway's question.
    query: Vec<(String, String)>,
    /// Its method and its target, where the question itself has them.
    itself: Option<(&'a str, &'a str)>,
}

impl<'a> ForwardedRequest<'a> {
    /// # Errors
    /// The question's query is not one of `name=value` parameters.
    pub fn by_headers(request: &'a Request) -> Result<Self, Problem> {
        let query = query::parse(request.uri())?;
        Ok(Self { headers: request.headers(), query, itself: None })
    }

    /// The question is the request, but for a `prefix` of its path. Its query is the client's, and names no pairs.
    pub fn by_itself(request: &'a Request, prefix: &str) -> Self {
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        let target = target.strip_prefix(prefix).unwrap_or(target);
        Self { headers: request.headers(), query: Vec::new(), itself: Some((request.method().as_str(), target)) }
    }

    pub fn query(&self) -> &[(String, String)] {
        &self.query
    }

    /// The last of the parameters of this name.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().rev().find(|(candidate, _)| candidate == name).map(|(_, value)| value.as_str())
    }

    /// # Errors
    /// The header is not UTF-8.
    pub fn header(&self, name: &str) -> Result<Option<&'a str>, Problem> {
        let Some(value) = self.headers.get(name) else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes());
        text.map(Some).map_err(|_| Problem::bad_request(format!("the header {name} is not valid UTF-8")))
    }

    /// The first of these headers that is there.
    fn first_of<const N: usize>(&self, names: [&str; N]) -> Result<Option<&'a str>, Problem> {
        for name in names {
            if let Some(value) = self.header(name)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    pub fn method(&self) -> Result<Option<&'a str>, Problem> {
        match self.itself {
            Some((method, _)) => Ok(Some(method)),
            None => self.first_of(["x-original-method", "x-forwarded-method"]),
        }
    }

    /// Path and query.
    pub fn uri(&self) -> Result<Option<&'a str>, Problem> {
        match self.itself {
            Some((_, target)) => Ok(Some(target)),
            None => self.first_of(["x-original-uri", "x-forwarded-uri"]),
        }
    }

    pub fn path(&self) -> Result<Option<&'a str>, Problem> {
        Ok(self.uri()?.map(|uri| uri.split_once('?').map_or(uri, |(path, _)| path)))
    }

    pub fn host(&self) -> Result<Option<&'a str>, Problem> {
        match self.itself {
            Some(_) => self.header("host"),
            None => self.first_of(["x-original-host", "x-forwarded-host"]),
        }
    }

    /// The client's address. Each proxy adds the address that asked it at the end of `X-Forwarded-For`; what was there
    /// before may be a lie. So the last ones are known, which are those of `trusted_hops` proxies of the operator's,
    /// and before them comes the client's.
    pub fn ip(&self, trusted_hops: usize) -> Result<Option<String>, Problem> {
        let mut hops = Vec::new();
        for value in self.headers.get_all("x-forwarded-for") {
            let text = value.to_str().map_err(|_| Problem::bad_request("the header x-forwarded-for is not text"))?;
            hops.extend(text.split(',').map(str::trim).filter(|hop| !hop.is_empty()));
        }
        // A shorter list came by a way with fewer proxies: its first address was added by one of them.
        let client = hops.len().saturating_sub(trusted_hops).saturating_sub(1);
        match hops.get(client) {
            Some(hop) => Ok(Some(without_port(hop))),
            None => Ok(self.header("x-real-ip")?.map(without_port)),
        }
    }
}

/// A port differs from connection to connection, and would make each a client of its own.
fn without_port(address: &str) -> String {
    address.parse::<SocketAddr>().map_or_else(|_| address.to_owned(), |address| address.ip().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(headers: &[(&str, &str)]) -> Request {
        let builder = headers.iter().fold(Request::builder(), |builder, (name, value)| builder.header(*name, *value));
        builder.method("PUT").uri("/v1/check/a%20b?c=d").body(Body::empty()).unwrap()
    }

    #[test]
    fn the_client_is_before_the_operator_s_own_proxies() {
        let request = request(&[("x-forwarded-for", "6.6.6.6, 10.0.0.1,"), ("x-forwarded-for", "[2001:db8::1]:443")]);
        let forwarded = ForwardedRequest::by_headers(&request).unwrap();
        let ips = [0, 1, 2, 3, usize::MAX].map(|hops| forwarded.ip(hops).unwrap().unwrap());
        assert_eq!(ips, ["2001:db8::1", "10.0.0.1", "6.6.6.6", "6.6.6.6", "6.6.6.6"]);
    }

    #[test]
    fn without_forwarded_for_there_is_real_ip_or_nothing() {
        let real = request(&[("x-real-ip", "10.0.0.1:80")]);
        assert_eq!(ForwardedRequest::by_headers(&real).unwrap().ip(0).unwrap().as_deref(), Some("10.0.0.1"));
        assert_eq!(ForwardedRequest::by_headers(&request(&[])).unwrap().ip(0).unwrap(), None);
    }

    #[test]
    fn original_headers_win_over_forwarded_ones() {
        let request = request(&[
            ("x-forwarded-uri", "/forwarded"),
            ("x-original-uri", "/original?a=b"),
            ("x-forwarded-method", "POST"),
        ]);
        let forwarded = ForwardedRequest::by_headers(&request).unwrap();
        assert_eq!(forwarded.path().unwrap(), Some("/original"));
        assert_eq!(forwarded.uri().unwrap(), Some("/original?a=b"));
        assert_eq!(forwarded.method().unwrap(), Some("POST"));
        assert_eq!(forwarded.parameter("c"), Some("d"));
        assert_eq!(forwarded.host().unwrap(), None);
    }

    #[test]
    fn a_question_that_is_the_request_tells_of_itself_alone() {
        let request = request(&[("x-original-uri", "/lie"), ("x-original-method", "GET"), ("host", "shop")]);
        let forwarded = ForwardedRequest::by_itself(&request, "/v1/check");
        assert_eq!(forwarded.method().unwrap(), Some("PUT"));
        assert_eq!(forwarded.path().unwrap(), Some("/a%20b"));
        assert_eq!(forwarded.uri().unwrap(), Some("/a%20b?c=d"));
        assert_eq!(forwarded.host().unwrap(), Some("shop"));
        assert!(forwarded.query().is_empty());
    }
}
