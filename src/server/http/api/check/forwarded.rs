//! The request that a gateway asks about, as described by the request of the check.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::http::HeaderMap;

use crate::server::http::api::query;
use crate::server::http::problem::Problem;

/// The request that waits at the gateway.
pub struct ForwardedRequest<'a> {
    headers: &'a HeaderMap,
    /// Parameters that the operator wrote into the gateway's check.
    query: Vec<(String, String)>,
    /// Method and target of the check itself, if the check has the method and target of the request.
    itself: Option<(&'a str, &'a str)>,
}

impl<'a> ForwardedRequest<'a> {
    /// Returns the request that the check's headers and query describe.
    ///
    /// # Errors
    /// The check's query does not consist of `name=value` parameters.
    pub fn by_headers(request: &'a Request) -> Result<Self, Problem> {
        let query = query::parse(request.uri())?;
        Ok(Self { headers: request.headers(), query, itself: None })
    }

    /// Returns the check itself, without a `prefix` of its path. The query belongs to the client, and contains no pairs
    /// of the operator's.
    pub fn by_itself(request: &'a Request, prefix: &str) -> Self {
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        let target = target.strip_prefix(prefix).unwrap_or(target);
        Self { headers: request.headers(), query: Vec::new(), itself: Some((request.method().as_str(), target)) }
    }

    pub fn query(&self) -> &[(String, String)] {
        &self.query
    }

    /// Returns the last parameter of this name.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().rev().find(|(candidate, _)| candidate == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a header.
    ///
    /// # Errors
    /// The value is not UTF-8.
    pub fn header(&self, name: &str) -> Result<Option<&'a str>, Problem> {
        let Some(value) = self.headers.get(name) else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes());
        text.map(Some).map_err(|_| Problem::bad_request(format!("the header {name} is not valid UTF-8")))
    }

    /// Returns the first of these headers that is present.
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

    /// Returns path and query.
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

    /// Returns the client's address. Each proxy appends the address of its client to `X-Forwarded-For`. The last
    /// `trusted_hops` addresses belong to the operator's proxies, and the one before them to the client. Any earlier
    /// addresses may be forged.
    pub fn ip(&self, trusted_hops: usize) -> Result<Option<String>, Problem> {
        let mut hops = Vec::new();
        for value in self.headers.get_all("x-forwarded-for") {
            let text = value.to_str().map_err(|_| Problem::bad_request("the header x-forwarded-for is not text"))?;
            hops.extend(text.split(',').map(str::trim).filter(|hop| !hop.is_empty()));
        }
        // The request went through fewer proxies, and one of them added the first address.
        let client = hops.len().saturating_sub(trusted_hops).saturating_sub(1);
        match hops.get(client) {
            Some(hop) => Ok(Some(without_port(hop))),
            None => Ok(self.header("x-real-ip")?.map(without_port)),
        }
    }
}

/// Removes the port. Otherwise each connection would be another client.
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
    fn client_address_precedes_those_of_trusted_proxies() {
        let request = request(&[("x-forwarded-for", "6.6.6.6, 10.0.0.1,"), ("x-forwarded-for", "[2001:db8::1]:443")]);
        let forwarded = ForwardedRequest::by_headers(&request).unwrap();
        let ips = [0, 1, 2, 3, usize::MAX].map(|hops| forwarded.ip(hops).unwrap().unwrap());
        assert_eq!(ips, ["2001:db8::1", "10.0.0.1", "6.6.6.6", "6.6.6.6", "6.6.6.6"]);
    }

    #[test]
    fn without_forwarded_for_the_address_is_real_ip_or_missing() {
        let real = request(&[("x-real-ip", "10.0.0.1:80")]);
        assert_eq!(ForwardedRequest::by_headers(&real).unwrap().ip(0).unwrap().as_deref(), Some("10.0.0.1"));
        assert_eq!(ForwardedRequest::by_headers(&request(&[])).unwrap().ip(0).unwrap(), None);
    }

    #[test]
    fn original_headers_take_precedence_over_forwarded_ones() {
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
    fn direct_check_ignores_forwarded_headers() {
        let request = request(&[("x-original-uri", "/lie"), ("x-original-method", "GET"), ("host", "shop")]);
        let forwarded = ForwardedRequest::by_itself(&request, "/v1/check");
        assert_eq!(forwarded.method().unwrap(), Some("PUT"));
        assert_eq!(forwarded.path().unwrap(), Some("/a%20b"));
        assert_eq!(forwarded.uri().unwrap(), Some("/a%20b?c=d"));
        assert_eq!(forwarded.host().unwrap(), Some("shop"));
        assert!(forwarded.query().is_empty());
    }
}
