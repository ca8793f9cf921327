//! Decisions: the ones that divvy writes, and the ones that it reads. Their durations have the text format of Go's
//! `time.Duration`, such as `3h59m58.938970518s`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use divvy_core::json::Object;
use divvy_core::rules::{Network, NetworkError};
use divvy_core::units;
use serde::{Deserialize, Serialize};

/// The type of decisions that deny everything.
pub const BAN: &str = "ban";

/// The kind of a decision's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Scope {
    /// An address.
    Ip,
    /// A network.
    Range,
}

impl Scope {
    /// Returns the scope of a decision about this network.
    pub fn of(network: Network) -> Self {
        if network.is_address() { Self::Ip } else { Self::Range }
    }

    /// Finds the scope with this name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Ip, Self::Range].into_iter().find(|scope| scope.name().eq_ignore_ascii_case(name))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ip => "Ip",
            Self::Range => "Range",
        }
    }
}

/// A decision of divvy, with the fields in the order of CrowdSec's.
#[derive(Debug, Serialize)]
pub struct Decision<'a> {
    /// Remaining time, in Go's format.
    pub duration: String,
    /// A positive number.
    pub id: u64,
    /// The program that decided.
    pub origin: &'a str,
    /// The reason.
    pub scenario: &'a str,
    /// The kind of `value`.
    pub scope: Scope,
    /// The treatment of requests from there.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The address or network.
    pub value: String,
}

/// A decision of CrowdSec, as it is written.
#[derive(Debug, Deserialize)]
pub struct RemoteDecision<'a> {
    #[serde(default)]
    id: u64,
    #[serde(borrow)]
    duration: Cow<'a, str>,
    #[serde(borrow)]
    scenario: Cow<'a, str>,
    #[serde(borrow)]
    scope: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    value: Cow<'a, str>,
    #[serde(default)]
    simulated: Option<bool>,
}

/// A decision to deny an address or a network everything.
#[derive(Debug, PartialEq, Eq)]
pub struct Ban<'a> {
    /// Names the decision. 0 if it has no id.
    pub id: u64,
    /// The address or network.
    pub network: Network,
    /// Remaining time.
    pub remaining: Duration,
    /// The name of the scenario that led to it, or another reason.
    pub scenario: &'a str,
}

impl<'a> RemoteDecision<'a> {
    /// Parses a decision; `None` if it is malformed.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(text).ok().map(|Object(decision)| decision)
    }

    /// Returns the ban; `None` if it is another kind of decision (a captcha, or one about a country or a user), only a
    /// simulation, or about something that is no network.
    pub fn ban(&self) -> Option<Ban<'_>> {
        let is_ban = self.kind.eq_ignore_ascii_case(BAN) && self.simulated != Some(true);
        if !is_ban || Scope::parse(&self.scope).is_none() {
            return None;
        }
        let network = match Network::parse(&self.value) {
            Ok(network) => network,
            // CrowdSec compares ranges by their bits, too.
            Err(NetworkError::HostBits { masked }) => masked,
            Err(_) => return None,
        };
        Some(Ban { id: self.id, network, remaining: parse_duration(&self.duration)?, scenario: &self.scenario })
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
    let mut text = String::new();
    // Writing to a string never fails.
    let _ = match (hours, minutes) {
        (0, 0) => write!(text, "{rest}s"),
        (0, _) => write!(text, "{minutes}m{rest}s"),
        _ => write!(text, "{hours}h{minutes}m{rest}s"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of CrowdSec 1.4.6 to `cscli decisions add`.
    const OF_CROWDSEC: &str = r#"{"duration":"9m58.938975385s","id":1,"origin":"cscli","scenario":"manual 'ban' from 'test'","scope":"Ip","type":"ban","value":"192.0.2.7"}"#;

    fn read(text: &str) -> Option<String> {
        let decision = RemoteDecision::parse(text.as_bytes())?;
        decision.ban().map(|ban| format!("{} {:?} {}", ban.network, ban.remaining, ban.scenario))
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
        for text in ["", "{}", "[]", "null", "{\"duration\":1}", &OF_CROWDSEC.replace("\"Ip\"", "null")] {
            assert!(RemoteDecision::parse(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn decision_is_written_with_the_fields_of_crowdsec() {
        let network = Network::parse("2001:db8::/32").unwrap();
        let decision = Decision {
            duration: write_duration(60),
            id: 7,
            origin: "divvy",
            scenario: "divvy/login",
            scope: Scope::of(network),
            kind: BAN,
            value: network.to_string(),
        };
        assert_eq!(
            serde_json::to_string(&decision).unwrap(),
            r#"{"duration":"1m0s","id":7,"origin":"divvy","scenario":"divvy/login","scope":"Range","type":"ban","value":"2001:db8::/32"}"#
        );
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
}
