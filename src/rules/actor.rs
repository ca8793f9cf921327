//! Actors: the fields that `actorField` names, and the actor that a request's values form. Each actor has its own
//! counter.
//!
//! With one field the actor is its value, as in Button's Divvy. With several it is their text form, `user=a path=/b`,
//! in the rule's order. The text form includes the names, so two combinations of values never form the same actor. A
//! missing field counts as empty.

use super::{Key, Operation, operation_text};

/// The fields of a rule that counts by actor, prepared for every hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActorFields {
    /// The rule has one counter.
    None,
    /// One field. Its value is the actor.
    One(Key),
    /// The fields in the rule's order, each with the text that precedes its value.
    Several(Box<[(Box<[u8]>, Key)]>),
}

impl ActorFields {
    /// Prepares the fields. An empty list means that the rule does not count by actor.
    pub fn new(fields: &[String]) -> Self {
        match fields {
            [] => Self::None,
            [field] => Self::One(Key::new(field)),
            several => Self::Several(
                several.iter().enumerate().map(|(at, field)| (field_prefix(at, field), Key::new(field))).collect(),
            ),
        }
    }

    /// Rewrites an actor that a person has typed in the form that hits give it: fields in the rule's order, quotes only
    /// where needed. Returns `None` if the text does not name exactly the rule's fields.
    pub fn canonical(&self, actor: &str) -> Option<String> {
        let Self::Several(fields) = self else { return Some(actor.to_owned()) };
        let operation = parse_pairs(actor)?;
        let is_whole = fields.iter().all(|(_, field)| operation.value(field).is_some());
        let mut canonical = Vec::new();
        self.write(&operation, &mut canonical);
        (is_whole && operation.iter().len() == fields.len()).then(|| String::from_utf8(canonical).ok())?
    }

    /// Appends the actor of `operation` to `out`.
    pub fn write(&self, operation: &Operation, out: &mut Vec<u8>) {
        let value = |field| operation.value(field).unwrap_or_default();
        match self {
            Self::None => {}
            Self::One(field) => out.extend_from_slice(value(field)),
            Self::Several(fields) => {
                for (before, field) in fields {
                    out.extend_from_slice(before);
                    write_string(value(field), out);
                }
            }
        }
    }
}

/// Parses an actor's text form; `None` if it is invalid.
fn parse_pairs(text: &str) -> Option<Operation> {
    let (mut operation, mut rest) = (Operation::new(), text.trim());
    while !rest.is_empty() {
        let key = read_string(&mut rest)?;
        rest = rest.strip_prefix('=')?;
        let value = read_string(&mut rest)?;
        if operation.get(&key).is_some() || !(rest.is_empty() || rest.starts_with(' ')) {
            return None;
        }
        operation.set(&key, &value);
        rest = rest.trim_start();
    }
    Some(operation)
}

/// Reads a string that [`write_string`] has written.
fn read_string(from: &mut &str) -> Option<String> {
    let Some(quoted) = from.strip_prefix('"') else {
        let end = from.find(['=', ' ']).unwrap_or(from.len());
        let (bare, rest) = from.split_at_checked(end)?;
        *from = rest;
        return Some(bare.to_owned());
    };
    let mut string = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => break,
            '\\' => string.push(chars.next()?),
            c => string.push(c),
        }
    }
    *from = chars.as_str();
    Some(string)
}

/// Returns the text that precedes the value of field number `at`.
fn field_prefix(at: usize, field: &str) -> Box<[u8]> {
    let mut before = Vec::new();
    if at > 0 {
        before.push(b' ');
    }
    write_string(field.as_bytes(), &mut before);
    before.push(b'=');
    before.into()
}

/// Writes a string: bare if that is unambiguous, otherwise in quotes, with a backslash before each quote and backslash.
fn write_string(string: &[u8], out: &mut Vec<u8>) {
    if operation_text::is_bare(string) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn actor(fields: &[&str], pairs: &[(&str, &str)]) -> String {
        let fields: Vec<_> = fields.iter().map(|field| (*field).to_owned()).collect();
        let mut out = Vec::new();
        ActorFields::new(&fields).write(&pairs.iter().copied().collect(), &mut out);
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
        let fields = ActorFields::new(&["user".to_owned(), "path".to_owned()]);
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
            let fields = ["k".to_owned(), "a key".to_owned()];
            let actor = actor(&["k", "a key"], &[("k", &one), ("a key", &other)]);
            prop_assert_eq!(ActorFields::new(&fields).canonical(&actor), Some(actor));
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
}
