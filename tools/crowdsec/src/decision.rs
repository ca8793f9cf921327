//! Messages of CrowdSec's Local API: decisions, and the query of a request for them. Their durations have the text format of Go's
//! `time.Duration`, such as `3h59m58.938970518s`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use divvy_core::rules::{Network, NetworkError};
use divvy_core::units;
use serde::Deserialize;
use url::form_urlencoded;

/// The type of decisions that deny everything.
pub const BAN: &str = "ban";
/// Maximum length of a text that an error repeats (characters).
const MAX_SHOWN: usize = 64;
/// Maximum number of words in a list of the query. Each decision is compared with all of them.
const MAX_WORDS: usize = 100;

/// Returns the scope of a decision about this network.
pub fn scope_of(network: Network) -> &'static str {
    if network.is_address() { "Ip" } else { "Range" }
}

/// A decision of CrowdSec, as it is written.
#[derive(Debug, Deserialize)]
pub struct RemoteDecision<'a> {
    #[serde(borrow)]
    duration: Cow<'a, str>,
    /// The name of the scenario that led to it, or another reason.
    #[serde(borrow)]
    pub scenario: Cow<'a, str>,
    #[serde(borrow)]
    scope: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    value: Cow<'a, str>,
    #[serde(default)]
    simulated: Option<bool>,
}

impl RemoteDecision<'_> {
    /// Returns the banned network and the remaining time. `None` if it is another kind of decision (a captcha, or one about a
    /// country or a user), only a simulation, or about something that is no network.
    pub fn ban(&self) -> Option<(Network, Duration)> {
        let is_scope = ["Ip", "Range"].iter().any(|scope| self.scope.eq_ignore_ascii_case(scope));
        if !self.kind.eq_ignore_ascii_case(BAN) || self.simulated == Some(true) || !is_scope {
            return None;
        }
        let network = match Network::parse(&self.value) {
            Ok(network) => network,
            // CrowdSec compares ranges by their bits, too.
            Err(NetworkError::HostBits { masked }) => masked,
            Err(_) => return None,
        };
        Some((network, parse_duration(&self.duration)?))
    }
}

/// Parses a duration. One that is negative, as of a decision that has ended, is zero. Returns `None` if the text is not a
/// duration.
fn parse_duration(text: &str) -> Option<Duration> {
    match text.strip_prefix('-') {
        Some(ago) => units::parse_duration(ago).map(|_| Duration::ZERO),
        None => units::parse_duration(text),
    }
}

/// Returns the text of a duration in whole seconds.
pub fn write_duration(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// The decisions that a bouncer wants.
#[derive(Debug, Default)]
pub struct DecisionFilter {
    /// Decisions whose network covers this one, or else is in it.
    pub network: Option<Network>,
    pub is_covering: bool,
    /// Whether the bouncer starts, and needs all decisions of a stream.
    pub is_startup: bool,
    value: Option<String>,
    /// No decision of divvy is of the wanted type.
    is_other_type: bool,
    scopes: Vec<String>,
    origins: Vec<String>,
    scenarios: Vec<String>,
    other_scenarios: Vec<String>,
}

impl DecisionFilter {
    /// Parses the query of a URL. Like CrowdSec, divvy ignores other parameters. An empty parameter is like none.
    ///
    /// # Errors
    /// A parameter is not valid.
    pub fn parse(query: &str) -> Result<Self, String> {
        let given: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
        let get = |name: &str| given.get(name).map(|value| &**value).filter(|value| !value.is_empty());
        let words = |name: &str| {
            let words = get(name).unwrap_or_default().split(',').filter(|word| !word.is_empty());
            let words: Vec<_> = words.map(str::to_owned).collect();
            if words.len() > MAX_WORDS { Err(format!("{name} has more than {MAX_WORDS} words")) } else { Ok(words) }
        };
        let lowercase = |name: &str| Ok::<_, String>(words(name)?.iter().map(|word| word.to_lowercase()).collect());
        let network = |name: &str| get(name).map(|value| parse_network(name, value)).transpose();
        let boolean = |name: &str| get(name).map(|value| parse_boolean(name, value)).transpose();
        let (ip, range) = (network("ip")?, network("range")?);
        Ok(Self {
            network: ip.or(range),
            is_covering: boolean("contains")?.unwrap_or(true),
            is_startup: boolean("startup")?.unwrap_or(false),
            value: get("value").map(str::to_owned),
            is_other_type: get("type").is_some_and(|kind| kind != BAN),
            // CrowdSec's own clients write both names.
            scopes: words(if get("scopes").is_some() { "scopes" } else { "scope" })?,
            origins: words("origins")?,
            scenarios: lowercase("scenarios_containing")?,
            other_scenarios: lowercase("scenarios_not_containing")?,
        })
    }

    /// Returns whether the bouncer wants this decision. `network` is its address or network.
    pub fn admits(&self, network: Network, origin: &str, scenario: &str) -> bool {
        self.admits_network(network)
            && (self.origins.is_empty() || self.origins.iter().any(|wanted| wanted == origin))
            && self.admits_scenario(scenario)
    }

    /// Returns whether the bouncer may want decisions about this network, for some reason.
    pub fn admits_network(&self, network: Network) -> bool {
        let is_wanted =
            |wanted: Network| if self.is_covering { network.covers(wanted) } else { wanted.covers(network) };
        let is_of_scope = |scope: &String| scope.eq_ignore_ascii_case(scope_of(network));
        !self.is_other_type
            && self.network.is_none_or(is_wanted)
            && self.value.as_ref().is_none_or(|value| *value == network.to_string())
            && (self.scopes.is_empty() || self.scopes.iter().any(is_of_scope))
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

/// Parses a boolean as Go writes it. pycrowdsec and others write `True`, too.
fn parse_boolean(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{name} must be true or false")),
    }
}

fn parse_network(name: &str, value: &str) -> Result<Network, String> {
    Network::of_value(value.as_bytes()).ok_or_else(|| {
        let (error, shown) = (NetworkError::NoAddress, value.chars().take(MAX_SHOWN).collect::<String>());
        format!("{name} is '{shown}', but {error}: {}", error.fix())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of CrowdSec 1.4.6 to `cscli decisions add`.
    const OF_CROWDSEC: &str = r#"{"duration":"9m58.938975385s","id":1,"origin":"cscli","scenario":"manual 'ban' from 'test'","scope":"Ip","type":"ban","value":"192.0.2.7"}"#;

    fn read(text: &str) -> Option<String> {
        let decision: RemoteDecision<'_> = serde_json::from_str(text).ok()?;
        decision.ban().map(|(network, remaining)| format!("{network} {remaining:?} {}", decision.scenario))
    }

    #[test]
    fn bans_of_addresses_and_networks_are_read() {
        assert_eq!(read(OF_CROWDSEC).unwrap(), "192.0.2.7 598.938975385s manual 'ban' from 'test'");
        for (from, to, expected) in [
            ("192.0.2.7", "2001:DB8::1", Some("2001:db8::1")),
            ("192.0.2.7", "::ffff:192.0.2.7", Some("192.0.2.7")),
            (
                "Ip\",\"type\":\"ban\",\"value\":\"192.0.2.7",
                "range\",\"type\":\"BAN\",\"value\":\"10.1.2.3/8",
                Some("10.0.0.0/8"),
            ),
            ("9m58.938975385s", "-21.4ms", Some("192.0.2.7 0ns")),
            ("manual 'ban' from 'test'", "a\\u0062\\\"c", Some("192.0.2.7 598.938975385s ab\"c")),
            ("\"id\"", "\"uuid\":\"x\",\"until\":null,\"simulated\":false,\"id\"", Some("192.0.2.7")),
            ("\"id\"", "\"simulated\":true,\"id\"", None),
            ("\"ban\"", "\"captcha\"", None),
            ("\"Ip\"", "\"Country\"", None),
            ("192.0.2.7", "192.0.2.700", None),
            ("192.0.2.7", "", None),
            ("9m58.938975385s", "soon", None),
        ] {
            assert!(OF_CROWDSEC.contains(from), "{from}");
            let found = read(&OF_CROWDSEC.replace(from, to));
            assert_eq!(found.is_some(), expected.is_some(), "{to}: {found:?}");
            assert!(found.unwrap_or_default().starts_with(expected.unwrap_or_default()), "{to}");
        }
    }

    #[test]
    fn malformed_decisions_are_refused() {
        for text in ["", "{}", "null", "{\"duration\":1}", &OF_CROWDSEC.replace("\"Ip\"", "null")] {
            assert!(serde_json::from_str::<RemoteDecision<'_>>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_of_go_are_parsed() {
        for (text, nanos) in [
            ("0s", 0),
            ("3h59m58.938970518s", 14_398_938_970_518),
            ("99h59m58.938970518s", 359_998_938_970_518),
            ("-21.406045ms", 0),
            ("-1h0m5s", 0),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "-", "1", "-1", "--1s", "+1s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn written_durations_are_those_of_go() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (60, "1m0s"), (3_599, "59m59s"), (3_600, "1h0m0s"), (604_800, "168h0m0s")]
        {
            assert_eq!(write_duration(seconds), text);
            assert_eq!(parse_duration(text), Some(Duration::from_secs(seconds)));
        }
    }

    const SCENARIO: &str = "divvy/Login";

    fn admits(query: &str, network: &str) -> bool {
        DecisionFilter::parse(query).unwrap().admits(Network::parse(network).unwrap(), "divvy", SCENARIO)
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
            ("range=10.0.0.0/33", "range is '10.0.0.0/33', but it is neither an address nor a network"),
            ("contains=maybe", "contains must be true or false"),
            ("a=b&startup=x", "startup must be true or false"),
            (&format!("origins={}", "x,".repeat(101)), "origins has more than 100 words"),
            (
                &format!("scenarios_not_containing={}", "x,".repeat(15_000)),
                "scenarios_not_containing has more than 100",
            ),
        ] {
            let error = DecisionFilter::parse(query).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let long = DecisionFilter::parse(&format!("ip={}", "x".repeat(1_000))).unwrap_err();
        assert!(long.len() < 250, "{long}");
        for (query, expected) in [("startup=true", true), ("startup=False", false), ("startup=", false), ("", false)] {
            assert_eq!(DecisionFilter::parse(query).unwrap().is_startup, expected, "{query}");
        }
    }
}
