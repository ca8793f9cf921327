//! The values of a request, read from the words of a RESP command, or from the query and the body of an HTTP request.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::declaration::{Field, Kind, Place};
use super::endpoints::Endpoint;
use divvy_core::json::WholeNumber;
use divvy_core::rules::{Operation, operation};
use divvy_core::suggestion::list;
use divvy_limiter::exceptions::is_owner;

/// Maximum length of a text that an error repeats (bytes).
const MAX_SHOWN: usize = 128;

/// The values of a request, by the names of their fields.
#[derive(Debug, Clone, Default)]
pub struct Arguments {
    values: Vec<(&'static str, Value)>,
    /// The pairs of an operation or an actor, or of the rule.
    pairs: Option<Operation>,
}

/// A value.
#[derive(Debug, Clone)]
enum Value {
    /// A text, a word, or the name of a rule.
    Text(String),
    Number(u64),
    /// The objects of a list.
    List(Vec<Arguments>),
}

/// A mistake in the words of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// There are more pairs than a request may have.
    #[error("more than {max} pairs")]
    ManyPairs {
        /// The maximum.
        max: usize,
    },
    /// Any other mistake, in words.
    #[error("{0}")]
    Mistake(String),
}

impl ArgumentError {
    /// Describes a value outside of its range. `name` names the field or the option.
    fn value(name: &str, given: &str, kind: Kind) -> Self {
        Self::Mistake(format!("{name} is '{}', but must be {kind}", shown(given.as_bytes())))
    }

    /// Describes a field or a parameter that is given twice.
    fn repeated(field: &str) -> Self {
        Self::Mistake(format!("the field '{}' is given twice", shown(field.as_bytes())))
    }
}

impl Arguments {
    fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        if let Value::Text(text) = self.value(name)? { Some(text) } else { None }
    }

    /// Returns a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        if let Value::Number(number) = self.value(name)? { Some(*number) } else { None }
    }

    /// Returns the objects of a list.
    pub fn list(&self, name: &str) -> &[Self] {
        if let Some(Value::List(list)) = self.value(name) { list } else { &[] }
    }

    /// Returns the pairs, if the request has some.
    pub fn pairs(&self) -> Option<&Operation> {
        self.pairs.as_ref()
    }

    /// Sets the pairs.
    #[must_use]
    pub fn with_pairs(self, pairs: Operation) -> Self {
        Self { pairs: Some(pairs), ..self }
    }

    fn has(&self, field: &Field) -> bool {
        self.value(field.name).is_some() || (field.kind == Kind::Rule && self.pairs.is_some())
    }

    fn put(&mut self, field: &Field, given: &str, name: &'static str) -> Result<(), ArgumentError> {
        let value = match field.kind {
            Kind::Text | Kind::Rule | Kind::Pairs => Some(Value::Text(given.to_owned())),
            Kind::Choice(words) => {
                let word = words.iter().find(|word| word.eq_ignore_ascii_case(given));
                word.map(|word| Value::Text((*word).to_owned()))
            }
            Kind::Number { .. } | Kind::Seconds => {
                let (min, max) = field.kind.range();
                // Only digits: `+5` and `05` are other texts of numbers, which Redis refuses, too.
                let is_plain = given == "0" || given.bytes().next().is_some_and(|first| matches!(first, b'1'..=b'9'));
                let number = given.parse().ok().filter(|number| is_plain && (min..=max).contains(number));
                number.map(Value::Number)
            }
            Kind::Owner => is_owner(given).then(|| Value::Text(given.to_owned())),
            Kind::List { .. } => None,
        };
        let value = value.ok_or_else(|| ArgumentError::value(name, given, field.kind))?;
        self.values.push((field.name, value));
        Ok(())
    }

    /// Reads the words after a command's name.
    ///
    /// # Errors
    /// An option is unknown or repeated, a value is out of range, or there are more than `max_pairs` pairs.
    pub fn from_words<'w>(
        endpoint: &Endpoint,
        words: impl Iterator<Item = &'w [u8]>,
        max_pairs: usize,
    ) -> Result<Self, ArgumentError> {
        let mut read = Self::default();
        read.take_words(endpoint, words, max_pairs)?;
        Ok(read)
    }

    /// Reads words as [`Self::from_words`] does. If it fails, the arguments before the mistake have been read.
    ///
    /// # Errors
    /// The errors of [`Self::from_words`].
    pub fn take_words<'w>(
        &mut self,
        endpoint: &Endpoint,
        words: impl Iterator<Item = &'w [u8]>,
        max_pairs: usize,
    ) -> Result<(), ArgumentError> {
        let mut words = words.peekable();
        for field in endpoint.fields.iter().filter(|field| field.place == Place::Position) {
            let is_pair = |word: &&[u8]| word.contains(&b'=');
            if matches!(field.kind, Kind::Pairs) || (field.kind == Kind::Rule && words.peek().is_some_and(is_pair)) {
                let words = std::iter::from_fn(|| words.next_if(is_pair));
                let pairs = words.map(|word| Ok(text(word)?.split_once('=').unwrap_or_default()));
                let pairs = read_pairs(pairs, max_pairs)?;
                if field.is_required && pairs.iter().next().is_none() {
                    let what = format!("expected key=value; the command is {}", endpoint.usage());
                    return Err(ArgumentError::Mistake(what));
                }
                self.pairs = Some(pairs);
            } else if let Some(word) = words.next() {
                self.put(field, text(word)?, field.name)?;
            }
        }
        while let Some(word) = words.next() {
            let unknown = || {
                let (word, usage) = (shown(word), endpoint.usage());
                ArgumentError::Mistake(format!("'{word}' is not an option here; the command is {usage}"))
            };
            let name = std::str::from_utf8(word).map_err(|_| unknown())?;
            let is_named = |field: &&Field| match (field.place, field.kind) {
                (Place::Option(option), _) => option.eq_ignore_ascii_case(name),
                (Place::Word, Kind::Choice(choices)) => choices.iter().any(|choice| choice.eq_ignore_ascii_case(name)),
                _ => false,
            };
            let field = endpoint.fields.iter().copied().find(is_named).filter(|field| !self.has(field));
            let field = field.ok_or_else(unknown)?;
            let value = if field.place == Place::Word { word } else { words.next().ok_or_else(unknown)? };
            let name = if let Place::Option(word) = field.place { word } else { field.name };
            self.put(field, text(value)?, name)?;
        }
        Ok(())
    }

    /// Reads the parameters of a query.
    ///
    /// # Errors
    /// A parameter is unknown, repeated or missing, a value is out of range, or there are more than `max_pairs` pairs.
    pub fn from_query(
        endpoint: &Endpoint,
        parameters: &[(String, String)],
        max_pairs: usize,
    ) -> Result<Self, ArgumentError> {
        let mut read = Self::default();
        let in_query = || endpoint.fields.iter().copied().filter(|field| !field.is_in_body);
        let field_of = |name: &str| in_query().find(|field| field.name == name && field.kind != Kind::Pairs);
        let mut others = parameters.iter().filter(|(name, _)| field_of(name).is_none()).peekable();
        if in_query().any(|field| field.kind == Kind::Pairs) {
            if others.peek().is_none() {
                let text = "the query names no actor: add ?FIELD=VALUE to the URL, as in ?user=ann";
                return Err(ArgumentError::Mistake(text.to_owned()));
            }
            read.pairs = Some(read_pairs(others.map(|(name, value)| Ok((&**name, &**value))), max_pairs)?);
        } else if let Some((name, _)) = others.next() {
            let names: Vec<_> = in_query().map(|field| format!("'{}'", field.name)).collect();
            let expected = if names.is_empty() { "none".to_owned() } else { list(&names, "or") };
            let name = shown(name.as_bytes());
            let text = format!("the query has an unknown parameter '{name}', expected {expected}");
            return Err(ArgumentError::Mistake(text));
        }
        for (name, value) in parameters {
            let Some(field) = field_of(name) else { continue };
            if read.has(field) {
                return Err(ArgumentError::repeated(name));
            }
            // No name of a rule has this character.
            if field.kind == Kind::Rule && value.contains('=') {
                let mistake = |_| ArgumentError::value(field.name, value, field.kind);
                read.pairs = Some(read_pairs(operation::pairs(value).map(|pair| pair.map_err(mistake)), max_pairs)?);
            } else {
                read.put(field, value, field.name)?;
            }
        }
        let is_missing = |field: &&Field| field.is_required && field.kind != Kind::Pairs && !read.has(field);
        let Some(Field { name, .. }) = in_query().find(is_missing) else { return Ok(read) };
        let text = format!("the query's parameter '{name}' is missing: add ?{name}=VALUE to the URL, or &{name}=VALUE");
        Err(ArgumentError::Mistake(text))
    }

    /// Returns how the fields in a JSON body are read, which are added to these arguments.
    pub fn with_body(self, endpoint: &'static Endpoint) -> BodySeed {
        BodySeed { fields: endpoint.fields, is_whole_body: true, read: self }
    }
}

/// Reads at most `max` pairs of an operation or an actor. Each field is compared with all others.
fn read_pairs<'p>(
    pairs: impl Iterator<Item = Result<(&'p str, &'p str), ArgumentError>>,
    max: usize,
) -> Result<Operation, ArgumentError> {
    let mut read = Operation::new();
    for (index, pair) in pairs.enumerate() {
        if index >= max {
            return Err(ArgumentError::ManyPairs { max });
        }
        let (field, value) = pair?;
        if !read.set(field, value) {
            return Err(ArgumentError::repeated(field));
        }
    }
    Ok(read)
}

fn text(word: &[u8]) -> Result<&str, ArgumentError> {
    std::str::from_utf8(word).map_err(|_| ArgumentError::Mistake(format!("'{}' is not valid UTF-8", shown(word))))
}

/// Returns the start of a word, for an error.
fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word.get(..MAX_SHOWN).unwrap_or(word)).into_owned()
}

/// Reads the fields of a JSON body.
pub struct BodySeed {
    fields: &'static [&'static Field],
    /// Whether the object is the body, which has some of the fields, and not an object in a list.
    is_whole_body: bool,
    read: Arguments,
}

impl<'de> DeserializeSeed<'de> for BodySeed {
    type Value = Arguments;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Arguments, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BodySeed {
    type Value = Arguments;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Arguments, M::Error> {
        let Self { fields, is_whole_body, mut read } = self;
        let in_body = || fields.iter().copied().filter(|field| field.is_in_body || !is_whole_body);
        let mut seen = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let Some(field) = in_body().find(|field| field.name == name) else {
                map.next_value::<IgnoredAny>()?;
                let expected: Vec<_> = in_body().map(|field| format!("`{}`", field.name)).collect();
                let name = shown(name.as_bytes());
                return Err(M::Error::custom(format_args!(
                    "unknown field `{name}`, expected {}",
                    list(&expected, "or")
                )));
            };
            if seen.contains(&field.name) {
                return Err(M::Error::duplicate_field(field.name));
            }
            seen.push(field.name);
            if let Kind::List { of, max } = field.kind {
                read.values.push((field.name, Value::List(map.next_value_seed(ListSeed { of, max })?)));
                continue;
            }
            let given = if matches!(field.kind, Kind::Number { .. } | Kind::Seconds) {
                map.next_value::<Option<WholeNumber>>()?.map(|WholeNumber(number)| number.to_string())
            } else {
                map.next_value()?
            };
            if let Some(given) = given {
                read.put(field, &given, field.name).map_err(M::Error::custom)?;
            }
        }
        match in_body().find(|field| field.is_required && !read.has(field)) {
            Some(field) => Err(M::Error::missing_field(field.name)),
            None => Ok(read),
        }
    }
}

/// Reads a list of objects.
struct ListSeed {
    of: &'static [&'static Field],
    max: usize,
}

impl<'de> DeserializeSeed<'de> for ListSeed {
    type Value = Vec<Arguments>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Arguments>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListSeed {
    type Value = Vec<Arguments>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Vec<Arguments>, S::Error> {
        let mut read = Vec::new();
        let seed = || BodySeed { fields: self.of, is_whole_body: false, read: Arguments::default() };
        while let Some(next) = list.next_element_seed(seed())? {
            if read.len() == self.max {
                return Err(S::Error::custom(format_args!("the list has more than {} entries", self.max)));
            }
            read.push(next);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ENDPOINTS;

    fn endpoint(words: &[&str]) -> (&'static Endpoint, usize) {
        let is = |endpoint: &&&Endpoint| {
            let (name, subcommand) = endpoint.command;
            name == words[0] && (subcommand.is_empty() || words.get(1) == Some(&subcommand))
        };
        let found = ENDPOINTS.iter().find(is).unwrap();
        (found, if found.command.1.is_empty() { 1 } else { 2 })
    }

    fn shown(read: Result<Arguments, ArgumentError>) -> String {
        let read = match read {
            Ok(read) => read,
            Err(error) => return error.to_string(),
        };
        let pairs = read.pairs.iter().flat_map(|pairs| pairs.iter()).map(|(field, value)| format!("{field}:{value}"));
        let values = read.values.iter().map(|(name, value)| match value {
            Value::Text(text) => format!("{name}={text}"),
            Value::Number(number) => format!("{name}={number}"),
            Value::List(list) => format!("{name}={}", list.len()),
        });
        pairs.chain(values).collect::<Vec<_>>().join(" ")
    }

    fn of_command(words: &[&str]) -> String {
        let (endpoint, named_by) = endpoint(words);
        shown(Arguments::from_words(endpoint, words[named_by..].iter().map(|word| word.as_bytes()), 4))
    }

    fn of_query(method: &str, path: &str, query: &[(&str, &str)]) -> String {
        let query: Vec<_> = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        shown(Arguments::from_query(crate::find(method, path).unwrap(), &query, 4))
    }

    #[test]
    fn words_follow_their_positions_and_options_come_in_any_order() {
        let rows: [(&[&str], &str); 14] = [
            (&["divvy.limit", "set", "r", "a", "5"], "rule=r actor=a credits=5"),
            (&["divvy.limit", "set", "r", "a", "0", "ex", "60"], "rule=r actor=a credits=0 expiresIn=60"),
            (&["divvy.limit", "list", "count", "5", "RULE", "r", "CURSOR", "7"], "count=5 rule=r cursor=7"),
            (
                &["divvy.block", "set", "*", "ip=::/0", "ex", "60", "reason", "a b"],
                "rule=* actor=ip=::/0 expiresIn=60 reason=a b",
            ),
            (
                &["divvy.allow", "set", "r", "a", "REASON", "ours", "EX", "3155760000"],
                "rule=r actor=a reason=ours expiresIn=3155760000",
            ),
            (&["divvy.allow", "get", "r", "a"], "rule=r actor=a"),
            (&["divvy.counters", "uploads", "COUNT", "10", "actor", "a=b"], "rule=uploads count=10 actor=a=b"),
            (&["divvy.counters", "a=*", "b=", "cursor", "=x"], "a:* b: cursor==x"),
            (&["divvy.counters", "actor", "ACTOR", "actor", "CURSOR", "0"], "rule=actor actor=actor cursor=0"),
            (
                &["divvy.top", "uploads", "taken", "last", "3600", "count", "5"],
                "rule=uploads order=taken last=3600 count=5",
            ),
            (&["divvy.top", "TAKEN", "COUNT", "1", "LAST", "60", "DENIED"], "rule=TAKEN count=1 last=60 order=denied"),
            (
                &["divvy.status", "user=a=b", "path=", "count", "10", "CURSOR", "7-ab"],
                "user:a=b path: count=10 cursor=7-ab",
            ),
            (&["divvy.reset", "a=b", "c="], "a:b c:"),
            (&["divvy.reset"], ""),
        ];
        for (words, expected) in rows {
            assert_eq!(of_command(words), expected, "{words:?}");
        }
    }

    #[test]
    fn wrong_words_are_named_with_the_usage() {
        let limit = "the command is DIVVY.LIMIT SET rule actor credits [EX seconds]";
        let seconds = "EX is '0', but must be a whole number of seconds from 1 to 3155760000, which is 100 years";
        let rows: [(&[&str], &str); 19] = [
            (&["divvy.limit", "set", "r", "a", "-1"], "credits is '-1', but must be a whole number from 0 to "),
            (&["divvy.limit", "set", "r", "a", "5", "EX", "0"], seconds),
            (&["divvy.limit", "set", "r", "a", "5", "EX"], limit),
            (&["divvy.limit", "set", "r", "a", "5", "PX", "6"], limit),
            (&["divvy.limit", "list", "COUNT", "0"], "COUNT is '0', but must be a whole number from 1 to 1000"),
            (&["divvy.block", "set", "r", "a", "EX", "5", "EX", "6"], "'EX' is not an option here"),
            (&["divvy.block", "list", "ACTOR", "a"], "DIVVY.BLOCK LIST [RULE rule] [CURSOR cursor] [COUNT count]"),
            (&["divvy.counters", "a", "b=c"], "DIVVY.COUNTERS rule | key=value... [ACTOR actor] [CURSOR cursor]"),
            (&["divvy.counters", "a", "COUNT", "1", "COUNT", "2"], "'COUNT' is not an option here"),
            (&["divvy.top", "a", "b"], "DIVVY.TOP rule | key=value... [DENIED | TAKEN] [LAST 60 | 3600] [COUNT count]"),
            (&["divvy.top", "a", "TAKEN", "DENIED"], "'DENIED' is not an option here"),
            (&["divvy.top", "a", "LAST", "61"], "LAST is '61', but must be 60 or 3600"),
            (&["divvy.top", "a", "COUNT", "1e2"], "COUNT is '1e2', but must be a whole number from 1 to 1000"),
            (&["divvy.status", "user"], "expected key=value; the command is DIVVY.STATUS key=value..."),
            (&["divvy.status", "COUNT", "5"], "expected key=value; the command is DIVVY.STATUS key=value..."),
            (&["divvy.status", "user=a", "COUNT", "1", "path=b"], "'path=b' is not an option here"),
            (&["divvy.status", "a=1", "b=2", "c=3", "d=4", "e=5"], "more than 4 pairs"),
            (&["divvy.status", "a=1", "a=2"], "the field 'a' is given twice"),
            (&["divvy.reset", "a=b", "COST", "1"], "'COST' is not an option here"),
        ];
        for (words, expected) in rows {
            assert!(of_command(words).contains(expected), "{words:?}: {}", of_command(words));
        }
    }

    #[test]
    fn parameters_are_fields_or_pairs() {
        for (path, query, expected) in [
            ("/v1/top", &[("rule", "b c"), ("last", "3600"), ("order", "taken")][..], "rule=b c last=3600 order=taken"),
            ("/v1/status", &[("user", "ann")], "user:ann"),
            ("/v1/status", &[("count", "7"), ("path", "/a b"), ("user", "")], "path:/a b user: count=7"),
            ("/v1/limits", &[("rule", "r"), ("actor", "a")], "rule=r actor=a"),
            ("/v1/counters", &[("rule", "a=\"b c\" d=*"), ("actor", "x=y")], "a:b c d:* actor=x=y"),
        ] {
            assert_eq!(of_query("GET", path, query), expected, "{path} {query:?}");
        }
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (path, query, expected) in [
            ("/v1/top", &[][..], "the query's parameter 'rule' is missing: add ?rule=VALUE to the URL, or &rule=VALUE"),
            ("/v1/top", &[("rule", "a"), ("order", "all")], "order is 'all', but must be denied or taken"),
            (
                "/v1/top",
                &[("rule", "a=\"b")],
                "rule is 'a=\"b', but must be the name of a rule, or its operation as in the rules file",
            ),
            ("/v1/top", &[("rule", "a=b"), ("rule", "c")], "the field 'rule' is given twice"),
            (
                "/v1/top",
                &[("rule", "a"), ("actor", "b")],
                "unknown parameter 'actor', expected 'rule', 'order', 'last' or 'count'",
            ),
            (
                "/v1/top",
                &[("rule", "a"), ("count", "1001")],
                "count is '1001', but must be a whole number from 1 to 1000",
            ),
            ("/v1/counters", &[("rule", "a"), ("rule", "b")], "the field 'rule' is given twice"),
            ("/v1/status", &[], "names no actor"),
            ("/v1/status", &[("count", "5")], "names no actor"),
            ("/v1/status", &[("user", "a"), ("user", "b")], "the field 'user' is given twice"),
            ("/v1/status", &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")], "more than 4 pairs"),
        ] {
            let error = of_query("GET", path, query);
            assert!(error.contains(expected), "{path} {query:?}: {error}");
        }
    }

    #[test]
    fn body_has_the_fields_of_the_operation_only() {
        let read = |body: &str| {
            let seed = Arguments::default().with_body(&crate::SET_LIMIT);
            let read = seed.deserialize(&mut serde_json::Deserializer::from_str(body));
            read.map_or_else(|error| error.to_string(), |read| shown(Ok(read)))
        };
        assert_eq!(read(r#"{"credits": 5, "expiresIn": null}"#), "credits=5");
        assert_eq!(read(r#"{"expiresIn": 60.0, "credits": 0}"#), "expiresIn=60 credits=0");
        for (body, expected) in [
            ("{}", "missing field `credits`"),
            (r#"{"credits": 5, "credits": 6}"#, "duplicate field `credits`"),
            (r#"{"credits": "5"}"#, "a whole number from 0"),
            (r#"{"credits": 5, "expiresIn": 0}"#, "must be a whole number of seconds from 1 to 3155760000"),
            (r#"{"credits": 5, "reason": "x"}"#, "unknown field `reason`, expected `credits` or `expiresIn`"),
            ("[]", "an object"),
        ] {
            assert!(read(body).contains(expected), "{body}: {}", read(body));
        }
    }

    #[test]
    fn body_has_lists_of_objects() {
        let read = |body: &str| {
            let seed = Arguments::default().with_body(&crate::endpoints::EDIT_BLOCKS);
            seed.deserialize(&mut serde_json::Deserializer::from_str(body)).map_err(|error| error.to_string())
        };
        let body = r#"{"owner": "x", "set": [{"rule": "*", "actor": "ip=::1", "expiresIn": 60}, {"actor": "b", "rule": "r"}]}"#;
        let found = read(body).unwrap();
        assert_eq!((found.text("owner"), found.list("remove").len()), (Some("x"), 0));
        let sets: Vec<_> = found.list("set").iter().map(|set| shown(Ok(set.clone()))).collect();
        assert_eq!(sets, ["rule=* actor=ip=::1 expiresIn=60", "actor=b rule=r"]);
        for (body, expected) in [
            (r#"{"set": [{"rule": "*"}]}"#, "missing field `actor`"),
            (r#"{"set": [{"rule": "*", "actor": "a", "owner": "x"}]}"#, "unknown field `owner`"),
            (r#"{"remove": [{"rule": "*", "actor": "a", "reason": "x"}]}"#, "unknown field `reason`"),
            (r#"{"set": {}}"#, "expected a list"),
            (r#"{"owner": "two words"}"#, "1 to 64 printable ASCII characters"),
            (&format!(r#"{{"remove": [{}]}}"#, [r#"{"rule": "*", "actor": "a"}"#; 1_001].join(",")), "more than 1000 "),
        ] {
            assert!(read(body).unwrap_err().contains(expected), "{body:.60}: {:?}", read(body));
        }
    }
}
