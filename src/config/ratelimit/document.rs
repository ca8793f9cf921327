//! The content of a YAML file of envoyproxy/ratelimit: its mappings with line numbers, before validation.
//!
//! Unknown keys are kept so that they can be reported. Scalars stay text if they are text to ratelimit: `0x10` is a
//! string of four characters there.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_saphyr::Spanned;

/// A file, which defines one domain. A key without a value counts as absent.
#[derive(Debug, Default)]
pub struct Document {
    pub domain: Option<Spanned<String>>,
    pub descriptors: Vec<Spanned<Descriptor>>,
    pub unknown: Vec<Spanned<String>>,
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
    pub unknown: Vec<Spanned<String>>,
}

#[derive(Debug, Default)]
pub struct RateLimit {
    pub unit: Option<Spanned<String>>,
    pub requests_per_unit: Option<Spanned<String>>,
    pub unlimited: Option<Spanned<bool>>,
    pub name: Option<Spanned<String>>,
    pub replaces: Vec<Spanned<Replaces>>,
    pub unknown: Vec<Spanned<String>>,
}

#[derive(Debug, Default)]
pub struct Replaces {
    pub name: Option<Spanned<String>>,
    pub unknown: Vec<Spanned<String>>,
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
        collect_quotas(&self.descriptors, &mut lines);
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
}

struct FieldsVisitor<T>(PhantomData<T>);

impl<'de, T: Fields> Visitor<'de> for FieldsVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut fields = T::default();
        while let Some(key) = map.next_key()? {
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

/// Reads a list. Null is an empty list.
fn list<'de, T: Deserialize<'de>, A: MapAccess<'de>>(map: &mut A) -> Result<Vec<T>, A::Error> {
    Ok(map.next_value::<Option<Vec<T>>>()?.unwrap_or_default())
}

fn unknown<'de, A: MapAccess<'de>>(
    into: &mut Vec<Spanned<String>>,
    key: Spanned<String>,
    map: &mut A,
) -> Result<(), A::Error> {
    into.push(key);
    map.next_value::<IgnoredAny>().map(|_| ())
}

impl Fields for Document {
    const WHAT: &str = "a mapping with `domain` and `descriptors`";

    fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error> {
        match key.value.as_str() {
            "domain" => self.domain = map.next_value()?,
            "descriptors" => self.descriptors = list(map)?,
            _ => unknown(&mut self.unknown, key, map)?,
        }
        Ok(())
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
            _ => unknown(&mut self.unknown, key, map)?,
        }
        Ok(())
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
            _ => unknown(&mut self.unknown, key, map)?,
        }
        Ok(())
    }
}

impl Fields for Replaces {
    const WHAT: &str = "a mapping with `name`";

    fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error> {
        match key.value.as_str() {
            "name" => self.name = map.next_value()?,
            _ => unknown(&mut self.unknown, key, map)?,
        }
        Ok(())
    }
}
