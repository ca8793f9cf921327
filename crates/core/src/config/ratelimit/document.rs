//! The content of a YAML document of envoyproxy/ratelimit: its mappings with line numbers, before validation.
//!
//! Unknown and repeated keys are kept so that they can be reported. Scalars stay text if they are text to ratelimit:
//! `0x10` is a string of four characters there.
//!
//! [`read`] finds them in a file: in its documents, and in the texts of a Kubernetes ConfigMap. It says what a file is that
//! has none.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options, Spanned};

use crate::config::Problems;
use crate::config::document::MAX_FILE_BYTES;

/// A document of a file.
#[derive(Debug)]
pub enum Content {
    Mapping(Box<Document>),
    /// A list, which ratelimit does not read.
    List,
}

impl Content {
    /// Sets `is_text` of all numbers. `text` is the file's.
    pub fn mark_quoted_numbers(&mut self, text: &str) {
        let Self::Mapping(document) = self else { return };
        for descriptor in document.descriptors.iter_mut().flatten() {
            descriptor.value.mark_quoted_numbers(text);
        }
    }
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
    /// Whether the number is in quotes, which makes it a text.
    pub is_text: bool,
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

impl Descriptor {
    /// Sets `is_text` of all numbers in the entry. `text` is the file's.
    pub fn mark_quoted_numbers(&mut self, text: &str) {
        if let Some(Spanned { value: limit, .. }) = &mut self.rate_limit {
            let offset = limit.requests_per_unit.as_ref().and_then(|number| number.defined.span().byte_offset());
            let first = offset.and_then(|offset| text.as_bytes().get(usize::try_from(offset).ok()?));
            limit.is_text = matches!(first, Some(b'"' | b'\''));
        }
        for nested in &mut self.descriptors {
            nested.value.mark_quoted_numbers(text);
        }
    }
}

/// A mapping whose fields are read by key.
trait Fields: Default {
    const WHAT: &str;

    fn read<'de, A: MapAccess<'de>>(&mut self, key: Spanned<String>, map: &mut A) -> Result<(), A::Error>;

    /// Puts the fields of `merged` in place of these. Returns the names of those that both have.
    fn merge(&mut self, merged: Self) -> Vec<&'static str>;

    fn odd_keys(&mut self) -> &mut OddKeys;
}

/// The key whose value is merged: a mapping, or a list of mappings. The first of them has precedence.
const MERGE: &str = "<<";

struct FieldsVisitor<T>(PhantomData<T>);

impl<'de, T: Fields + Deserialize<'de>> Visitor<'de> for FieldsVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let (mut fields, mut lines) = (T::default(), HashMap::new());
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            if key.value == MERGE {
                // Ratelimit's parser decodes keys in their order, so a merge replaces the keys above it.
                for mut merged in map.next_value::<Merged<T>>()?.0.into_iter().rev() {
                    let (odd_keys, theirs) = (fields.odd_keys(), std::mem::take(merged.odd_keys()));
                    odd_keys.unknown.extend(theirs.unknown);
                    odd_keys.repeated.extend(theirs.repeated);
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

/// The mappings of a merge.
struct Merged<T>(Vec<T>);

impl<'de, T: Fields + Deserialize<'de>> Deserialize<'de> for Merged<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MergedVisitor(PhantomData))
    }
}

struct MergedVisitor<T>(PhantomData<T>);

impl<'de, T: Fields + Deserialize<'de>> Visitor<'de> for MergedVisitor<T> {
    type Value = Merged<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or a list of such mappings", T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Merged<T>, A::Error> {
        FieldsVisitor(PhantomData).visit_map(map).map(|merged| Merged(vec![merged]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merged<T>, A::Error> {
        let mut merged = Vec::new();
        while let Some(mapping) = list.next_element()? {
            merged.push(mapping);
        }
        Ok(Merged(merged))
    }
}

/// Puts each of these fields that `merged` has in place of the one of `fields`. Evaluates to the names of those that both have.
macro_rules! merge_fields {
    ($fields:ident, $merged:ident: $($field:ident),*) => {{
        let mut replaced = Vec::new();
        $(if $merged.$field.is_some() && std::mem::replace(&mut $fields.$field, $merged.$field).is_some() {
            replaced.push(stringify!($field));
        })*
        replaced
    }};
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

    fn merge(&mut self, merged: Self) -> Vec<&'static str> {
        if !merged.data.texts.is_empty() {
            self.data = merged.data;
        }
        merge_fields!(self, merged: domain, descriptors, kind)
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
            "rate_limit" => {
                let limit = map.next_value::<Option<_>>()?;
                self.set_limit(limit);
            }
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

    fn merge(&mut self, merged: Self) -> Vec<&'static str> {
        let (has_limit, has_entries) = (self.rate_limit.is_some(), !self.descriptors.is_empty());
        let mut replaced = merge_fields!(self, merged: key, value, shadow_mode, quota_mode, detailed_metric, value_to_metric,
            share_threshold, metadata);
        if merged.rate_limit.is_some() {
            self.set_limit(merged.rate_limit);
            replaced.extend(has_limit.then_some("rate_limit"));
        }
        if !merged.descriptors.is_empty() {
            self.descriptors = merged.descriptors;
            replaced.extend(has_entries.then_some("descriptors"));
        }
        replaced
    }

    fn odd_keys(&mut self) -> &mut OddKeys {
        &mut self.odd_keys
    }
}

impl Descriptor {
    /// Sets the limit. Ratelimit's parser decodes a second limit into the first one, so keys that only the first one has stay.
    fn set_limit(&mut self, limit: Option<Spanned<RateLimit>>) {
        match (&mut self.rate_limit, limit) {
            (Some(known), Some(mut limit)) => {
                let odd_keys = std::mem::take(&mut limit.value.odd_keys);
                known.value.odd_keys.unknown.extend(odd_keys.unknown);
                known.value.odd_keys.repeated.extend(odd_keys.repeated);
                known.value.merge(limit.value);
                (known.referenced, known.defined) = (limit.referenced, limit.defined);
            }
            (known, limit) => *known = limit,
        }
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

    fn merge(&mut self, merged: Self) -> Vec<&'static str> {
        if !merged.replaces.is_empty() {
            self.replaces = merged.replaces;
        }
        merge_fields!(self, merged: unit, requests_per_unit, unlimited, name)
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

    fn merge(&mut self, merged: Self) -> Vec<&'static str> {
        merge_fields!(self, merged: name)
    }

    fn odd_keys(&mut self) -> &mut OddKeys {
        &mut self.odd_keys
    }
}

/// Maximum number of scalars, lists, mappings and their ends in a file. A file of [`MAX_FILE_BYTES`] has fewer, unless its
/// aliases stand for many.
const MAX_EVENTS: usize = MAX_FILE_BYTES as usize / 2;
/// Maximum number of them that aliases stand for. Ratelimit's parser refuses files with more than about 400,000 such values.
const MAX_EVENTS_OF_ALIASES: usize = 1_000_000;

/// Reads a file's documents that define a domain. `None` if the file has no such document, or one that is not ratelimit's. Then
/// `problems` says why.
pub fn read(text: &str, problems: &mut Problems) -> Option<Vec<Document>> {
    let (mut documents, mut others) = (Vec::new(), Vec::new());
    for content in parse(text, problems)? {
        let line = line(&content);
        match content.value {
            Content::Mapping(manifest) if manifest.domain.is_none() && manifest.kind.is_some() => {
                match manifest.kind.as_ref().map(|kind| kind.value.as_str()) {
                    Some("ConfigMap") => add_config_map(&mut documents, &manifest, problems)?,
                    kind => others.push((line, kind.unwrap_or_default().to_owned())),
                }
            }
            content => documents.push(domain(content, line, documents.is_empty(), problems)?),
        }
    }
    if documents.is_empty() {
        report_none(&others, problems);
        return None;
    }
    for (line, kind) in others {
        problems.warning(line, format!("the {kind} is skipped: it has no limits"), "nothing to do");
    }
    Some(documents)
}

/// Reads all documents. Empty ones, such as the one after a final `---`, are left out.
fn parse(text: &str, problems: &mut Problems) -> Option<Vec<Spanned<Content>>> {
    match serde_saphyr::from_multiple_with_options(text, options()) {
        Ok(mut documents) => {
            documents.iter_mut().for_each(|document: &mut Spanned<Content>| document.value.mark_quoted_numbers(text));
            Some(documents)
        }
        Err(error) => {
            let line = error.location().and_then(|location| usize::try_from(location.line()).ok()).unwrap_or(1);
            let fix = "correct it there";
            problems.error(line, format!("cannot be read as ratelimit's YAML: {error}"), fix);
            None
        }
    }
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
fn add_config_map(documents: &mut Vec<Document>, manifest: &Document, problems: &mut Problems) -> Option<()> {
    for repeated in manifest.odd_keys.repeated.iter().chain(&manifest.data.repeated) {
        problems.warning(line(&repeated.key), repeated.what(), Repeated::FIX);
    }
    if manifest.data.texts.is_empty() {
        let line = manifest.kind.as_ref().map_or(1, line);
        problems.error(line, "the ConfigMap has no `data`", "give the file that has it");
        return None;
    }
    for (_, value) in &manifest.data.texts {
        let above = "\n".repeat(line(value).saturating_sub(1));
        for (number, content) in parse(&(above + &value.value), problems)?.into_iter().enumerate() {
            let line = line(&content);
            documents.push(domain(content.value, line, number == 0, problems)?);
        }
    }
    Some(())
}

/// Returns the document of a domain.
fn domain(content: Content, line: usize, is_first: bool, problems: &mut Problems) -> Option<Document> {
    let document = match content {
        Content::Mapping(document) => *document,
        Content::List => {
            let what = "this is a list, as limitador's limits are, and not a configuration of ratelimit";
            problems.error(line, what, "see docs/migrating.md#from-limitador");
            return None;
        }
    };
    let keys: Vec<_> = document.odd_keys.unknown.iter().map(|key| key.value.as_str()).collect();
    if document.domain.is_none() && document.descriptors.is_none() && !keys.is_empty() {
        let (what, fix) = if keys.contains(&"rateLimitsByDomain") {
            let what = "these are the actions of Envoy's routes, and not a configuration of ratelimit";
            (what.to_owned(), "give the file with `domain` and `descriptors`")
        } else {
            let shown: Vec<_> = keys.iter().take(3).map(|key| format!("`{key}`")).collect();
            let what =
                format!("this is not a configuration of ratelimit: it has no `domain`, but {}", shown.join(", "));
            (what, "if the configuration is below one of these keys, save that part as a file of its own")
        };
        problems.error(line, what, fix);
        return None;
    }
    if !is_first {
        let what = "this is not the first document, and ratelimit itself reads only that one";
        problems.warning(line, what, "write a file for each domain if ratelimit is to read them, too");
    }
    Some(document)
}

/// Reports that no document defines a domain.
fn report_none(others: &[(usize, String)], problems: &mut Problems) {
    let Some((line, _)) = others.first() else {
        let fix = "ratelimit rejects the file, too: add `domain: NAME`";
        return problems.error(1_usize, "`domain` is missing, because the file is empty", fix);
    };
    let mut kinds: Vec<_> = others.iter().map(|(_, kind)| kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let what = format!("this is a Kubernetes manifest ({}) without a ConfigMap of limits", kinds.join(", "));
    problems.error(*line, what, "give the ConfigMap, or the file that it is made from");
}
