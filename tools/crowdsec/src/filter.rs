//! The query of a request for decisions.

use std::collections::HashSet;

use divvy_core::rules::{Network, NetworkError};
use serde::Deserialize;
use serde_json::{Map, Value};
use url::form_urlencoded;

use crate::decision::{BAN, Scope};

/// Maximum length of a text that an error repeats (characters).
const MAX_SHOWN: usize = 64;
/// Maximum number of words in a list of the query. Each decision is compared with all of them.
const MAX_WORDS: usize = 100;

/// The parameters of a query, as they are written. Like CrowdSec, divvy ignores others.
#[derive(Debug, Default, Deserialize)]
pub struct DecisionQuery {
    /// Of a stream: whether the bouncer starts, and needs all decisions.
    pub startup: Option<String>,
    scope: Option<String>,
    scopes: Option<String>,
    value: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    ip: Option<String>,
    range: Option<String>,
    contains: Option<String>,
    origins: Option<String>,
    scenarios_containing: Option<String>,
    scenarios_not_containing: Option<String>,
}

/// The decisions that a bouncer wants.
#[derive(Debug, Default)]
pub struct DecisionFilter {
    /// Decisions whose network covers this one, or is in it.
    pub network: Option<NetworkFilter>,
    value: Option<String>,
    /// No decision of divvy is of the wanted type.
    is_other_type: bool,
    scopes: Option<Vec<Scope>>,
    origins: Option<HashSet<String>>,
    scenarios: Vec<String>,
    other_scenarios: Vec<String>,
}

/// Networks that a bouncer wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkFilter {
    /// The networks that contain all of this one.
    Covering(Network),
    /// The networks in this one.
    Within(Network),
}

/// A parameter of the query is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The text is no address or network.
    #[error("{parameter} is '{value}', but {error}: {}", error.fix())]
    Network {
        /// Its name.
        parameter: &'static str,
        /// Its value, truncated.
        value: String,
        /// The mistake.
        error: NetworkError,
    },
    /// It is neither true nor false.
    #[error("{0} must be true or false")]
    Boolean(&'static str),
    /// It is given twice.
    #[error("the query's parameter '{0}' is given twice")]
    Repeated(String),
    /// A list is too long.
    #[error("{0} has more than {MAX_WORDS} words")]
    ManyWords(&'static str),
}

impl DecisionQuery {
    /// Reads the query of a URL.
    ///
    /// # Errors
    /// A parameter is given twice.
    pub fn parse(query: &str) -> Result<Self, FilterError> {
        let mut parameters = Map::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if parameters.insert(name.clone().into_owned(), Value::from(&*value)).is_some() {
                return Err(FilterError::Repeated(name.chars().take(MAX_SHOWN).collect()));
            }
        }
        // All parameters are texts, so this does not fail.
        Ok(serde_json::from_value(Value::Object(parameters)).unwrap_or_default())
    }

    /// Returns whether the bouncer of a stream starts.
    ///
    /// # Errors
    /// The parameter is neither true nor false.
    pub fn is_startup(&self) -> Result<bool, FilterError> {
        boolean("startup", self.startup.as_deref()).map(|startup| startup.unwrap_or(false))
    }

    /// Returns the filter.
    ///
    /// # Errors
    /// A parameter is not valid.
    pub fn filter(self) -> Result<DecisionFilter, FilterError> {
        let contains = boolean("contains", self.contains.as_deref())?.unwrap_or(true);
        let network = match (network("ip", self.ip)?, network("range", self.range)?) {
            (Some(network), _) | (None, Some(network)) if contains => Some(NetworkFilter::Covering(network)),
            (Some(network), _) | (None, Some(network)) => Some(NetworkFilter::Within(network)),
            (None, None) => None,
        };
        // CrowdSec's own clients write both names.
        let scopes = words("scopes", self.scopes.or(self.scope).as_deref())?;
        let origins = words("origins", self.origins.as_deref())?;
        Ok(DecisionFilter {
            network,
            value: self.value.filter(|value| !value.is_empty()),
            is_other_type: self.kind.is_some_and(|kind| !kind.is_empty() && kind != BAN),
            scopes: (!scopes.is_empty()).then(|| scopes.iter().filter_map(|name| Scope::parse(name)).collect()),
            origins: (!origins.is_empty()).then(|| origins.into_iter().collect()),
            scenarios: lowercase(words("scenarios_containing", self.scenarios_containing.as_deref())?),
            other_scenarios: lowercase(words("scenarios_not_containing", self.scenarios_not_containing.as_deref())?),
        })
    }
}

impl DecisionFilter {
    /// Returns whether the bouncer wants this decision. `network` is its address or network.
    pub fn admits(&self, network: Network, origin: &str, scenario: &str) -> bool {
        self.admits_network(network)
            && self.origins.as_ref().is_none_or(|origins| origins.contains(origin))
            && self.admits_scenario(scenario)
    }

    /// Returns whether the bouncer may want decisions about this network, for some reason.
    pub fn admits_network(&self, network: Network) -> bool {
        let is_of_scope = |scopes: &Vec<Scope>| scopes.contains(&Scope::of(network));
        let is_in_network = match self.network {
            None => true,
            Some(NetworkFilter::Covering(inner)) => network.covers(inner),
            Some(NetworkFilter::Within(outer)) => outer.covers(network),
        };
        !self.is_other_type
            && is_in_network
            && self.value.as_ref().is_none_or(|value| *value == network.to_string())
            && self.scopes.as_ref().is_none_or(is_of_scope)
    }

    fn admits_scenario(&self, scenario: &str) -> bool {
        if self.scenarios.is_empty() && self.other_scenarios.is_empty() {
            return true;
        }
        let scenario = scenario.to_lowercase();
        let contains = |word: &String| scenario.contains(word.as_str());
        (self.scenarios.is_empty() || self.scenarios.iter().any(contains)) && !self.other_scenarios.iter().any(contains)
    }
}

/// Returns the words of a list with commas. An empty parameter is like none.
fn words(parameter: &'static str, text: Option<&str>) -> Result<Vec<String>, FilterError> {
    let words = text.unwrap_or_default().split(',').filter(|word| !word.is_empty());
    let words: Vec<_> = words.take(MAX_WORDS + 1).map(str::to_owned).collect();
    if words.len() > MAX_WORDS { Err(FilterError::ManyWords(parameter)) } else { Ok(words) }
}

fn lowercase(words: Vec<String>) -> Vec<String> {
    words.into_iter().map(|word| word.to_lowercase()).collect()
}

/// Parses a boolean as Go writes it. pycrowdsec and others write `True`, too.
fn boolean(parameter: &'static str, value: Option<&str>) -> Result<Option<bool>, FilterError> {
    match value {
        None | Some("") => Ok(None),
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
        Some(_) => Err(FilterError::Boolean(parameter)),
    }
}

fn network(parameter: &'static str, value: Option<String>) -> Result<Option<Network>, FilterError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    match Network::parse(&value) {
        Ok(network) | Err(NetworkError::HostBits { masked: network } | NetworkError::NotPlain { plain: network }) => {
            Ok(Some(network))
        }
        Err(error) => {
            let value = value.chars().take(MAX_SHOWN).collect();
            Err(FilterError::Network { parameter, value, error })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENARIO: &str = "divvy/Login";

    fn filter(query: &str) -> Result<DecisionFilter, FilterError> {
        DecisionQuery::parse(query)?.filter()
    }

    fn admits(query: &str, network: &str) -> bool {
        filter(query).unwrap().admits(Network::parse(network).unwrap(), "divvy", SCENARIO)
    }

    #[test]
    fn decisions_are_chosen_by_address_and_range() {
        for (query, network, expected) in [
            ("", "192.0.2.1", true),
            ("ip=192.0.2.1", "192.0.2.1", true),
            ("ip=192.0.2.1&banned=true", "192.0.2.0/24", true),
            ("ip=::ffff:192.0.2.1", "192.0.2.0/24", true),
            ("ip=192.0.2.2", "192.0.2.1", false),
            ("ip=192.0.2.1", "2001:db8::/32", false),
            ("ip=192.0.2.1&contains=false", "192.0.2.0/24", false),
            ("range=192.0.2.0/24", "192.0.2.1", false),
            ("range=192.0.2.0/24&contains=false", "192.0.2.1", true),
            ("range=192.0.2.9/24&contains=False", "192.0.2.1", true),
            ("range=2001:db8::/32&contains=false", "2001:db8:5::/48", true),
            ("value=192.0.2.1", "192.0.2.1", true),
            ("value=192.0.2.1", "192.0.2.0/24", false),
            ("scope=ip&value=192.0.2.1", "192.0.2.1", true),
            ("scopes=ip,range", "192.0.2.0/24", true),
            ("scopes=Ip", "192.0.2.0/24", false),
            ("scopes=Country", "192.0.2.1", false),
            ("scopes=&type=&ip=&origins=", "192.0.2.1", true),
            ("type=ban", "192.0.2.1", true),
            ("type=captcha", "192.0.2.1", false),
        ] {
            assert_eq!(admits(query, network), expected, "{query} {network}");
        }
    }

    #[test]
    fn decisions_are_chosen_by_origin_and_scenario() {
        for (query, expected) in [
            ("origins=cscli,divvy", true),
            ("origins=CAPI", false),
            ("scenarios_containing=ssh,login", true),
            ("scenarios_containing=SSH", false),
            ("scenarios_not_containing=ssh", true),
            ("scenarios_not_containing=ssh,LOGIN", false),
            ("scenarios_containing=divvy&scenarios_not_containing=login", false),
        ] {
            assert_eq!(admits(query, "192.0.2.1"), expected, "{query}");
        }
    }

    #[test]
    fn invalid_parameters_are_explained() {
        for (query, expected) in [
            ("ip=nonsense", "ip is 'nonsense', but it is neither an address nor a network: write an address, or"),
            ("range=10.0.0.0/33", "range is '10.0.0.0/33', but its prefix is not a number of bits from 0 to 32"),
            ("contains=maybe", "contains must be true or false"),
            ("ip=192.0.2.1&ip=192.0.2.2", "the query's parameter 'ip' is given twice"),
            (&format!("origins={}", "x,".repeat(101)), "origins has more than 100 words"),
            (
                &format!("scenarios_not_containing={}", "x,".repeat(15_000)),
                "scenarios_not_containing has more than 100",
            ),
        ] {
            let error = filter(query).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let long = filter(&format!("ip={}", "x".repeat(1_000))).unwrap_err().to_string();
        assert!(long.len() < 250, "{long}");
        let startup =
            |value: &str| DecisionQuery { startup: Some(value.to_owned()), ..DecisionQuery::default() }.is_startup();
        assert_eq!((startup("true"), startup("False"), startup("")), (Ok(true), Ok(false), Ok(false)));
        assert_eq!(startup("x"), Err(FilterError::Boolean("startup")));
    }
}
