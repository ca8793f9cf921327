//! The content of a YAML document of envoyproxy/ratelimit: its mappings with line numbers, before validation.
//!
//! Unknown and repeated keys are kept so that they can be reported. Scalars stay text if they are text to ratelimit:
//! `0x10` is a string of four characters there.
//!
//! [`read`] finds them in a file: in its documents, and in the texts of a Kubernetes ConfigMap.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options, Spanned};

use crate::config::Problems;
use crate::config::document::MAX_FILE_BYTES;

/// A document of a file. Ratelimit does not read a list.
pub type Content = MappingOrList<Document, IgnoredAny>;

#[derive(Debug)]
pub enum MappingOrList<T, L> {
    Mapping(Box<T>),
    List(Vec<L>),
}

/// Texts by name, each name once.
#[derive(Debug, Default)]
pub struct Texts {
    pub texts: Vec<(Spanned<String>, Spanned<String>)>,
    pub repeated: Vec<Repeated>,
}

/// The keys of a mapping that are to be reported.
#[derive(Debug, Default)]
pub struct OddKeys {
    pub unknown: Vec<Spanned<String>>,
    pub repeated: Vec<Repeated>,
}

/// A key that a mapping has again, itself or in a mapping that it merges. The last value counts, as in ratelimit.
#[derive(Debug)]
pub struct Repeated {
    pub key: Spanned<String>,
    /// The line where the key stands before.
    pub before: usize,
}

impl Repeated {
    /// Advice for the operator.
    pub const FIX: &str = "remove one of them";

    /// Describes the repetition.
    pub fn what(&self) -> String {
        let (key, before) = (&self.key.value, self.before);
        let counts = if key == "rate_limit" { "the last value of each of its keys" } else { "the value here" };
        format!("`{key}` is on line {before}, too, and {counts} counts, as in ratelimit")
    }
}

/// Declares a mapping. A field has the value of the key with its name, and a key without a value counts as absent.
macro_rules! mapping {
    ($(#[$doc:meta])* $name:ident is $what:literal { $($(#[$field_doc:meta])* $field:ident: $value:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $value,)*
            pub odd_keys: OddKeys,
        }

        impl Mapping for $name {
            const WHAT: &str = $what;
            const KEYS: &[&str] = &[$(stringify!($field)),*];

            fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error> {
                match key.value.as_str() {
                    $(stringify!($field) => self.$field.read(map),)*
                    _ => {
                        self.odd_keys.unknown.push(key);
                        map.next_value::<IgnoredAny>().map(|_| ())
                    }
                }
            }

            fn merge(&mut self, merged: Self) -> Vec<&'static str> {
                self.odd_keys.unknown.extend(merged.odd_keys.unknown);
                self.odd_keys.repeated.extend(merged.odd_keys.repeated);
                let replaced = [$((stringify!($field), self.$field.merge(merged.$field))),*];
                replaced.into_iter().filter(|(_, is_replaced)| *is_replaced).map(|(name, _)| name).collect()
            }

            fn odd_keys(&mut self) -> &mut OddKeys {
                &mut self.odd_keys
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(MappingVisitor(PhantomData))
            }
        }
    };
}

mapping! {
    /// A document that defines one domain, or a Kubernetes manifest.
    Document is "a mapping with `domain` and `descriptors`" {
        domain: Option<Spanned<String>>,
        descriptors: Option<Vec<Spanned<Descriptor>>>,
        /// The kind of a manifest.
        kind: Option<Spanned<String>>,
        /// The texts of a ConfigMap, by name.
        data: Option<Spanned<Texts>>,
    }
}

mapping! {
    /// An entry of a `descriptors` list.
    Descriptor is "a mapping with `key`" {
        key: Option<Spanned<String>>,
        value: Option<Spanned<String>>,
        shadow_mode: Option<Spanned<bool>>,
        quota_mode: Option<Spanned<bool>>,
        detailed_metric: Option<Spanned<bool>>,
        value_to_metric: Option<Spanned<bool>>,
        share_threshold: Option<Spanned<bool>>,
        metadata: Option<Spanned<IgnoredAny>>,
        rate_limit: Option<Spanned<RateLimit>>,
        descriptors: Option<Vec<Spanned<Descriptor>>>,
    }
}

mapping! {
    /// The limit of an entry.
    RateLimit is "a mapping with `unit` and `requests_per_unit`" {
        unit: Option<Spanned<String>>,
        requests_per_unit: Option<Spanned<String>>,
        unlimited: Option<Spanned<bool>>,
        name: Option<Spanned<String>>,
        replaces: Option<Vec<Spanned<Replaces>>>,
    }
}

mapping! {
    /// A limit that another one replaces.
    Replaces is "a mapping with `name`" {
        name: Option<Spanned<String>>,
    }
}

/// Returns whether ratelimit accepts a key with this name. It only checks the name, and ignores a key in the wrong
/// place.
pub fn is_known(key: &str) -> bool {
    let of_manifests = ["kind", "data"].contains(&key);
    !of_manifests && [Document::KEYS, Descriptor::KEYS, RateLimit::KEYS, Replaces::KEYS].concat().contains(&key)
}

/// Returns the line of `node`, from 1.
pub fn line<T>(node: &Spanned<T>) -> usize {
    usize::try_from(node.referenced.line()).unwrap_or(usize::MAX)
}

/// Returns the text of `node`; `None` if it is absent or empty, which is the same to ratelimit.
pub fn text(node: &Option<Spanned<String>>) -> Option<&str> {
    node.as_ref().map(|text| text.value.as_str()).filter(|text| !text.is_empty())
}

pub fn is_set(switch: &Option<Spanned<bool>>) -> bool {
    switch.as_ref().is_some_and(|switch| switch.value)
}

/// Returns the lines of all limits with `quota_mode`, in order. Ratelimit ignores the key on entries without a limit.
pub fn quotas(descriptors: &Option<Vec<Spanned<Descriptor>>>) -> Vec<usize> {
    let with_nested = |Spanned { value: descriptor, .. }: &Spanned<Descriptor>| {
        let is_limited = descriptor.rate_limit.as_ref().is_some_and(|given| !is_set(&given.value.unlimited));
        let quota_mode = descriptor.quota_mode.as_ref().filter(|switch| switch.value && is_limited);
        quota_mode.map(line).into_iter().chain(quotas(&descriptor.descriptors))
    };
    descriptors.iter().flatten().flat_map(with_nested).collect()
}

/// A mapping whose fields are read by key.
trait Mapping: Default {
    const WHAT: &str;
    const KEYS: &[&str];

    fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error>;

    /// Puts the fields of `merged` in place of these. Returns the names of those that both have.
    fn merge(&mut self, merged: Self) -> Vec<&'static str>;

    fn odd_keys(&mut self) -> &mut OddKeys;
}

/// A field of a mapping.
trait Field {
    /// Reads the value of its key.
    fn read<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error>;

    /// Puts the value of a merged mapping in place of this one, if it has one. Returns whether both have one.
    fn merge(&mut self, merged: Self) -> bool;
}

/// The value of a key that may be absent.
trait Value: DeserializeOwned {
    /// Puts `given` in place of the value that the mapping has.
    fn put(known: &mut Option<Spanned<Self>>, given: Option<Spanned<Self>>) {
        *known = given;
    }
}

impl Value for String {}

impl Value for bool {}

impl Value for IgnoredAny {}

impl Value for Texts {}

impl Value for RateLimit {
    /// Ratelimit's parser decodes a second limit into the first one, so keys that only the first one has stay.
    fn put(known: &mut Option<Spanned<Self>>, given: Option<Spanned<Self>>) {
        match (known, given) {
            (Some(known), Some(given)) => {
                known.value.merge(given.value);
                (known.referenced, known.defined) = (given.referenced, given.defined);
            }
            (known, given) => *known = given,
        }
    }
}

impl<T: Value> Field for Option<Spanned<T>> {
    fn read<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        T::put(self, map.next_value()?);
        Ok(())
    }

    fn merge(&mut self, merged: Self) -> bool {
        let (has_value, is_given) = (self.is_some(), merged.is_some());
        if is_given {
            T::put(self, merged);
        }
        has_value && is_given
    }
}

impl<T: DeserializeOwned> Field for Option<Vec<T>> {
    /// Reads a list. Null is an empty list.
    fn read<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        *self = Some(map.next_value::<Option<_>>()?.unwrap_or_default());
        Ok(())
    }

    fn merge(&mut self, merged: Self) -> bool {
        merged.is_some() && std::mem::replace(self, merged).is_some()
    }
}

/// The key whose value is merged: a mapping, or a list of mappings. The first of them has precedence.
const MERGE: &str = "<<";

struct MappingVisitor<T>(PhantomData<T>);

impl<'de, T: Mapping + Deserialize<'de>> Visitor<'de> for MappingVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let (mut fields, mut lines) = (T::default(), HashMap::new());
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            if key.value == MERGE {
                // Ratelimit's parser decodes keys in their order, so a merge replaces the keys above it.
                let merged = match map.next_value()? {
                    MappingOrList::Mapping(mapping) => vec![*mapping],
                    MappingOrList::List(mappings) => mappings,
                };
                for merged in merged.into_iter().rev() {
                    for name in fields.merge(merged) {
                        if let Some(before) = lines.get(name).copied() {
                            let key = Spanned::new(name.to_owned(), key.referenced, key.defined);
                            fields.odd_keys().repeated.push(Repeated { key, before });
                        }
                    }
                }
                continue;
            }
            if let Some(before) = lines.insert(key.value.clone(), line(&key)) {
                fields.odd_keys().repeated.push(Repeated { key: key.clone(), before });
            }
            fields.read(key, &mut map)?;
        }
        Ok(fields)
    }
}

impl<'de, T: Mapping + Deserialize<'de>, L: Deserialize<'de>> Deserialize<'de> for MappingOrList<T, L> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MappingOrListVisitor(PhantomData))
    }
}

struct MappingOrListVisitor<T, L>(PhantomData<(T, L)>);

impl<'de, T: Mapping + Deserialize<'de>, L: Deserialize<'de>> Visitor<'de> for MappingOrListVisitor<T, L> {
    type Value = MappingOrList<T, L>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        MappingVisitor(PhantomData).visit_map(map).map(|mapping| MappingOrList::Mapping(Box::new(mapping)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(MappingOrList::List)
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TextsVisitor)
    }
}

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
        let mut texts = Texts::default();
        while let Some((name, text)) = map.next_entry::<Spanned<String>, _>()? {
            match texts.texts.iter_mut().find(|(known, _)| known.value == name.value) {
                Some(known) => {
                    texts.repeated.push(Repeated { key: name.clone(), before: line(&known.0) });
                    *known = (name, text);
                }
                None => texts.texts.push((name, text)),
            }
        }
        Ok(texts)
    }
}

/// Maximum number of scalars, lists, mappings and their ends in a file. A file of [`MAX_FILE_BYTES`] has fewer, unless its
/// aliases stand for many.
const MAX_EVENTS: usize = MAX_FILE_BYTES as usize / 2;
/// Maximum number of them that aliases stand for. Ratelimit's parser refuses files with more than about 400,000 such values.
const MAX_EVENTS_OF_ALIASES: usize = 1_000_000;

/// A document, and the text that it is in.
pub type Source = (Document, Rc<str>);

/// Reads a file's documents that define a domain. `None` if the file has no such document, or one that is not ratelimit's. Then
/// `problems` says why.
pub fn read(text: &str, problems: &mut Problems) -> Option<Vec<Source>> {
    let (mut documents, source) = (Vec::new(), Rc::from(text));
    for content in parse(text, problems)? {
        let line = line(&content);
        match content.value {
            Content::Mapping(manifest) if manifest.domain.is_none() && manifest.kind.is_some() => {
                match manifest.kind.as_ref().map_or("", |kind| &kind.value) {
                    "ConfigMap" => add_config_map(&mut documents, &manifest, problems)?,
                    kind => {
                        problems.warning(line, format!("the {kind} is skipped: it has no limits"), "nothing to do");
                    }
                }
            }
            content => {
                let document = domain(content, line, documents.is_empty(), problems)?;
                documents.push((document, Rc::clone(&source)));
            }
        }
    }
    if documents.is_empty() {
        let fix = "give the file with `domain` and `descriptors`, or a ConfigMap that has it";
        problems.error(1_usize, "`domain` is missing, because the file has no limits", fix);
        return None;
    }
    Some(documents)
}

/// Reads all documents. Empty ones, such as the one after a final `---`, are left out.
fn parse(text: &str, problems: &mut Problems) -> Option<Vec<Spanned<Content>>> {
    let report = |error: serde_saphyr::Error| {
        let line = error.location().and_then(|location| usize::try_from(location.line()).ok()).unwrap_or(1);
        problems.error(line, format!("cannot be read as ratelimit's YAML: {error}"), "correct it there");
    };
    serde_saphyr::from_multiple_with_options(text, options()).map_err(report).ok()
}

/// Returns options that allow all files up to the maximum size, unless their aliases stand for too much. Merges are read as keys,
/// because their place matters.
fn options() -> Options {
    let budget = serde_saphyr::budget! {
        max_events: MAX_EVENTS,
        max_nodes: MAX_EVENTS,
        max_aliases: MAX_EVENTS,
        max_anchors: MAX_EVENTS,
        max_recorded_anchor_events: MAX_EVENTS,
        max_merge_keys: MAX_EVENTS,
        max_documents: MAX_EVENTS,
        enforce_alias_anchor_ratio: false,
    };
    serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_EVENTS_OF_ALIASES },
        budget: budget,
    }
}

/// Adds the documents in the texts of a ConfigMap, with their lines.
fn add_config_map(documents: &mut Vec<Source>, manifest: &Document, problems: &mut Problems) -> Option<()> {
    let (texts, repeated) =
        manifest.data.as_ref().map_or((&[][..], &[][..]), |data| (&data.value.texts, &data.value.repeated));
    for repeated in manifest.odd_keys.repeated.iter().chain(repeated) {
        problems.warning(line(&repeated.key), repeated.what(), Repeated::FIX);
    }
    for (_, value) in texts {
        let above = "\n".repeat(line(value).saturating_sub(1));
        let source: Rc<str> = (above + &value.value).into();
        for (number, content) in parse(&source, problems)?.into_iter().enumerate() {
            let line = line(&content);
            documents.push((domain(content.value, line, number == 0, problems)?, Rc::clone(&source)));
        }
    }
    Some(())
}

/// Returns the document of a domain.
fn domain(content: Content, line: usize, is_first: bool, problems: &mut Problems) -> Option<Document> {
    let Content::Mapping(document) = content else {
        let what = "this is a list, and not a configuration of ratelimit";
        problems.error(line, what, "for limits of limitador, see docs/migrating.md#from-limitador");
        return None;
    };
    if !is_first {
        let what = "this is not the first document, and ratelimit itself reads only that one";
        problems.warning(line, what, "write a file for each domain if ratelimit is to read them, too");
    }
    Some(*document)
}
