//! `/v1/check`: a hit for gateways that ask before they forward a request (nginx's auth_request, Traefik's ForwardAuth,
//! Envoy's ext_authz). The operation is in headers and path. The answer is a status without a body.

mod forwarded;

use std::borrow::Cow;
use std::str::FromStr;

use hyper::StatusCode;
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use ring::digest::{SHA256, digest};

pub use self::forwarded::CheckFrom;
use self::forwarded::ForwardedRequest;
use super::Api;
use super::answer::Answer;
use super::hits::{mark_replayed, payload_of};
use crate::http::response::{Answered, Problem, empty};
use crate::net::auth::RequestOrigin;
use divvy_core::rules::{FinalSlash, Operation, Spelling, Spellings};
use divvy_limiter::Intent;
use divvy_telemetry::logging::LogThrottle;
use divvy_telemetry::metrics::Bound;

/// Settings of checks for gateways.
#[derive(Debug, Clone)]
pub struct CheckSettings {
    /// How the checked request becomes an operation.
    pub operation: CheckOperation,
    /// The headers that the gateway sets; `None` if that is unknown.
    pub from: Option<CheckFrom>,
    /// The header that names the checked request, if there is one.
    pub id: Option<CheckId>,
    /// Number of addresses at the end of `X-Forwarded-For` that belong to the operator's proxies.
    pub trusted_hops: usize,
    /// Status of a denial.
    pub deny_status: StatusCode,
}

impl Api {
    /// Checks a request. Without a `prefix`, headers describe it. Otherwise it was sent here unchanged, except that the prefix
    /// precedes its path, as Envoy does it.
    pub async fn check(&self, head: &Parts, prefix: Option<&str>, origin: &RequestOrigin) -> Answered {
        let settings = &self.settings;
        let (operation, id) = self.read_check(head, prefix).inspect_err(|problem| {
            static REFUSED: LogThrottle = LogThrottle::new();
            REFUSED.say(|left_out| tracing::warn!(left_out, "refused a check of a gateway: {}", problem.detail()));
        })?;
        let _request_memory = self.request_memory(operation.memory(), 1).await;
        // The same ID may come with another operation: nginx changes the method for an error page.
        let keyed = id.map(|id| {
            let payload = payload_of(Intent::Hit, &operation, None);
            (format!("{PREFIX}{:016x} {id}", payload.fingerprint()), payload)
        });
        let (answers, is_keyed) = self.ask_one(origin, keyed, Intent::Hit, &operation, None).await?;
        let answer = Answer::with_note(answers.report(), 0)?;
        let mut response = empty(if answer.allowed { StatusCode::OK } else { settings.check.deny_status });
        if is_keyed && answers.report().is_replay() == Ok(true) {
            mark_replayed(response.headers_mut());
        }
        answer.write_headers(settings.headers, response.headers_mut(), &mut Vec::new());
        Ok(response)
    }

    /// Reads the operation in question, and the name of the request if there is one.
    fn read_check(&self, head: &Parts, prefix: Option<&str>) -> Result<(Operation, Option<String>), Problem> {
        let settings = &self.settings.check;
        let forwarded = ForwardedRequest::read(head, prefix, settings.from, settings.operation.final_slash)?;
        let operation = settings.operation.read(&forwarded, settings.trusted_hops, self.server.limits.max_pairs)?;
        Ok((operation, settings.id.as_ref().map(|id| id.find(&forwarded)).transpose()?.flatten()))
    }
}

/// Maximum length of an ID (bytes).
const MAX_ID: usize = 200;
/// Precedes IDs, so that no client's `Idempotency-Key` is one: those have no control characters.
const PREFIX: &str = "check\0";

/// The header whose value names a request (`--check-id`). Checks of one request count once: nginx asks again after an internal
/// redirect, with the same request ID. The gateway must overwrite it, or a client could give one name to all its
/// requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckId(HeaderName);

impl CheckId {
    /// Returns the ID of the request; `None` if it has none.
    ///
    /// # Errors
    /// The header is not a usable ID, or occurs several times.
    pub fn find(&self, forwarded: &ForwardedRequest) -> Result<Option<String>, Problem> {
        let Some(id) = forwarded.once(&self.0)? else { return Ok(None) };
        if id.len() > MAX_ID {
            let detail = format!("the header {} names the request, and has more than {MAX_ID} bytes", self.0);
            return Err(Problem::bad_request(detail));
        }
        Ok(Some(id.to_owned()))
    }
}

impl FromStr for CheckId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_prefix("header:").and_then(|name| name.parse().ok());
        name.map(Self).ok_or_else(|| format!("{text:?}: expected header:NAME, such as header:X-Request-Id"))
    }
}

/// Bytes of a hash that stands for a secret.
const HASH: usize = 16;

/// The source of each pair. A pair whose source is missing is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOperation {
    pairs: Vec<(String, Source)>,
    final_slash: FinalSlash,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Method,
    Path,
    /// The path as it came.
    RawPath,
    Uri,
    Host,
    Ip,
    Header(HeaderName),
    /// The hash of a header.
    HashedHeader(HeaderName),
    Parameter(String),
}

impl CheckOperation {
    /// The pairs of every gateway.
    pub const DEFAULT: &str = "method=method path=path host=host ip=ip";

    /// Treats the slash at the end of a path so.
    #[must_use]
    pub fn with_final_slash(self, final_slash: FinalSlash) -> Self {
        Self { final_slash, ..self }
    }

    /// Checks the pairs for this family of headers.
    ///
    /// # Errors
    /// A pair never has a value.
    pub fn check_family(&self, from: Option<CheckFrom>) -> Result<(), String> {
        let parameter = self.pairs.iter().find(|(_, source)| matches!(source, Source::Parameter(_)));
        match parameter.filter(|_| from == Some(CheckFrom::Envoy)) {
            None => Ok(()),
            Some((key, _)) => Err(format!(
                "--check-operation: the pair {key} never has a value with --check-from envoy, because the query of such a check is \
                 the client's: use header:NAME, and let Envoy set the header"
            )),
        }
    }

    /// Returns the keys whose values are normalized.
    pub fn spellings(&self) -> Spellings {
        let spelling = |source: &Source| match source {
            Source::Method => Some(Spelling::Method),
            Source::Path => Some(Spelling::Path(self.final_slash)),
            Source::Uri => Some(Spelling::Uri(self.final_slash)),
            Source::Host => Some(Spelling::Host),
            Source::Ip => Some(Spelling::Address),
            Source::RawPath | Source::Header(_) | Source::HashedHeader(_) | Source::Parameter(_) => None,
        };
        self.pairs.iter().filter_map(|(key, source)| Some((key.clone(), spelling(source)?))).collect()
    }

    /// Returns the operation of the checked request.
    ///
    /// # Errors
    /// A source is invalid, or there are more than `max_pairs` pairs.
    fn read(&self, forwarded: &ForwardedRequest, trusted_hops: usize, max_pairs: usize) -> Result<Operation, Problem> {
        let mut operation = Operation::new();
        operation.set_normalized();
        for (key, source) in &self.pairs {
            if let Some(value) = source.value(forwarded, trusted_hops)? {
                operation.set(key, &value);
            }
        }
        if operation.iter().len() > max_pairs {
            return Err(Problem::bad_request(format!("more than {max_pairs} pairs")).with_limit(Bound::Pairs));
        }
        Ok(operation)
    }
}

impl Default for CheckOperation {
    fn default() -> Self {
        let pairs = [("method", Source::Method), ("path", Source::Path), ("host", Source::Host), ("ip", Source::Ip)];
        let pairs = pairs.into_iter().map(|(key, source)| (key.to_owned(), source)).collect();
        Self { pairs, final_slash: FinalSlash::default() }
    }
}

impl Source {
    fn value<'f>(&self, forwarded: &'f ForwardedRequest, trusted_hops: usize) -> Result<Option<Cow<'f, str>>, Problem> {
        let borrowed = match self {
            Self::Method => forwarded.method.get(),
            Self::Path => forwarded.path(),
            Self::RawPath => forwarded.raw_path,
            Self::Uri => forwarded.uri.get(),
            Self::Host => forwarded.host.get(),
            Self::Parameter(name) => forwarded.parameter(name),
            Self::Ip => return forwarded.ip(trusted_hops),
            Self::Header(name) => return forwarded.header(name),
            Self::HashedHeader(name) => return Ok(forwarded.header(name)?.map(|value| hash(&value).into())),
        };
        Ok(borrowed.map(Cow::Borrowed))
    }
}

/// Returns the first half of a text's SHA-256, in hexadecimal digits.
fn hash(text: &str) -> String {
    let digest = digest(&SHA256, text.as_bytes());
    digest.as_ref().iter().take(HASH).map(|byte| format!("{byte:02x}")).collect()
}

impl FromStr for CheckOperation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mut operation, words) = match text.trim_start().strip_prefix('+') {
            Some(more) => (Self::default(), more),
            None => (Self { pairs: Vec::new(), final_slash: FinalSlash::default() }, text),
        };
        if words.split_whitespace().next().is_none() {
            return Err("it names no pair: expected KEY=SOURCE, such as path=path".to_owned());
        }
        let mut given: Vec<(String, Source)> = Vec::new();
        for word in words.split_whitespace() {
            let (key, source) = parse_pair(word)?;
            if given.iter().any(|(earlier, _)| *earlier == key) {
                return Err(format!("{word:?}: the key {key} is given twice"));
            }
            given.push((key, source));
        }
        operation.pairs.retain(|(key, _)| given.iter().all(|(replaced, _)| replaced != key));
        operation.pairs.extend(given);
        Ok(operation)
    }
}

fn parse_pair(word: &str) -> Result<(String, Source), String> {
    let (key, source) = word.split_once('=').ok_or_else(|| format!("{word:?}: expected KEY=SOURCE"))?;
    match (key, source) {
        ("", _) => Err(format!("{word:?}: the key is missing")),
        (key, _) if key.starts_with('+') => {
            Err(format!("{word:?}: write the `+` before the first pair: it adds all of them to the default ones"))
        }
        _ => Ok((key.to_owned(), source.parse()?)),
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let header = |name: &str| name.parse().map_err(|_| format!("{name:?} is not a header name"));
        match text.split_once(':') {
            None if text == "method" => Ok(Self::Method),
            None if text == "path" => Ok(Self::Path),
            None if text == "raw" => Ok(Self::RawPath),
            None if text == "uri" => Ok(Self::Uri),
            None if text == "host" => Ok(Self::Host),
            None if text == "ip" => Ok(Self::Ip),
            // `|` may be in a header's name, but is in none that is in use.
            Some(("header", name)) => match name.split_once('|') {
                None => header(name).map(Self::Header),
                Some((name, "hash")) => header(name).map(Self::HashedHeader),
                Some((_, other)) => Err(format!("{other:?} is unknown: expected header:NAME|hash")),
            },
            Some(("query", name)) if !name.is_empty() => Ok(Self::Parameter(name.to_owned())),
            _ => Err(format!(
                "{text:?} is not a source: expected method, path, uri, host, ip, raw (the path as it came), header:NAME, \
                 header:NAME|hash, or query:NAME"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn read(spec: &str, uri: &str, headers: &[(&str, &str)]) -> Vec<(String, String)> {
        let builder = headers.iter().fold(Request::builder(), |builder, (name, value)| builder.header(*name, *value));
        let request = builder.uri(uri).body(()).unwrap().into_parts().0;
        let forwarded = ForwardedRequest::read(&request, None, None, FinalSlash::Keep).unwrap();
        let operation = spec.parse::<CheckOperation>().unwrap().read(&forwarded, 0, 8).unwrap();
        operation.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn default_turns_every_known_source_into_a_pair_and_no_parameter() {
        assert_eq!(CheckOperation::DEFAULT.parse(), Ok(CheckOperation::default()));
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/a?b"), ("x-forwarded-for", "10.0.0.1")];
        assert_eq!(
            read(CheckOperation::DEFAULT, "/v1/check?plan=pro&user=bob&path=/lie", &headers),
            pairs(&[("method", "GET"), ("path", "/a"), ("ip", "10.0.0.1")])
        );
    }

    #[test]
    fn operator_chooses_the_sources() {
        let headers = [("x-key", "k"), ("x-original-uri", "//a/?b=c"), ("x-secret", "abc")];
        assert_eq!(
            read("key=header:X-Key target=uri who=query:user gone=header:x-gone", "/v1/check?user=ann&x=y", &headers),
            pairs(&[("key", "k"), ("target", "/a/?b=c"), ("who", "ann")])
        );
        assert_eq!(
            read("+path=raw key=header:X-Secret|hash", "/v1/check", &headers),
            pairs(&[("path", "//a/"), ("key", "ba7816bf8f01cfea414140de5dae2223")]),
            "pairs are added to the default ones, or replace them"
        );
    }

    #[test]
    fn only_normalized_sources_have_a_spelling() {
        let spellings = "+path=raw from=host who=header:x-who".parse::<CheckOperation>().unwrap().spellings();
        let of = ["method", "path", "from", "ip", "who", "user"].map(|key| spellings.of(key).is_some());
        assert_eq!(of, [true, false, true, true, false, false]);
    }

    #[test]
    fn parameter_is_a_mistake_if_the_query_is_the_clients() {
        let operation = "+ plan=query:plan".parse::<CheckOperation>().unwrap();
        assert_eq!([None, Some(CheckFrom::Original)].map(|from| operation.check_family(from)), [Ok(()), Ok(())]);
        assert!(
            operation.check_family(Some(CheckFrom::Envoy)).unwrap_err().contains("the pair plan never has a value")
        );
        assert_eq!(CheckOperation::default().check_family(Some(CheckFrom::Envoy)), Ok(()));
    }

    #[test]
    fn mistakes_are_reported() {
        for (spec, message) in [
            ("method", "expected KEY=SOURCE"),
            ("=method", "the key is missing"),
            ("a=verb", "is not a source"),
            ("a=header:", "is not a header name"),
            ("a=header:b c=d,", "is not a source"),
            ("a=header:b|crc", "is unknown"),
            ("a=query:", "is not a source"),
            ("a=path a=host", "the key a is given twice"),
            ("ip=ip +path=path", "write the `+` before the first pair"),
            ("++path=path", "write the `+` before the first pair"),
            ("", "it names no pair"),
            (" + ", "it names no pair"),
        ] {
            let error = spec.parse::<CheckOperation>().unwrap_err();
            assert!(error.contains(message), "{spec}: {error}");
        }
    }
}
