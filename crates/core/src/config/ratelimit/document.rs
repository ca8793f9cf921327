//! The content of a YAML document of envoyproxy/ratelimit: its mappings with line numbers, before validation.
//!
//! Unknown and repeated keys are kept so that they can be reported. Scalars stay text if they are text to ratelimit:
//! `0x10` is a string of four characters there.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A document of a file.
#[derive(Debug)]
pub enum Content {
    Mapping(Box<Document>),
    /// A list, which ratelimit does not read.
    List,
}

/// A mapping, which defines one domain. A key without a value counts as absent.
#[derive(Debug, Default)]
pub struct Document {
    pub domain: Option<Spanned<String>>,
    pub descriptors: Option<Vec<Spanned<Descriptor>>>,
    /// The kind of a Kubernetes manifest.
    pub kind: Option<Spanned<String>>,
    /// The texts of a ConfigMap, by name.
    pub data: Texts,
    pub odd_keys: OddKeys,
}

/// Texts by name.
#[derive(Debug, Default)]
pub struct Texts(pub Vec<(Spanned<String>, Spanned<String>)>);

/// The keys of a mapping that are to be reported.
#[derive(Debug, Default)]
pub struct OddKeys {
    pub unknown: Vec<Spanned<String>>,
    pub repeated: Vec<Repeated>,
}

/// A key that a mapping has again. The last value counts, as in ratelimit.
#[derive(Debug)]
pub struct Repeated {
    pub key: Spanned<String>,
    /// The line where the key stands before.
    pub before: usize,
}

/// An entry of a `descriptors` list.
#[derive(Debug, Default)]
pub struct Descriptor {
    pub key: Option<Spanned<String>>,
    pub value: Option<Spanned<String>>,
    pub rate_limit: Option<Spanned<RateLimit>>,
    pub shadow_mode: Option<Spanned<bool>>,
    pub quota_mode: Option<Spanned<bool>>,
    pub detailed_metric: Option<Spanned<bool>>,
    pub value_to_metric: Option<Spanned<bool>>,
    pub share_threshold: Option<Spanned<bool>>,
    /// The line of the key, unless it is empty.
    pub metadata: Option<usize>,
    pub descriptors: Vec<Spanned<Descriptor>>,
    pub odd_keys: OddKeys,
}

#[derive(Debug, Default)]
pub struct RateLimit {
    pub unit: Option<Spanned<String>>,
    pub requests_per_unit: Option<Spanned<String>>,
    pub unlimited: Option<Spanned<bool>>,
    pub name: Option<Spanned<String>>,
    pub replaces: Vec<Spanned<Replaces>>,
    pub odd_keys: OddKeys,
}

#[derive(Debug, Default)]
pub struct Replaces {
    pub name: Option<Spanned<String>>,
    pub odd_keys: OddKeys,
}

/// Returns whether ratelimit accepts a key with this name. It only checks the name, and ignores a key in the wrong
/// place.
pub fn is_known(key: &str) -> bool {
    const KNOWN: [&str; 16] = [
        "domain",
        "key",
        "value",
        "descriptors",
        "rate_limit",
        "unit",
        "requests_per_unit",
        "unlimited",
        "shadow_mode",
        "quota_mode",
        "name",
        "replaces",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
    ];
    KNOWN.contains(&key)
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

impl Document {
    /// Returns the lines of all limits with `quota_mode`, in order. Ratelimit ignores the key on entries without a
    /// limit.
    pub fn quotas(&self) -> Vec<usize> {
        let mut lines = Vec::new();
        collect_quotas(self.descriptors.as_deref().unwrap_or_default(), &mut lines);
        lines
    }
}

fn collect_quotas(descriptors: &[Spanned<Descriptor>], lines: &mut Vec<usize>) {
    for Spanned { value: descriptor, .. } in descriptors {
        let is_limited = descriptor.rate_limit.as_ref().is_some_and(|given| !is_set(&given.value.unlimited));
        let quota_mode = descriptor.quota_mode.as_ref().filter(|switch| switch.value && is_limited);
        lines.extend(quota_mode.map(line));
        collect_quotas(&descriptor.descriptors, lines);
    }
}

/// A mapping whose fields are read by key.
trait Fields: Default {
    const WHAT: &str;

    fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error>;

    fn odd_keys(&mut self) -> &mut OddKeys;
}

struct FieldsVisitor<T>(PhantomData<T>);

impl<'de, T: Fields> Visitor<'de> for FieldsVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let (mut fields, mut lines) = (T::default(), HashMap::new());
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            if let Some(before) = lines.insert(key.value.clone(), line(&key)) {
                fields.odd_keys().repeated.push(Repeated { key: key.clone(), before });
            }
            fields.read(key, &mut map)?;
        }
        Ok(fields)
    }
}

macro_rules! deserialize_fields {
    ($($mapping:ty),*) => {$(
        impl<'de> Deserialize<'de> for $mapping {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(FieldsVisitor(PhantomData))
            }
        }
    )*};
}

deserialize_fields!(Document, Descriptor, RateLimit, Replaces);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Document::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Content, A::Error> {
        FieldsVisitor(PhantomData).visit_map(map).map(|document| Content::Mapping(Box::new(document)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Content::List)
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
        while let Some(text) = map.next_entry()? {
            texts.0.push(text);
        }
        Ok(texts)
    }
}

/// Reads a list. Null is an empty list.
fn list<'de, T: Deserialize<'de>, A: MapAccess<'de>>(map: &mut A) -> Result<Vec<T>, A::Error> {
    Ok(map.next_value::<Option<Vec<T>>>()?.unwrap_or_default())
}

fn unknown<'de, A: MapAccess<'de>>(
    fields: &mut impl Fields,
    key: Spanned<String>,
    map: &mut A,
) -> Result<(), A::Error> {
    fields.odd_keys().unknown.push(key);
    map.next_value::<IgnoredAny>().map(|_| ())
}

impl Fields for Document {
    const WHAT: &str = "a mapping with `domain` and `descriptors`";

    fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error> {
        match key.value.as_str() {
            "domain" => self.domain = map.next_value()?,
            "descriptors" => self.descriptors = Some(list(map)?),
            "kind" => self.kind = map.next_value()?,
            "data" => self.data = map.next_value::<Option<_>>()?.unwrap_or_default(),
            _ => unknown(self, key, map)?,
        }
        Ok(())
    }

    fn odd_keys(&mut self) -> &mut OddKeys {
        &mut self.odd_keys
    }
}

impl Fields for Descriptor {
    const WHAT: &str = "a mapping with `key`";

    fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error> {
        match key.value.as_str() {
            "key" => self.key = map.next_value()?,
            "value" => self.value = map.next_value()?,
            "rate_limit" => self.rate_limit = map.next_value()?,
            "shadow_mode" => self.shadow_mode = map.next_value()?,
            "quota_mode" => self.quota_mode = map.next_value()?,
            "detailed_metric" => self.detailed_metric = map.next_value()?,
            "value_to_metric" => self.value_to_metric = map.next_value()?,
            "share_threshold" => self.share_threshold = map.next_value()?,
            "metadata" => {
                let given = map.next_value::<Option<IgnoredAny>>()?;
                self.metadata = given.map(|IgnoredAny| line(&key));
            }
            "descriptors" => self.descriptors = list(map)?,
            _ => unknown(self, key, map)?,
        }
        Ok(())
    }

    fn odd_keys(&mut self) -> &mut OddKeys {
        &mut self.odd_keys
    }
}

impl Fields for RateLimit {
    const WHAT: &str = "a mapping with `unit` and `requests_per_unit`";

    fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error> {
        match key.value.as_str() {
            "unit" => self.unit = map.next_value()?,
            "requests_per_unit" => self.requests_per_unit = map.next_value()?,
            "unlimited" => self.unlimited = map.next_value()?,
            "name" => self.name = map.next_value()?,
            "replaces" => self.replaces = list(map)?,
            _ => unknown(self, key, map)?,
        }
        Ok(())
    }

    fn odd_keys(&mut self) -> &mut OddKeys {
        &mut self.odd_keys
    }
}

impl Fields for Replaces {
    const WHAT: &str = "a mapping with `name`";

    fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error> {
        match key.value.as_str() {
            "name" => self.name = map.next_value()?,
            _ => unknown(self, key, map)?,
        }
        Ok(())
    }

    fn odd_keys(&mut self) -> &mut OddKeys {
        &mut self.odd_keys
    }
}
