//! Validates the settings of a rule that are about one field: `networks`, `list` and `actorPrefix`. In INI they are
//! written as `field: text`, and in JSON as an object.

use super::document::{RawSetting, RawValue};
use super::lists::Lists;
use super::problem::{Location, Problems};
use crate::rules::setting_name::{ACTOR_FIELD, ACTOR_PREFIX, LIST, NETWORKS};
use crate::rules::{ActorPrefix, Condition, Members, NOT, Network, NetworkSet, PrefixLengths};

/// Maximum number of networks in a setting. More belong in a list.
const MAX_NETWORKS: usize = 64;

/// A setting of a rule, and the rule's header for messages.
#[derive(Clone, Copy)]
pub(super) struct FieldSetting<'a> {
    pub setting: &'a RawSetting,
    pub header: &'a str,
}

impl FieldSetting<'_> {
    fn place(&self) -> Location<'_> {
        Location { line: self.setting.line, operation: Some(self.header) }
    }

    /// Returns the condition of `networks`; `None` after reporting what is wrong.
    pub fn networks(self, problems: &mut Problems) -> Option<Condition> {
        self.report_difference(problems);
        let (field, text) = self.split("ip: 10.0.0.0/8, 2001:db8::/32", problems)?;
        let (is_inverted, text) = strip_not(&text);
        let entries: Vec<_> = text.split(',').map(str::trim).collect();
        if entries.len() > MAX_NETWORKS {
            let what = format!("`{NETWORKS}` has {} networks, but at most {MAX_NETWORKS}", entries.len());
            problems.error(self.place(), what, format!("write them to a file, one a line, and name it in `{LIST}`"));
            return None;
        }
        let mut networks = Vec::with_capacity(entries.len());
        for entry in &entries {
            match Network::parse(entry) {
                Ok(network) => networks.push(network),
                Err(error) => {
                    problems.error(self.place(), format!("{entry:?} is not a network: {error}"), error.fix());
                }
            }
        }
        let is_valid = networks.len() == entries.len();
        let members = Members::Networks(NetworkSet::new(networks));
        is_valid.then_some(Condition { field, is_inverted, members })
    }

    /// Returns the condition of `list`; `None` after reporting what is wrong.
    pub fn list(self, lists: &mut Lists, problems: &mut Problems) -> Option<Condition> {
        self.report_difference(problems);
        let (field, text) = self.split("ip: office.txt", problems)?;
        let (is_inverted, name) = strip_not(&text);
        let list = lists.get(name, self.place(), problems)?;
        Some(Condition { field, is_inverted, members: Members::List(list) })
    }

    /// Returns the lengths of `actorPrefix`; `None` after reporting what is wrong.
    pub fn actor_prefix(self, actor_fields: &[String], problems: &mut Problems) -> Option<ActorPrefix> {
        const EXAMPLE: &str = "ip: 32, 56";
        self.report_difference(problems);
        let (field, text) = self.split(EXAMPLE, problems)?;
        if !actor_fields.contains(&field) {
            let what = format!("`{ACTOR_PREFIX}` is about {field:?}, which is not in `{ACTOR_FIELD}`");
            problems.error(self.place(), what, format!("add `{ACTOR_FIELD} = {field}`, or remove it"));
        }
        let length = |text: &str, max: u8| text.trim().parse::<u8>().ok().filter(|length| *length <= max);
        let lengths = text.split_once(',').and_then(|(v4, v6)| Some((length(v4, 32)?, length(v6, 128)?)));
        let Some((v4, v6)) = lengths else {
            let what = format!("`{ACTOR_PREFIX}` is not two lengths: {text:?}");
            let fix =
                format!("write the bits of IPv4 networks, up to 32, and of IPv6 networks, up to 128: `{EXAMPLE}`");
            problems.error(self.place(), what, fix);
            return None;
        };
        Some(ActorPrefix { field, lengths: PrefixLengths { v4, v6 } })
    }

    /// Returns the field and the text about it.
    fn split(&self, example: &str, problems: &mut Problems) -> Option<(String, String)> {
        let parts = match &self.setting.value {
            RawValue::Text(text) => split_field(text).map(|(field, text)| (field.to_owned(), text.to_owned())),
            RawValue::Other(json) => read_object(json),
            RawValue::Null | RawValue::Number(_) => None,
        };
        let parts = parts.filter(|(field, text)| !field.is_empty() && !text.is_empty());
        if parts.is_none() {
            let what = format!("`{}` has no field with a colon: {}", self.setting.key, self.setting.value.as_written());
            let in_json = example.split_once(": ").map(|(field, text)| format!("{{\"{field}\": \"{text}\"}}"));
            let fix = format!("write `{example}`, or in JSON {}", in_json.unwrap_or_default());
            problems.error(self.place(), what, fix);
        }
        parts
    }

    fn report_difference(&self, problems: &mut Problems) {
        let what = format!("Button's Divvy 1.7.1 does not support `{}`: it ignores the setting", self.setting.key);
        problems.difference(self.place(), what, "remove it if Button's Divvy reads the file, too");
    }
}

/// Splits `field: text`. A field that contains a colon needs a space after the colon that ends it.
pub(super) fn split_field(text: &str) -> Option<(&str, &str)> {
    let (field, text) = text.split_once(": ").or_else(|| text.split_once(':'))?;
    Some((field.trim(), text.trim()))
}

/// Reads an object with one member, whose value is a text, or an array of texts and numbers.
fn read_object(json: &str) -> Option<(String, String)> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).ok()?;
    let mut members = object.into_iter();
    let (Some((field, value)), None) = (members.next(), members.next()) else { return None };
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let text = match &value {
        serde_json::Value::Array(values) => values.iter().map(text).collect::<Option<Vec<_>>>()?.join(", "),
        value => text(value)?,
    };
    Some((field, text.trim().to_owned()))
}

fn strip_not(text: &str) -> (bool, &str) {
    text.strip_prefix(NOT).map_or((false, text), |text| (true, text.trim_start()))
}
