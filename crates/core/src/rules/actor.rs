//! Actors: the fields that `actorField` names, and the actor that a request's values form. Each actor has its own
//! counter.
//!
//! With one field the actor is its value, as in Button's Divvy. With several it is their text form, `user=a path=/b`,
//! in the rule's order. The text form includes the names, so two combinations of values never form the same actor. A
//! missing field counts as empty.

use std::borrow::Cow;
use std::iter;

use serde::{Deserialize, Serialize};

use super::{Condition, Key, Network, Operation, PrefixLengths, Rule, RuleSet, operation};

/// The fields of a rule that counts by actor, prepared for every hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActorFields {
    /// The rule has one counter.
    None,
    /// One field. Its value is the actor.
    One(Key),
    /// One field. The network of its value is the actor.
    OneNetwork(Key, PrefixLengths),
    /// The fields in the rule's order.
    Several(Box<[FieldOfSeveral]>),
    /// All entries of a descriptor, in their order. A text here is in place of the value of its entry.
    Entries(Box<[Option<String>]>),
}

/// A field of an actor with several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldOfSeveral {
    /// The text that precedes the value.
    before: Box<[u8]>,
    field: Key,
    /// The lengths of the networks that replace addresses.
    prefix: Option<PrefixLengths>,
}

impl ActorFields {
    /// Prepares the fields of a rule.
    pub fn of(rule: &Rule) -> Self {
        let prefix = |field: &str| {
            rule.actor_prefix.as_ref().filter(|prefix| prefix.field == field).map(|prefix| prefix.lengths)
        };
        if let Some(descriptor) = &rule.descriptor {
            return Self::Entries(descriptor.levels.iter().map(|level| level.shared.clone()).collect());
        }
        match rule.actor_fields.as_slice() {
            [] => Self::None,
            [field] => match prefix(field) {
                None => Self::One(Key::new(field)),
                Some(lengths) => Self::OneNetwork(Key::new(field), lengths),
            },
            several => {
                let field = |(at, field): (usize, &String)| {
                    let mut before = if at > 0 { vec![b' '] } else { Vec::new() };
                    write_string(field.as_bytes(), &mut before);
                    before.push(b'=');
                    FieldOfSeveral { before: before.into(), field: Key::new(field), prefix: prefix(field) }
                };
                Self::Several(several.iter().enumerate().map(field).collect())
            }
        }
    }

    /// Rewrites an actor that a person has typed in the form that hits give it: fields in the rule's order, quotes only
    /// where needed, networks in place of their addresses. Returns `None` if the text does not name exactly the rule's fields,
    /// or names a network of another length.
    pub fn canonical(&self, actor: &str) -> Option<String> {
        let fields = match self {
            Self::None | Self::One(_) => return Some(actor.to_owned()),
            Self::OneNetwork(_, lengths) => return lengths.canonical(actor),
            Self::Entries(levels) => {
                let (mut operation, mut canonical) = (Operation::new(), Vec::new());
                read_pairs(actor, |key, value| operation.push(key, value))?;
                self.write(&operation, &mut canonical);
                return (operation.iter().len() == levels.len()).then(|| String::from_utf8(canonical).ok())?;
            }
            Self::Several(fields) => fields,
        };
        let mut operation = parse_pairs(actor)?;
        for field in fields {
            let value = operation.get(field.field.as_str())?;
            if let Some(lengths) = field.prefix {
                let network = lengths.canonical(value)?;
                operation.set(field.field.as_str(), &network);
            }
        }
        let mut canonical = Vec::new();
        self.write(&operation, &mut canonical);
        (operation.iter().len() == fields.len()).then(|| String::from_utf8(canonical).ok())?
    }

    /// Returns the actor with the values that `spell` returns for each field and its value. The actor is in the form that hits
    /// give it, and so is the result.
    ///
    /// # Errors
    /// The first error of `spell`.
    pub fn respell<E>(&self, actor: &str, mut spell: impl FnMut(&str, &str) -> Result<String, E>) -> Result<String, E> {
        match self {
            // Checks have no descriptors.
            Self::None | Self::Entries(_) => Ok(actor.to_owned()),
            Self::One(field) | Self::OneNetwork(field, _) => spell(field.as_str(), actor),
            Self::Several(fields) => {
                let mut operation = parse_pairs(actor).unwrap_or_default();
                for field in fields.iter().map(|field| field.field.as_str()) {
                    let value = spell(field, operation.get(field).unwrap_or_default())?;
                    operation.set(field, &value);
                }
                let mut respelled = Vec::new();
                self.write(&operation, &mut respelled);
                Ok(String::from_utf8(respelled).unwrap_or_default())
            }
        }
    }

    /// Appends the actor of `operation` to `out`.
    #[inline]
    pub fn write(&self, operation: &Operation, out: &mut Vec<u8>) {
        let value = |field| operation.value(field).unwrap_or_default();
        match self {
            Self::None => {}
            Self::One(field) => out.extend_from_slice(value(field)),
            Self::OneNetwork(field, lengths) => lengths.write(value(field), out),
            Self::Several(fields) => {
                for FieldOfSeveral { before, field, prefix } in fields {
                    out.extend_from_slice(before);
                    match prefix {
                        None => write_string(value(field), out),
                        Some(lengths) => {
                            let mut network = Vec::new();
                            lengths.write(value(field), &mut network);
                            write_string(&network, out);
                        }
                    }
                }
            }
            Self::Entries(shared) => {
                let mut shared = shared.iter();
                let mut shown = |value| shared.next().and_then(Option::as_deref).map_or(value, str::as_bytes);
                write_entries(operation.entries().map(|[key, value]| [key, shown(value)]), out);
            }
        }
    }
}

/// Parses an actor's text form; `None` if it is invalid.
fn parse_pairs(text: &str) -> Option<Operation> {
    let (mut operation, mut is_new) = (Operation::new(), true);
    read_pairs(text, |key, value| is_new &= operation.set(key, value))?;
    is_new.then_some(operation)
}

/// Calls `add` with each pair of an actor's text form; `None` if it is invalid.
fn read_pairs(text: &str, mut add: impl FnMut(&str, &str)) -> Option<()> {
    let mut rest = text.trim().as_bytes();
    while !rest.is_empty() {
        let [key, value] = read_pair(&mut rest)?;
        if !(rest.is_empty() || rest.starts_with(b" ")) {
            return None;
        }
        add(str::from_utf8(&key).ok()?, str::from_utf8(&value).ok()?);
        rest = rest.trim_ascii_start();
    }
    Some(())
}

/// Reads the first pair of an actor that has several fields.
pub fn read_pair<'a>(from: &mut &'a [u8]) -> Option<[Cow<'a, [u8]>; 2]> {
    let key = read_string(from)?;
    *from = from.strip_prefix(b"=")?;
    Some([key, read_string(from)?])
}

/// Appends the actor of a descriptor with these entries.
pub fn write_entries<'a>(entries: impl Iterator<Item = [&'a [u8]; 2]>, out: &mut Vec<u8>) {
    for (place, [key, value]) in entries.enumerate() {
        if place > 0 {
            out.push(b' ');
        }
        write_string(key, out);
        out.push(b'=');
        write_string(value, out);
    }
}

/// Returns the entries in the actor of a descriptor.
pub fn read_entries(mut actor: &[u8]) -> impl Iterator<Item = [Cow<'_, [u8]>; 2]> {
    iter::from_fn(move || {
        let pair = read_pair(&mut actor);
        actor = actor.strip_prefix(b" ").unwrap_or_default();
        pair
    })
}

/// Reads a string that [`write_string`] has written.
fn read_string<'a>(from: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let Some(quoted) = from.strip_prefix(b"\"") else {
        let end = from.iter().position(|byte| matches!(byte, b'=' | b' ')).unwrap_or(from.len());
        let (bare, rest) = from.split_at_checked(end)?;
        *from = rest;
        return Some(bare.into());
    };
    let mut string = Vec::new();
    let mut bytes = quoted.iter();
    loop {
        match bytes.next()? {
            b'"' => break,
            b'\\' => string.push(*bytes.next()?),
            byte => string.push(*byte),
        }
    }
    *from = bytes.as_slice();
    Some(string.into())
}

/// Writes a string: bare if that is unambiguous, otherwise in quotes, with a backslash before each quote and backslash.
fn write_string(string: &[u8], out: &mut Vec<u8>) {
    if operation::is_bare(string) {
        out.extend_from_slice(string);
        return;
    }
    out.push(b'"');
    for byte in string {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

impl RuleSet {
    /// Returns the rules that count by exactly the fields of `actor`, in any order, with their indexes.
    pub fn rules_by_fields_of(&self, actor: &Operation) -> impl Iterator<Item = (usize, &Rule)> {
        self.rules().iter().enumerate().filter(|(_, rule)| {
            let fields = &rule.actor_fields;
            fields.len() == actor.iter().len() && fields.iter().all(|field| actor.get(field).is_some())
        })
    }

    /// Returns the rules that count by exactly the fields of `actor` and that its requests can match, with their indexes.
    pub fn rules_of_actor(&self, actor: &Operation) -> impl Iterator<Item = (usize, &Rule)> {
        self.rules_by_fields_of(actor).filter(|(_, rule)| rule.can_match(actor))
    }
}

impl Rule {
    /// Returns whether the patterns and the conditions match the values of the actor's fields. Other keys of a request may have any value.
    fn can_match(&self, actor: &Operation) -> bool {
        self.operation.iter().all(|(key, pattern)| actor.get(key).is_none_or(|value| pattern.matches(value)))
            && self.conditions().all(|condition| {
                let meets = |value: &str| condition.is_met_by(value.as_bytes()) || self.may_be_met_in(condition, value);
                actor.get(&condition.field).is_none_or(meets)
            })
    }

    /// Returns whether the actor is named as a network, some of whose addresses may meet the condition.
    fn may_be_met_in(&self, condition: &Condition, actor: &str) -> bool {
        let is_network = || Network::parse(actor).is_ok_and(|network| !network.is_address());
        self.actor_prefix.as_ref().is_some_and(|prefix| prefix.field == condition.field) && is_network()
    }
}

named_values! {
    /// An operator's decision about a single actor, in place of the rules.
    #[derive(PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    OverrideKind {
        /// The actor is always denied.
        Block = "block",
        /// The actor is never denied.
        Allow = "allow",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ActorPrefix;
    use crate::rules::testing::{operation, rule};
    use proptest::prelude::*;

    fn by(fields: &[&str], header: &str) -> Rule {
        Rule { actor_fields: fields.iter().map(|field| (*field).to_owned()).collect(), ..rule(header) }
    }

    #[test]
    fn network_is_part_of_an_actor_of_several_fields() {
        let prefix = ActorPrefix { field: "ip".to_owned(), lengths: PrefixLengths { v4: 24, v6: 56 } };
        let rule = Rule { actor_prefix: Some(prefix), ..by(&["path", "ip"], "") };
        let (fields, mut actor) = (ActorFields::of(&rule), Vec::new());
        fields.write(&[("ip", "10.1.2.3:80"), ("path", "/a")].into_iter().collect(), &mut actor);
        assert_eq!(String::from_utf8(actor).unwrap(), "path=/a ip=10.1.2.0/24");
        for text in ["ip=10.1.2.3 path=/a", "path=/a ip=10.1.2.0/24"] {
            assert_eq!(fields.canonical(text).as_deref(), Some("path=/a ip=10.1.2.0/24"));
        }
        assert_eq!(fields.canonical("path=/a ip=10.1.0.0/16"), None);
    }

    fn actor(fields: &[&str], pairs: &[(&str, &str)]) -> String {
        let mut out = Vec::new();
        ActorFields::of(&by(fields, "")).write(&pairs.iter().copied().collect(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn actor_of_several_fields_includes_their_names() {
        let pairs = [("path", "/b"), ("user", "a b"), ("tenant", "x=\"y\\z\"")];
        assert_eq!(actor(&[], &pairs), "");
        assert_eq!(actor(&["user"], &pairs), "a b");
        assert_eq!(actor(&["none"], &pairs), "");
        assert_eq!(actor(&["user", "path"], &pairs), r#"user="a b" path=/b"#);
        assert_eq!(actor(&["path", "none", "tenant"], &pairs), r#"path=/b none= tenant="x=\"y\\z\"""#);
        assert_eq!(actor(&["a field", ""], &pairs), r#""a field"= ="#);
    }

    #[test]
    fn actor_is_recognized_in_any_notation() {
        let fields = ActorFields::of(&by(&["user", "path"], ""));
        let canonical = |actor: &str| fields.canonical(actor);
        assert_eq!(canonical(r#" path="/b"  "user"=a "#).as_deref(), Some("user=a path=/b"));
        assert_eq!(canonical(r#"user="a \"b\" \\" path="#).as_deref(), Some(r#"user="a \"b\" \\" path="#));
        for other in
            ["", "a", "user=a", "user=a path=b more=c", "user=a user=b", r#"user="a path=b"#, "user=apath=b", "=a"]
        {
            assert_eq!(canonical(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn actors_written_by_hits_are_canonical(one in "[a\"\\\\ =é]{0,6}", other in "[a\"\\\\ =]{0,6}") {
            let actor = actor(&["k", "a key"], &[("k", &one), ("a key", &other)]);
            prop_assert_eq!(ActorFields::of(&by(&["k", "a key"], "")).canonical(&actor), Some(actor));
        }

        /// Tests values that quotes, backslashes and separators could make indistinguishable.
        #[test]
        fn different_values_form_different_actors(
            one in prop::array::uniform2("[a\"\\\\ =]{0,4}"),
            other in prop::array::uniform2("[a\"\\\\ =]{0,4}"),
        ) {
            let of = |[first, second]: &[String; 2]| actor(&["k", "l"], &[("k", first), ("l", second)]);
            prop_assert_eq!(of(&one) == of(&other), one == other);
        }
    }

    #[test]
    fn rules_have_exactly_the_fields_and_match_their_values() {
        let rules = RuleSet::new(vec![
            by(&["user"], "path=/a user=*"),
            by(&["user"], "user=ann"),
            by(&["user"], "user=vip-*"),
            by(&["tenant", "user"], "user=*"),
            by(&["path"], "user=ann"),
            by(&[], "user=ann"),
            by(&["user"], ""),
        ]);
        let rules = rules.unwrap();
        for (actor, expected) in [
            ("user=ann", &[0, 1, 6][..]),
            ("user=vip-1", &[0, 2, 6]),
            ("user=", &[0, 6]),
            ("user=a tenant=b", &[3]),
            ("tenant=b user=a", &[3]),
            ("path=/b", &[4]),
        ] {
            let actor = operation(actor);
            assert!(rules.rules_by_fields_of(&actor).next().is_some());
            assert_eq!(rules.rules_of_actor(&actor).map(|(index, _)| index).collect::<Vec<_>>(), expected, "{actor:?}");
        }
        assert!(
            ["tenant=b", "user=a path=b"]
                .iter()
                .all(|other| rules.rules_by_fields_of(&operation(other)).next().is_none())
        );
    }
}
