//! Reads domains from YAML as ratelimit does, which is as yaml.v2 decodes it: keys and merges of a mapping in their order, and a
//! second limit into the first one.
//!
//! Unlike ratelimit, this reads all documents of a file, and the texts of a Kubernetes ConfigMap. It also checks the earlier values
//! of repeated keys, even those that ratelimit never sees. The syntax is that of YAML 1.2: tabs separate words where yaml.v2 refuses
//! them.

use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;
use serde_json::{Map, Number};

use super::raw::{At, Finding, RawDomain, RawEntry, RawLimit, Requests};
use crate::config::Problems;
use crate::config::document::MAX_FILE_BYTES;
use crate::config::yaml::scalar::{Value, by_spelling};
use crate::config::yaml::{Content, Node, pairs, parse};
use crate::suggestion::nearest;
use crate::units::Approximate;

/// The keys that ratelimit knows. It only checks names, and ignores a key in the wrong place.
const KEYS: [&str; 16] = [
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

/// Takes a document if it is of another format, and returns whether it is.
pub type Others<'a> = &'a mut dyn FnMut(&Node<'_>, &mut Problems) -> bool;

/// Reads a file's documents that define a domain, and offers each document to `others` first. `None` if no document has limits, or
/// one is not ratelimit's. Then `problems` says why.
pub fn read(text: &str, problems: &mut Problems, others: Others<'_>) -> Option<Vec<RawDomain>> {
    let mut reader = Reader { problems, others, has_others: false, findings: Vec::new(), is_broken: false };
    let domains = reader.documents(text, None);
    if reader.is_broken {
        return None;
    }
    if domains.is_empty() && !reader.has_others {
        let fix = "give the file with `domain` and `descriptors`, or a ConfigMap that has it";
        problems.error(1_usize, "`domain` is missing, because the file has no limits", fix);
        return None;
    }
    Some(domains)
}

/// A key of a mapping, and its value.
struct Pair<'n, 'a> {
    key: &'n Node<'a>,
    value: &'n Node<'a>,
    /// The line of the `<<` that merges the mapping with this key.
    merged: Option<usize>,
}

/// A pair whose key is a text.
struct Field<'n, 'a> {
    line: usize,
    key: &'n str,
    value: &'n Node<'a>,
}

struct Reader<'p> {
    problems: &'p mut Problems,
    others: Others<'p>,
    /// Whether `others` took a document.
    has_others: bool,
    /// Problems of the current entry, or of the domain.
    findings: Vec<Finding>,
    /// Whether the file cannot be used: it is no YAML, or a value has the wrong type.
    is_broken: bool,
}

impl Reader<'_> {
    /// Reads the documents of a file, or of a text in a ConfigMap, which has this many lines `above` it. Empty documents, such as the
    /// one after a final `---`, are left out.
    fn documents(&mut self, text: &str, above: Option<usize>) -> Vec<RawDomain> {
        let mut domains = Vec::new();
        let Some(documents) = parse(text, above.unwrap_or(0), self.problems) else {
            self.is_broken = true;
            return domains;
        };
        for (number, document) in documents.iter().enumerate().filter(|(_, document)| !document.is_null()) {
            if document.has_excessive_aliases() {
                self.broken(document.line, "aliases stand for most of the document", "write the values out");
                break;
            }
            self.document(document, number == 0, above.is_none(), &mut domains);
        }
        domains
    }

    /// Reads a document, which may be a manifest unless it is a text of one.
    fn document(&mut self, document: &Node<'_>, is_first: bool, may_be_manifest: bool, domains: &mut Vec<RawDomain>) {
        if (self.others)(document, self.problems) {
            self.has_others = true;
            return;
        }
        match manifest(document).filter(|_| may_be_manifest) {
            Some(("ConfigMap", data)) => self.config_map(document, data, domains),
            Some(("List", _)) => {
                let items = document.get("items").map(Node::items).unwrap_or_default();
                items.iter().for_each(|item| self.document(item, is_first, true, domains));
            }
            Some((kind, _)) => {
                let what = format!("the {kind} is skipped: it has no limits");
                self.problems.warning(document.line, what, "nothing to do");
            }
            None => domains.extend(self.domain(document, is_first)),
        }
    }

    /// Reads the texts of a ConfigMap, with their lines.
    fn config_map(&mut self, manifest: &Node<'_>, data: Option<&Node<'_>>, domains: &mut Vec<RawDomain>) {
        let (mut texts, mut total) = (IndexMap::new(), 0);
        self.fields(manifest, "a mapping");
        for field in data.map(|data| self.fields(data, "a mapping of texts")).unwrap_or_default() {
            let text = self.spelling(field.key, field.value);
            // Aliases may stand for more than the file has.
            total += text.len() as u64;
            if total > MAX_FILE_BYTES {
                let what = format!("the texts of this ConfigMap are larger than {}", Approximate(MAX_FILE_BYTES));
                return self.broken(field.line, what, "write each text once");
            }
            texts.insert(field.key, (text, field.value));
        }
        for Finding { line, what, fix, .. } in std::mem::take(&mut self.findings) {
            self.problems.warning(line, what, fix);
        }
        for (text, node) in texts.into_values() {
            // A block begins with its first line that is not empty.
            let empty = text.bytes().take_while(|byte| *byte == b'\n').count();
            domains.extend(self.documents(&text, Some(node.line.saturating_sub(empty + 1))));
        }
    }

    /// Reads the document of a domain.
    fn domain(&mut self, document: &Node<'_>, is_first: bool) -> Option<RawDomain> {
        if let Content::Sequence(_) = document.content() {
            let what = "this is a list, and not a configuration of ratelimit";
            self.broken(document.line, what, "convert limits of limitador: `divvy convert FILE.yaml rules.ini`");
            return None;
        }
        if !is_first {
            let what = "this is not the first document, and ratelimit itself reads only that one";
            let fix = "write a file for each domain if ratelimit is to read them, too";
            self.problems.warning(document.line, what, fix);
        }
        let mut domain = RawDomain { line: document.line, ..RawDomain::default() };
        for field in self.fields(document, "a mapping with `domain` and `descriptors`") {
            match field.key {
                "domain" => domain.domain = self.text(field.key, field.value),
                "descriptors" => domain.descriptors = self.list(&field, Self::entry),
                _ => self.other(&field),
            }
        }
        domain.findings = std::mem::take(&mut self.findings);
        Some(domain)
    }

    fn entry(&mut self, node: &Node<'_>) -> RawEntry {
        let of_parent = std::mem::take(&mut self.findings);
        let mut entry = RawEntry { line: node.line, ..RawEntry::default() };
        for field in self.fields(node, "a mapping with `key`") {
            let Field { key, value, .. } = field;
            match key {
                "key" => entry.key = self.text(key, value),
                "value" => entry.value = self.text(key, value),
                "rate_limit" => self.limit(value, &mut entry.rate_limit),
                "descriptors" => entry.descriptors = self.list(&field, Self::entry),
                "shadow_mode" => entry.shadow_mode = self.switch(key, value),
                "quota_mode" => entry.quota_mode = self.switch(key, value),
                "detailed_metric" => entry.detailed_metric = self.switch(key, value),
                "value_to_metric" => entry.value_to_metric = self.switch(key, value),
                "share_threshold" => entry.share_threshold = self.switch(key, value),
                "metadata" => self.metadata(value, &mut entry.metadata),
                _ => self.other(&field),
            }
        }
        entry.findings = std::mem::replace(&mut self.findings, of_parent);
        entry
    }

    /// Reads a limit into the one that the entry already has. Null removes it; but `Null` and `NULL` are an empty limit to
    /// ratelimit, which it refuses.
    fn limit(&mut self, node: &Node<'_>, known: &mut Option<Box<RawLimit>>) {
        if node.is_null() && node.scalar().is_none_or(|scalar| !scalar.text.starts_with('N')) {
            *known = None;
            return;
        }
        let limit = known.get_or_insert_default();
        limit.line = node.line;
        for field in self.fields(node, "a mapping with `unit` and `requests_per_unit`") {
            let Field { key, value, .. } = field;
            match key {
                "unit" => limit.unit = self.text(key, value),
                "requests_per_unit" => limit.requests_per_unit = self.requests(value),
                "unlimited" => limit.unlimited = self.switch(key, value),
                "name" => limit.name = self.text(key, value),
                "replaces" => limit.replaces = self.list(&field, Self::replaced),
                _ => self.other(&field),
            }
        }
    }

    /// Reads the name of a limit that another one replaces.
    fn replaced(&mut self, node: &Node<'_>) -> At<String> {
        let mut name = String::new();
        for field in self.fields(node, "a mapping with `name`") {
            match field.key {
                "name" => name = self.text(field.key, field.value).value,
                _ => self.other(&field),
            }
        }
        At { line: node.line, value: name }
    }

    fn list<T>(&mut self, field: &Field<'_, '_>, item: impl Fn(&mut Self, &Node<'_>) -> T) -> Vec<T> {
        match field.value.content() {
            Content::Sequence(items) => items.iter().map(|node| item(self, node)).collect(),
            _ if field.value.is_null() => Vec::new(),
            _ => {
                self.mismatch(field.value, &format!("`{}`", field.key), "a list of mappings");
                Vec::new()
            }
        }
    }

    /// Reads a text. Whole numbers and booleans keep their spelling, and null is empty.
    fn text(&mut self, name: &str, node: &Node<'_>) -> At<String> {
        self.check_number(name, node);
        At { line: node.line, value: self.spelling(name, node) }
    }

    fn spelling(&mut self, name: &str, node: &Node<'_>) -> String {
        match self.value(name, node, "a text") {
            None | Some((_, Value::Null)) => String::new(),
            Some((text, _)) => text.to_owned(),
        }
    }

    fn switch(&mut self, name: &str, node: &Node<'_>) -> At<bool> {
        let value = match self.value(name, node, "true or false") {
            Some((_, Value::Bool(value))) => value,
            None | Some((_, Value::Null)) => false,
            Some(_) => {
                self.mismatch(node, &format!("`{name}`"), "true or false, without quotes");
                false
            }
        };
        At { line: node.line, value }
    }

    fn requests(&mut self, node: &Node<'_>) -> At<Requests> {
        let value = match self.value("requests_per_unit", node, "a whole number") {
            None => Requests::Invalid,
            Some((_, Value::Null)) => Requests::Missing,
            Some((text, value)) => self.number_of_requests(node.line, text, value),
        };
        At { line: node.line, value }
    }

    fn number_of_requests(&mut self, line: usize, text: &str, value: Value<'_>) -> Requests {
        let valid = |number| u32::try_from(number).ok();
        let (what, fix, requests) = match (value, by_spelling(text)) {
            (Value::Int(number), _) if valid(number).is_some_and(|valid| valid.to_string() == text) => {
                return valid(number).map_or(Requests::Invalid, Requests::Number);
            }
            (Value::Int(number), _) if let Some(requests) = valid(number) => {
                let what = format!("`requests_per_unit` is {text}, which ratelimit reads as {requests}");
                self.warning(line, what, format!("write {requests}"));
                return Requests::Number(requests);
            }
            (Value::Text(_), Value::Int(number)) if let Some(requests) = valid(number) => {
                let what = "`requests_per_unit` is a text".to_owned();
                (what, "write it without quotes".to_owned(), Requests::Number(requests))
            }
            (Value::Float(number), _) if number.fract() == 0.0 && valid(number as i64).is_some() => {
                let what = format!("`requests_per_unit` is {text}, which YAML reads as a floating-point number");
                (what, format!("write {number}"), Requests::Invalid)
            }
            _ => {
                let fix = format!("write a whole number up to {}", u32::MAX);
                (format!("`requests_per_unit` is {text:?}"), fix, Requests::Invalid)
            }
        };
        self.refused(line, what, &fix);
        requests
    }

    /// Reads metadata into the ones that the entry already has.
    fn metadata(&mut self, node: &Node<'_>, known: &mut Option<At<Map<String, serde_json::Value>>>) {
        if node.is_null() {
            *known = None;
            return;
        }
        let Content::Mapping(items) = node.content() else {
            return self.mismatch(node, "`metadata`", "a mapping");
        };
        let metadata = known.get_or_insert_default();
        metadata.line = node.line;
        for Pair { key, value, .. } in self.pairs(items) {
            let name = self.spelling("metadata", key);
            metadata.value.insert(name, self.json(value));
        }
    }

    /// Converts a part of metadata as ratelimit does.
    fn json(&mut self, node: &Node<'_>) -> serde_json::Value {
        use serde_json::Value as Json;
        match node.content() {
            Content::Sequence(items) => items.iter().map(|item| self.json(item)).collect(),
            Content::Mapping(items) => {
                let pairs = self.pairs(items).into_iter();
                pairs.map(|Pair { key, value, .. }| (self.json_key(key), self.json(value))).collect()
            }
            _ => match self.value("metadata", node, "a value") {
                None | Some((_, Value::Null)) => Json::Null,
                Some((_, Value::Bool(value))) => value.into(),
                Some((_, Value::Int(number))) => number.into(),
                Some((_, Value::Large(number))) => number.into(),
                Some((_, Value::Text(text))) => text.into(),
                Some((text, Value::Float(number))) => Number::from_f64(number).map_or_else(
                    || {
                        self.broken(node.line, format!("`metadata` has the number {text}"), "write it in quotes");
                        Json::Null
                    },
                    Json::Number,
                ),
            },
        }
    }

    fn json_key(&mut self, key: &Node<'_>) -> String {
        match self.value("metadata", key, "a mapping with texts as keys") {
            Some((text, Value::Text(_))) => text.to_owned(),
            Some((_, Value::Int(number))) => number.to_string(),
            Some((_, Value::Bool(value))) => value.to_string(),
            None => String::new(),
            Some(_) => {
                self.mismatch(key, "a key of `metadata`", "a text");
                String::new()
            }
        }
    }

    /// Returns the text and the value of a scalar. Another node, or one whose tag does not fit, makes the file unusable.
    fn value<'n>(&mut self, name: &str, node: &'n Node<'_>, expected: &str) -> Option<(&'n str, Value<'n>)> {
        let Some(scalar) = node.scalar() else {
            self.mismatch(node, &format!("`{name}`"), expected);
            return None;
        };
        let value = scalar.value();
        if value.is_none() {
            self.broken(node.line, format!("{:?} does not have the type of its tag", scalar.text), "remove the tag");
        }
        Some((&scalar.text, value?))
    }

    /// Returns the pairs of a mapping whose keys are texts, and reports repeated keys.
    fn fields<'n, 'a>(&mut self, node: &'n Node<'a>, expected: &str) -> Vec<Field<'n, 'a>> {
        let Content::Mapping(items) = node.content() else {
            self.mismatch(node, "this", expected);
            return Vec::new();
        };
        let (mut fields, mut lines, mut replaced) = (Vec::new(), HashMap::new(), HashSet::new());
        for Pair { key: key_node, value, merged } in self.pairs(items) {
            let Some(key) = self.key(key_node) else { continue };
            let line = merged.unwrap_or(key_node.line);
            let before = if merged.is_some() {
                lines.get(key).copied().filter(|_| replaced.insert((line, key)))
            } else {
                lines.insert(key, line)
            };
            if let Some(before) = before {
                let counts = if key == "rate_limit" { "the last value of each of its keys" } else { "the value here" };
                let what = format!("`{key}` is on line {before}, too, and {counts} counts, as in ratelimit");
                self.warning(line, what, "remove one of them");
            }
            fields.push(Field { line: key_node.line, key, value });
        }
        fields
    }

    /// Returns the text of a key. Ratelimit refuses other keys.
    fn key<'n>(&mut self, node: &'n Node<'_>) -> Option<&'n str> {
        match self.value("a key", node, "a text")? {
            (_, Value::Text(text)) => Some(text),
            (text, _) => {
                self.unknown(node.line, text);
                None
            }
        }
    }

    /// Returns the pairs of a mapping. Those of merged mappings come where their `<<` stands, because yaml.v2 decodes
    /// them there.
    fn pairs<'n, 'a>(&mut self, items: &'n [Node<'a>]) -> Vec<Pair<'n, 'a>> {
        let mut found = Vec::new();
        self.collect_pairs(items, None, &mut found);
        found
    }

    fn collect_pairs<'n, 'a>(&mut self, items: &'n [Node<'a>], merged: Option<usize>, found: &mut Vec<Pair<'n, 'a>>) {
        for [key, value] in pairs(items) {
            if !matches!(key.own_content(), Content::Scalar(scalar) if scalar.is_merge_key()) {
                found.push(Pair { key, value, merged });
                continue;
            }
            let line = merged.or(Some(key.line));
            let mappings = match value.own_content() {
                // The first one has precedence, so it comes last.
                Content::Sequence(mappings) => mappings.iter().rev().collect(),
                _ => vec![value],
            };
            for mapping in mappings {
                match mapping.content() {
                    Content::Mapping(items) => self.collect_pairs(items, line, found),
                    _ => self.mismatch(mapping, "the value of `<<`", "a mapping or a list of mappings"),
                }
            }
        }
    }

    /// Reports a key that has no meaning where it is.
    fn other(&mut self, field: &Field<'_, '_>) {
        let Field { line, key, value } = *field;
        if !KEYS.contains(&key) {
            return self.unknown(line, key);
        }
        let what = format!("`{key}` has no effect here or in ratelimit");
        self.warning(line, what, "move it to where it belongs, or remove it");
        self.check(key, value);
    }

    fn unknown(&mut self, line: usize, key: &str) {
        let advice =
            nearest(key, &KEYS).map_or("remove it".to_owned(), |known| format!("write `{known}`, or remove it"));
        let what = format!("`{key}` is an unknown key");
        self.error(line, what, format!("{advice}; ratelimit rejects the file, too, unless it is a newer version"));
    }

    /// Checks a value that has no meaning as ratelimit does.
    fn check(&mut self, name: &str, node: &Node<'_>) {
        match node.content() {
            _ if name == "metadata" => {}
            Content::Mapping(_) => self.check_mapping(node),
            Content::Sequence(items) => items.iter().for_each(|item| self.check_mapping(item)),
            _ => self.check_number(name, node),
        }
    }

    fn check_mapping(&mut self, node: &Node<'_>) {
        for Field { line, key, value } in self.fields(node, "a mapping") {
            if KEYS.contains(&key) {
                self.check(key, value);
            } else {
                self.unknown(line, key);
            }
        }
    }

    /// Reports a number that ratelimit refuses in every place.
    fn check_number(&mut self, name: &str, node: &Node<'_>) {
        let Some(scalar) = node.scalar() else { return };
        if let Some(Value::Float(_) | Value::Large(_)) = scalar.value() {
            let text = &scalar.text;
            self.refused(node.line, format!("`{name}` is the number {text}"), &format!("write {text:?} in quotes"));
        }
    }

    /// Reports a value of another type, which makes the file unusable.
    fn mismatch(&mut self, node: &Node<'_>, name: &str, expected: &str) {
        self.broken(
            node.line,
            format!("{name} must be {expected}"),
            "ratelimit rejects the file, too: correct it there",
        );
    }

    fn broken(&mut self, line: usize, what: impl Into<String>, fix: &str) {
        self.problems.error(line, what, fix);
        self.is_broken = true;
    }

    fn refused(&mut self, line: usize, what: String, fix: &str) {
        self.error(line, what, format!("ratelimit rejects the file, too: {fix}"));
    }

    fn error(&mut self, line: usize, what: String, fix: String) {
        self.findings.push(Finding { line, is_error: true, what, fix });
    }

    fn warning(&mut self, line: usize, what: String, fix: impl Into<String>) {
        self.findings.push(Finding { line, is_error: false, what, fix: fix.into() });
    }
}

/// Returns the kind of a Kubernetes manifest, and its `data`. `None` if the document is no manifest.
fn manifest<'n, 'a>(document: &'n Node<'a>) -> Option<(&'n str, Option<&'n Node<'a>>)> {
    let kind = document.get("kind")?.scalar()?;
    document.get("domain").is_none().then(|| (&*kind.text, document.get("data")))
}
