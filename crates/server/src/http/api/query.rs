//! Parameters in a URL's query.

use hyper::Uri;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use url::form_urlencoded;

use crate::http::response::Problem;

/// Parses the query.
///
/// # Errors
/// The parameters are not valid UTF-8, or do not match `T`.
pub fn parse<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    // The library would replace invalid bytes with U+FFFD, and the result may be the name of another actor.
    let is_text = |pair: &&str| percent_decode_str(pair).decode_utf8().is_ok();
    let query = uri.query().unwrap_or_default();
    if let Some(pair) = query.split('&').find(|pair| !is_text(pair)) {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        return Err(Problem::bad_request(format!("the query's parameter '{name}' is not valid UTF-8")));
    }
    let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
    serde_path_to_error::deserialize(pairs).map_err(|error| Problem::bad_request(describe(&error.to_string())))
}

/// Rewords the library's error for people who write queries.
fn describe(text: &str) -> String {
    // The parameter's name and a colon may come first.
    let named = |mistake: &str| text.split_once(mistake).and_then(|(_, rest)| rest.split_once('`'));
    if let Some((name, _)) = named("missing field `") {
        format!("the query's parameter '{name}' is missing: add ?{name}=VALUE to the URL, or &{name}=VALUE")
    } else if let Some((name, known)) = named("unknown field `") {
        format!("the query has an unknown parameter '{name}'{}", known.replace('`', "'"))
    } else if let Some((name, _)) = named("duplicate field `") {
        format!("the query's parameter '{name}' is given twice")
    } else {
        format!("the query is not valid: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<Vec<(String, String)>, Problem> {
        parse(&format!("/v1/check?{query}").parse().unwrap())
    }

    #[test]
    fn parameters_are_decoded() {
        let pairs = parsed("a=%c3%bc+%2B&a=&b%3D=%26&%F0%9F%8D%AA").unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("a", "ü +"), ("a", ""), ("b=", "&"), ("🍪", "")]);
        assert!(parsed("").unwrap().is_empty());
    }

    #[test]
    fn wrong_parameters_are_named() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Parameters {
            #[expect(dead_code, reason = "only parsed")]
            rule: String,
            #[expect(dead_code, reason = "only parsed")]
            count: Option<usize>,
        }
        for (query, expected) in [
            ("count=1", "the query's parameter 'rule' is missing: add ?rule=VALUE to the URL, or &rule=VALUE"),
            ("rule=a&limit=1", "the query has an unknown parameter 'limit', expected 'rule' or 'count'"),
            ("rule=a&rule=b", "the query's parameter 'rule' is given twice"),
        ] {
            let problem = parse::<Parameters>(&format!("/v1/counters?{query}").parse().unwrap()).unwrap_err();
            let problem = format!("{problem:?}");
            assert!(problem.contains(expected), "{query}: {problem}");
        }
    }

    #[test]
    fn parameters_that_are_not_utf_8_are_refused_by_name() {
        for query in ["actor=%ff", "a=b&actor=x%C3", "actor=%c3&b=%bc", "actor=%ED%A0%80"] {
            let detail = format!("{:?}", parsed(query).unwrap_err());
            assert!(detail.contains("the query's parameter 'actor' is not valid UTF-8"), "{query}: {detail}");
        }
        assert!(format!("{:?}", parsed("%ff=a").unwrap_err()).contains("'%ff'"));
    }
}
