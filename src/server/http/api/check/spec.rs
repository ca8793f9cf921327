//! Sources of the pairs of a check: `--check-operation`.

use std::borrow::Cow;
use std::str::FromStr;

use axum::http::HeaderName;

use super::forwarded::ForwardedRequest;
use crate::metrics::Bound;
use crate::rules::Operation;
use crate::server::http::problem::Problem;

/// The source of each pair. A pair with an empty source is left out. The last of a repeated key wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOperation(Vec<Item>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// Each parameter of the check's query is a pair.
    Query,
    Pair {
        key: String,
        source: Source,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Method,
    Path,
    Uri,
    Host,
    Ip,
    Header(HeaderName),
    Parameter(String),
}

impl CheckOperation {
    /// All sources.
    pub const DEFAULT: &str = "*=query method=method path=path host=host ip=ip";

    /// # Errors
    /// A header that is not text, or more than `max_pairs` pairs.
    pub fn read(
        &self,
        forwarded: &ForwardedRequest,
        trusted_hops: usize,
        max_pairs: usize,
    ) -> Result<Operation, Problem> {
        let mut pairs: Vec<(&str, Cow<str>)> = Vec::new();
        for item in &self.0 {
            match item {
                Item::Query => {
                    pairs.extend(forwarded.query().iter().map(|(key, value)| (key.as_str(), value.into())));
                }
                Item::Pair { key, source } => {
                    pairs.extend(source.value(forwarded, trusted_hops)?.map(|value| (key.as_str(), value)));
                }
            }
        }
        // The number is checked first, because finding a repeated key compares each key with all others.
        if pairs.len() > max_pairs {
            return Err(Problem::bad_request(format!("more than {max_pairs} pairs")).with_limit(Bound::Pairs));
        }
        Ok(pairs.iter().map(|(key, value)| (*key, value.as_ref())).collect())
    }
}

impl Source {
    fn value<'f>(&self, forwarded: &'f ForwardedRequest, trusted_hops: usize) -> Result<Option<Cow<'f, str>>, Problem> {
        let borrowed = match self {
            Self::Method => forwarded.method()?,
            Self::Path => forwarded.path()?,
            Self::Uri => forwarded.uri()?,
            Self::Host => forwarded.host()?,
            Self::Header(name) => forwarded.header(name.as_str())?,
            Self::Parameter(name) => forwarded.parameter(name),
            Self::Ip => return Ok(forwarded.ip(trusted_hops)?.map(Cow::Owned)),
        };
        Ok(borrowed.map(Cow::Borrowed))
    }
}

impl FromStr for CheckOperation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_whitespace().map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Item {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let (key, source) = word.split_once('=').ok_or_else(|| format!("{word:?}: expected KEY=SOURCE, or *=query"))?;
        match (key, source) {
            ("*", "query") => Ok(Self::Query),
            ("*", _) => Err(format!("{word:?}: `*` works only with the query: *=query")),
            ("", _) => Err(format!("{word:?}: the key is missing")),
            _ => Ok(Self::Pair { key: key.to_owned(), source: source.parse()? }),
        }
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "method" => Ok(Self::Method),
            None if text == "path" => Ok(Self::Path),
            None if text == "uri" => Ok(Self::Uri),
            None if text == "host" => Ok(Self::Host),
            None if text == "ip" => Ok(Self::Ip),
            Some(("header", name)) => {
                name.parse().map(Self::Header).map_err(|_| format!("{name:?} is not a header name"))
            }
            Some(("query", name)) if !name.is_empty() => Ok(Self::Parameter(name.to_owned())),
            _ => Err(format!(
                "{text:?} is not a source: expected method, path, uri, host, ip, header:NAME, or query:NAME"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::extract::Request;

    fn read(spec: &str, uri: &str, headers: &[(&str, &str)]) -> Vec<(String, String)> {
        let builder = headers.iter().fold(Request::builder(), |builder, (name, value)| builder.header(*name, *value));
        let request = builder.uri(uri).body(Body::empty()).unwrap();
        let forwarded = ForwardedRequest::by_headers(&request).unwrap();
        let operation = spec.parse::<CheckOperation>().unwrap().read(&forwarded, 0, 8).unwrap();
        operation.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn default_turns_every_known_source_into_a_pair() {
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/a?b"), ("x-forwarded-for", "10.0.0.1")];
        assert_eq!(
            read(CheckOperation::DEFAULT, "/v1/check?user=ann%20b&user=bob&path=/lie", &headers),
            pairs(&[("user", "bob"), ("path", "/a"), ("method", "GET"), ("ip", "10.0.0.1")])
        );
    }

    #[test]
    fn operator_chooses_the_sources() {
        let headers = [("x-key", "k"), ("x-original-uri", "/a?b=c")];
        assert_eq!(
            read("key=header:X-Key target=uri who=query:user gone=header:x-gone", "/v1/check?user=ann&x=y", &headers),
            pairs(&[("key", "k"), ("target", "/a?b=c"), ("who", "ann")])
        );
    }

    #[test]
    fn mistakes_are_reported() {
        for (spec, message) in [
            ("method", "expected KEY=SOURCE"),
            ("=method", "the key is missing"),
            ("a=verb", "is not a source"),
            ("a=header:", "is not a header name"),
            ("a=header:b c=d,", "is not a source"),
            ("a=query:", "is not a source"),
            ("*=ip", "works only with the query"),
        ] {
            let error = spec.parse::<CheckOperation>().unwrap_err();
            assert!(error.contains(message), "{spec}: {error}");
        }
    }
}
