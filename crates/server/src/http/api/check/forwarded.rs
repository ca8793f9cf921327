//! The request that a gateway asks about, as the check describes it.
//!
//! Gateways use one of three families of descriptions, and pass on other headers of their clients. If `--check-from` names the
//! family, the others are ignored. Otherwise, descriptions that contradict each other are refused, because the client
//! wrote one of them.

use std::borrow::Cow;
use std::collections::HashSet;

use hyper::Version;
use hyper::header::{COOKIE, HOST, HeaderName};
use hyper::http::request::Parts;

use crate::http::api::body;
use crate::http::response::Problem;
use divvy_core::rules::{FinalSlash, Spelling, split_target};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The family of descriptions that the gateway sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckFrom {
    /// `X-Original-Method`, `X-Original-URI` or `X-Original-URL`, `X-Original-Host`, and an address in `X-Forwarded-For` or
    /// `X-Real-IP`: nginx.
    Original,
    /// `X-Forwarded-Method`, `X-Forwarded-Uri`, `X-Forwarded-Host`, and an address in `X-Forwarded-For`: Traefik, Caddy.
    Forwarded,
    /// The check's own method, path and host, and an address in `X-Forwarded-For`: Envoy.
    Envoy,
}

/// The headers of a family that describe a request.
struct Headers {
    method: HeaderName,
    uri: HeaderName,
    url: Option<HeaderName>,
    host: HeaderName,
}

static ORIGINAL: Headers = Headers {
    method: HeaderName::from_static("x-original-method"),
    uri: HeaderName::from_static("x-original-uri"),
    url: Some(HeaderName::from_static("x-original-url")),
    host: HeaderName::from_static("x-original-host"),
};
static FORWARDED: Headers = Headers {
    method: HeaderName::from_static("x-forwarded-method"),
    uri: HeaderName::from_static("x-forwarded-uri"),
    url: None,
    host: HeaderName::from_static("x-forwarded-host"),
};

/// The request that waits at the gateway. Values are normalized, except those that say otherwise.
pub struct ForwardedRequest<'a> {
    head: &'a Parts,
    from: Option<CheckFrom>,
    /// Parameters of the check's query, unless it is the query of the request itself.
    query: Vec<(String, String)>,
    pub method: Described<'a>,
    pub host: Described<'a>,
    /// Path and query.
    pub uri: Described<'a>,
    /// The path as it came.
    pub raw_path: Option<&'a str>,
}

/// A value, and what describes it.
#[derive(Default)]
pub struct Described<'a>(Option<(Cow<'a, str>, &'a str)>);

impl<'a> Described<'a> {
    /// Adds a description.
    ///
    /// # Errors
    /// An earlier one gives another value.
    fn add(&mut self, value: Cow<'a, str>, by: &'a str, what: &str) -> Result<(), Problem> {
        match &self.0 {
            Some((known, earlier)) if *known != value => Err(contradiction(earlier, by, what)),
            Some(_) => Ok(()),
            None => {
                self.0 = Some((value, by));
                Ok(())
            }
        }
    }

    pub fn get(&self) -> Option<&str> {
        self.0.as_ref().map(|(value, _)| value.as_ref())
    }
}

fn contradiction(one: &str, other: &str, what: &str) -> Problem {
    Problem::bad_request(format!(
        "{one} and {other} give a different {what}: a client may have set one of them; the gateway must set both, or remove one, or \
         --check-from must name the headers that it sets"
    ))
}

impl<'a> ForwardedRequest<'a> {
    /// Reads the check. If the checked request was sent here itself, `prefix` precedes its path.
    ///
    /// # Errors
    /// Descriptions that contradict each other, or that are invalid.
    pub fn read(
        head: &'a Parts,
        prefix: Option<&str>,
        from: Option<CheckFrom>,
        slash: FinalSlash,
    ) -> Result<Self, Problem> {
        let mut forwarded = Self {
            head,
            from,
            query: Vec::new(),
            method: Described::default(),
            host: Described::default(),
            uri: Described::default(),
            raw_path: None,
        };
        match (prefix, from) {
            (Some(prefix), None | Some(CheckFrom::Envoy)) => forwarded.describe_itself(prefix, slash)?,
            (None, Some(CheckFrom::Envoy)) => {
                let detail = "--check-from envoy expects the request itself, with /v1/check before its path";
                return Err(Problem::bad_request(detail));
            }
            _ => {
                forwarded.query = body::parse_query(&head.uri)?;
                let mut names = HashSet::new();
                if let Some((name, _)) = forwarded.query.iter().find(|(name, _)| !names.insert(name)) {
                    return Err(Problem::bad_request(format!("the check's parameter '{name}' is given twice")));
                }
            }
        }
        // Even if it was sent here itself: a gateway that describes the request may have a final slash in the address of checks.
        for (headers, family) in [(&ORIGINAL, CheckFrom::Original), (&FORWARDED, CheckFrom::Forwarded)] {
            if from.is_none_or(|from| from == family) {
                forwarded.describe_by(headers, slash)?;
            }
        }
        Ok(forwarded)
    }

    /// Takes the check itself for the request. Its query belongs to the client, and has no parameters of the operator's.
    fn describe_itself(&mut self, prefix: &str, slash: FinalSlash) -> Result<(), Problem> {
        let target = self.head.uri.path_and_query().map_or("", |target| target.as_str());
        self.add_method(self.head.method.as_str(), "the method")?;
        self.add_target(target.strip_prefix(prefix).unwrap_or(target), "the path", slash)?;
        self.own_host()?.map_or(Ok(()), |host| self.add_host(host, "the host"))
    }

    fn describe_by(&mut self, headers: &'static Headers, slash: FinalSlash) -> Result<(), Problem> {
        if let Some(method) = self.once(&headers.method)? {
            self.add_method(method, headers.method.as_str())?;
        }
        for name in [&headers.uri].into_iter().chain(&headers.url) {
            if let Some(target) = self.once(name)? {
                self.add_target(target, name.as_str(), slash)?;
            }
        }
        if let Some(host) = self.once(&headers.host)? {
            self.add_host(host, headers.host.as_str())?;
        }
        Ok(())
    }

    fn add_method(&mut self, method: &'a str, by: &'a str) -> Result<(), Problem> {
        self.method.add(Spelling::Method.normalize(method).unwrap_or_default(), by, "method")
    }

    /// Adds a path with a query, or a whole URL.
    fn add_target(&mut self, target: &'a str, by: &'a str, slash: FinalSlash) -> Result<(), Problem> {
        let (host, target) = split_target(target);
        if let Some(host) = host {
            self.add_host(host, by)?;
        }
        self.uri.add(Spelling::Uri(slash).normalize(target).unwrap_or_default(), by, "path")?;
        self.raw_path.get_or_insert(without_query(target));
        Ok(())
    }

    fn add_host(&mut self, host: &'a str, by: &'a str) -> Result<(), Problem> {
        match Spelling::Host.normalize(host) {
            Some(host) => self.host.add(host, by, "host"),
            None => Err(Problem::bad_request(format!("{by} has '{host}', which is not the name of a host"))),
        }
    }

    pub fn path(&self) -> Option<&str> {
        self.uri.get().map(without_query)
    }

    /// Returns the parameter of this name.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(candidate, _)| candidate == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a header as it came. A cookie and a list of addresses may be in several lines.
    ///
    /// # Errors
    /// The value is not UTF-8, or another header occurs several times.
    pub fn header(&self, name: &HeaderName) -> Result<Option<Cow<'a, str>>, Problem> {
        let separator = match name {
            name if *name == HOST => return Ok(self.own_host()?.map(Cow::Borrowed)),
            name if *name == COOKIE => "; ",
            name if *name == FORWARDED_FOR => ", ",
            name => return Ok(self.once(name)?.map(Cow::Borrowed)),
        };
        let lines = self.lines(name).collect::<Result<Vec<_>, _>>()?;
        Ok((!lines.is_empty()).then(|| lines.join(separator).into()))
    }

    /// Returns the value of a header that may occur once; `None` if it is missing or empty.
    ///
    /// # Errors
    /// The value is not UTF-8, or the header occurs several times.
    pub fn once(&self, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
        let mut lines = self.lines(name);
        let Some(first) = lines.next() else { return Ok(None) };
        if lines.next().is_some() {
            return Err(Problem::bad_request(format!("the header {name} occurs several times")));
        }
        first.map(|value| Some(value).filter(|value| !value.is_empty()))
    }

    fn lines(&self, name: &HeaderName) -> impl Iterator<Item = Result<&'a str, Problem>> {
        self.head.headers.get_all(name).iter().map(move |value| {
            let text = str::from_utf8(value.as_bytes());
            text.map_err(|_| Problem::bad_request(format!("the header {name} is not valid UTF-8")))
        })
    }

    /// Returns the host that the check itself is for. HTTP/2 and a request line with a whole URL have it in the target.
    /// HTTP/1.1 ignores the header then (RFC 9112, section 3.2.2), and in HTTP/2 both must agree (RFC 9113, section 8.3.1).
    fn own_host(&self) -> Result<Option<&'a str>, Problem> {
        let header = self.once(&HOST)?;
        let Some(target) = self.head.uri.authority().map(|authority| authority.as_str()) else {
            return Ok(header);
        };
        let differs = |header: &&str| Spelling::Host.normalize(header) != Spelling::Host.normalize(target);
        match header.filter(differs) {
            Some(_) if self.head.version == Version::HTTP_2 => Err(contradiction(":authority", "Host", "host")),
            _ => Ok(Some(target)),
        }
    }

    /// Returns the client's address. Each proxy appends the address of its client to `X-Forwarded-For`. The last
    /// `trusted_hops` addresses belong to the operator's proxies, and the one before them to the client. Any earlier
    /// addresses may be forged.
    ///
    /// # Errors
    /// `X-Real-IP` has an address that is not one of these.
    pub fn ip(&self, trusted_hops: usize) -> Result<Option<Cow<'a, str>>, Problem> {
        let normalize = |address: &'a str| Spelling::Address.normalize(address.trim()).unwrap_or_default();
        let mut hops: Vec<&'a str> = Vec::new();
        for line in self.lines(&FORWARDED_FOR) {
            hops.extend(line?.split(',').filter(|hop| !hop.trim().is_empty()));
        }
        // The request went through fewer proxies, and one of them added the first address.
        let client = hops.len().saturating_sub(trusted_hops).saturating_sub(1);
        let trusted = hops.get(client..).unwrap_or_default();
        let real = match self.from {
            None | Some(CheckFrom::Original) => self.once(&REAL_IP)?.map(normalize),
            Some(CheckFrom::Forwarded | CheckFrom::Envoy) => None,
        };
        match (trusted.first(), real) {
            // The gateway may set both. Then one is the client's address, and the other the client's or a proxy's.
            (Some(_), Some(real)) if !trusted.iter().any(|hop| normalize(hop) == real) => {
                Err(contradiction(FORWARDED_FOR.as_str(), REAL_IP.as_str(), "address"))
            }
            (Some(hop), _) => Ok(Some(normalize(hop))),
            (None, real) => Ok(real),
        }
    }
}

fn without_query(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn request(headers: &[(&str, &str)]) -> Parts {
        let builder = headers.iter().fold(Request::builder(), |builder, (name, value)| builder.header(*name, *value));
        builder.method("PUT").uri("/v1/check/a%20b?c=d").body(()).unwrap().into_parts().0
    }

    fn read(request: &Parts, from: Option<CheckFrom>) -> Result<ForwardedRequest<'_>, Problem> {
        ForwardedRequest::read(request, None, from, FinalSlash::Keep)
    }

    /// Returns the client's address, or what is wrong.
    fn ip(headers: &[(&str, &str)], from: Option<CheckFrom>, trusted_hops: usize) -> String {
        let request = request(headers);
        let forwarded = ForwardedRequest::read(&request, Some("/v1/check"), None, FinalSlash::Keep).unwrap();
        match (ForwardedRequest { from, ..forwarded }).ip(trusted_hops) {
            Ok(ip) => ip.map_or("none".to_owned(), Cow::into_owned),
            Err(problem) => problem.detail().to_owned(),
        }
    }

    #[test]
    fn client_address_precedes_those_of_trusted_proxies() {
        let headers = [("x-forwarded-for", "6.6.6.6, 10.0.0.1,"), ("x-forwarded-for", "[2001:DB8::1]:443")];
        let ips = [0, 1, 2, 3, usize::MAX].map(|hops| ip(&headers, None, hops));
        assert_eq!(ips, ["2001:db8::1", "10.0.0.1", "6.6.6.6", "6.6.6.6", "6.6.6.6"]);
    }

    #[test]
    fn real_ip_is_the_address_or_agrees_with_the_trusted_hops() {
        let (forged, real) = (("x-forwarded-for", "6.6.6.6"), ("x-real-ip", "10.0.0.1:80"));
        assert_eq!(ip(&[real], None, 0), "10.0.0.1");
        assert_eq!(ip(&[], None, 0), "none");
        assert!(ip(&[forged, real], None, 0).contains("x-forwarded-for and x-real-ip give a different address"));
        assert!(ip(&[forged, real], Some(CheckFrom::Original), 1).contains("the gateway must set both, or remove one"));
        assert_eq!(ip(&[forged, real], Some(CheckFrom::Forwarded), 0), "6.6.6.6", "the client's header is ignored");
        let both = [("x-forwarded-for", "192.0.2.1, 10.0.0.1"), real];
        assert_eq!(ip(&both, None, 0), "10.0.0.1");
        assert_eq!(ip(&both, None, 1), "192.0.2.1", "the last proxy sets X-Real-IP to the address of the one before");
    }

    #[test]
    fn families_may_agree() {
        let agreeing = request(&[
            ("x-forwarded-uri", "//login?a=b"),
            ("x-original-url", "https://SHOP.example/%6cogin?a=b#c"),
            ("x-forwarded-method", "post"),
            ("x-original-method", "POST"),
            ("x-forwarded-host", "shop.example:443"),
            ("x-original-uri", ""),
        ]);
        let forwarded = read(&agreeing, None).unwrap();
        let described =
            (forwarded.method.get(), forwarded.path(), forwarded.uri.get(), forwarded.host.get(), forwarded.raw_path);
        let expected = (Some("POST"), Some("/login"), Some("/login?a=b"), Some("shop.example"), Some("/%6cogin"));
        assert_eq!(described, expected);
        assert_eq!(forwarded.parameter("c"), Some("d"));
    }

    #[test]
    fn header_that_occurs_twice_is_refused() {
        for name in ["x-original-uri", "x-original-method", "x-original-host", "x-real-ip"] {
            let request = request(&[(name, "/a"), (name, "/b")]);
            let refused = read(&request, None).and_then(|forwarded| forwarded.ip(0).map(drop)).unwrap_err();
            assert!(refused.detail().contains(&format!("the header {name} occurs several times")), "{name}");
        }
        let cookies = request(&[("cookie", "a=1"), ("cookie", "b=2")]);
        assert_eq!(read(&cookies, None).unwrap().header(&COOKIE).unwrap().as_deref(), Some("a=1; b=2"));
    }

    #[test]
    fn direct_check_describes_itself_and_headers_agree_or_are_ignored() {
        let read = |headers: &[(&str, &str)], from| {
            let request = request(headers);
            let read = ForwardedRequest::read(&request, Some("/v1/check"), from, FinalSlash::Keep);
            read.map(|forwarded| {
                let described = [forwarded.method.get(), forwarded.path(), forwarded.uri.get(), forwarded.host.get()];
                assert_eq!(described, [Some("PUT"), Some("/a%20b"), Some("/a%20b?c=d"), Some("shop")]);
                assert_eq!(forwarded.parameter("c"), None, "the query is the client's");
            })
        };
        let host = ("host", "shop");
        assert!(read(&[host], None).is_ok());
        assert!(read(&[host, ("x-forwarded-host", "SHOP:443"), ("x-original-uri", "//a%20b?c=d")], None).is_ok());
        for (name, value, what) in [
            ("x-original-uri", "/lie", "path"),
            ("x-original-url", "https://shop/lie", "path"),
            ("x-original-method", "GET", "method"),
            ("x-original-host", "other", "host"),
            ("x-forwarded-uri", "/login", "path"),
            ("x-forwarded-method", "GET", "method"),
            ("x-forwarded-host", "other", "host"),
        ] {
            let refused = read(&[host, (name, value)], None).unwrap_err();
            assert!(refused.detail().contains(&format!("{name} give a different {what}")), "{}", refused.detail());
            assert!(read(&[host, (name, value)], Some(CheckFrom::Envoy)).is_ok(), "{name} is the client's");
        }
    }
}
