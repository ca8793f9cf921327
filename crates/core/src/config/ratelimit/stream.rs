//! Finds ratelimit's configuration in a file: in its documents, and in the texts of a Kubernetes ConfigMap. Says what a
//! file is that has none.

use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options, Spanned};

use super::document::{Content, Document, Repeated, line};
use crate::config::document::MAX_FILE_BYTES;
use crate::config::problem::Problems;

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
