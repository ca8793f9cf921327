//! Validates the settings of a rule that are about one field, `networks`, `list` and `actorPrefix`, and reads list files. In
//! INI the settings are written as `field: text`, and in JSON as an object. A list file has one entry a line, which is a
//! text, a pattern or a network.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Problems;
use super::checker::Checker;
use super::document::{MAX_FILE_BYTES, RawSetting, RawValue};
use super::json::Pairs;
use crate::regular_file;
use crate::rules::setting_name::{ACTOR_FIELD, ACTOR_PREFIX, LIST, NETWORKS};
use crate::rules::{
    ActorPrefix, Condition, List, ListEntry, NOT, Network, NetworkError, Pattern, PrefixLengths, network,
};

/// Maximum number of networks in a setting. More belong in a list.
const MAX_NETWORKS: usize = 64;

impl Checker<'_> {
    /// Returns the condition of `networks`; `None` if there is no condition, or after reporting the mistake.
    pub fn networks(&mut self) -> Option<Condition> {
        let (field, text) = self.field_and_text(NETWORKS, "ip: 10.0.0.0/8, 2001:db8::/32")?;
        let (is_inverted, text) = strip_not(&text);
        let entries: Vec<_> = text.split(',').map(str::trim).collect();
        if entries.len() > MAX_NETWORKS {
            let what = format!("`{NETWORKS}` has {} networks, but at most {MAX_NETWORKS}", entries.len());
            self.error(NETWORKS, what, format!("write them to a file, one a line, and name it in `{LIST}`"));
            return None;
        }
        let mut networks = Vec::with_capacity(entries.len());
        for entry in &entries {
            match Network::parse(entry) {
                Ok(network) => networks.push(network),
                Err(error) => self.error(NETWORKS, format!("{entry:?} is not a network: {error}"), error.fix()),
            }
        }
        let is_valid = networks.len() == entries.len();
        is_valid.then(|| Condition { field, is_inverted, members: List::of_networks(networks) })
    }

    /// Returns the condition of `list`; `None` if there is no condition, or after reporting the mistake.
    pub fn list(&mut self, lists: &mut Lists) -> Option<Condition> {
        let (field, text) = self.field_and_text(LIST, "ip: office.txt")?;
        let (is_inverted, name) = strip_not(&text);
        let members = lists.get(name, self.place(LIST), self.problems)?;
        Some(Condition { field, is_inverted, members })
    }

    /// Returns the lengths of `actorPrefix`; `None` if there are no lengths, or after reporting the mistake.
    pub fn actor_prefix(&mut self, actor_fields: &[String]) -> Option<ActorPrefix> {
        const EXAMPLE: &str = "ip: 32, 56";
        let (field, text) = self.field_and_text(ACTOR_PREFIX, EXAMPLE)?;
        if !actor_fields.contains(&field) {
            let what = format!("`{ACTOR_PREFIX}` is about {field:?}, which is not in `{ACTOR_FIELD}`");
            self.error(ACTOR_PREFIX, what, format!("add `{ACTOR_FIELD} = {field}`, or remove it"));
        }
        let length = |text: &str, max: u8| text.trim().parse::<u8>().ok().filter(|length| *length <= max);
        let lengths = text.split_once(',').and_then(|(v4, v6)| Some((length(v4, 32)?, length(v6, 128)?)));
        let Some((v4, v6)) = lengths else {
            let what = format!("`{ACTOR_PREFIX}` is not two lengths: {text:?}");
            let fix =
                format!("write the bits of IPv4 networks, up to 32, and of IPv6 networks, up to 128: `{EXAMPLE}`");
            self.error(ACTOR_PREFIX, what, fix);
            return None;
        };
        Some(ActorPrefix { field, lengths: PrefixLengths { v4, v6 } })
    }

    /// Returns a setting's field and the text about it.
    fn field_and_text(&mut self, key: &str, example: &str) -> Option<(String, String)> {
        let RawSetting { value, .. } = self.setting(key)?;
        self.unsupported(key, "ignores the setting");
        let parts = match value {
            RawValue::Text(text) => split_field(text).map(|(field, text)| (field.to_owned(), text.to_owned())),
            RawValue::Other(json) => read_object(json),
            RawValue::Null | RawValue::Number(_) => None,
        };
        let parts = parts.filter(|(field, text)| !field.is_empty() && !text.is_empty());
        if parts.is_none() {
            let in_json = example.split_once(": ").map(|(field, text)| format!("{{\"{field}\": \"{text}\"}}"));
            let fix = format!("write `{example}`, or in JSON {}", in_json.unwrap_or_default());
            self.error(key, format!("`{key}` is not one field with a text: {}", value.as_written()), fix);
        }
        parts
    }
}

/// Splits `field: text`. A field that contains a colon needs a space after the colon that ends it.
pub(super) fn split_field(text: &str) -> Option<(&str, &str)> {
    let (field, text) = text.split_once(": ").or_else(|| text.split_once(':'))?;
    Some((field.trim(), text.trim()))
}

/// Reads an object with one member, whose value is a text, or an array of texts and numbers.
fn read_object(json: &str) -> Option<(String, String)> {
    let Pairs(members) = serde_json::from_str(json).ok()?;
    let [(field, value)] = members.as_slice() else { return None };
    let value = serde_json::from_str(value.get()).ok()?;
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let text = match &value {
        serde_json::Value::Array(values) => values.iter().map(text).collect::<Option<Vec<_>>>()?.join(", "),
        value => text(value)?,
    };
    Some((field.clone(), text.trim().to_owned()))
}

fn strip_not(text: &str) -> (bool, &str) {
    text.strip_prefix(NOT).map_or((false, text), |text| (true, text.trim_start()))
}

/// Maximum number of entries of all lists of a rules file.
pub(super) const MAX_LIST_ENTRIES: usize = 1_000_000;

/// Maximum number of patterns that begin with `*` in all lists of a rules file. Compiling 10,000 takes 0.3 s, and 100,000 17 s.
pub(super) const MAX_LEADING_STARS: usize = 10_000;

/// Maximum number of list files of a rules file. A server looks at each of them every second.
const MAX_LISTS: usize = 64;

/// Maximum number of problems that are reported for one list.
const MAX_PROBLEMS: usize = 20;

/// The list files of a rules file. Each is read once.
#[derive(Debug)]
pub(super) struct Lists {
    /// The path of the rules file.
    rules_file: PathBuf,
    /// The lists by their names in the rules file; `None` if they could not be read.
    known: HashMap<String, Option<Arc<List>>>,
    /// The number of entries of all lists.
    entries: usize,
    /// The number of those that are patterns that begin with `*`.
    leading_stars: usize,
}

impl Lists {
    /// Prepares the lists of a rules file, which may name other files.
    pub fn of(rules_file: &Path) -> Self {
        Self { rules_file: rules_file.to_owned(), known: HashMap::new(), entries: 0, leading_stars: 0 }
    }

    /// Returns the list with this name, and reads it if that is the first time. Problems of the file are reported with their
    /// lines in it, and others at `place`.
    pub fn get(&mut self, name: &str, place: (usize, &str), problems: &mut Problems) -> Option<Arc<List>> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let list = self.read(name, place, problems);
        self.known.insert(name.to_owned(), list.clone());
        list
    }

    fn read(&mut self, name: &str, place: (usize, &str), problems: &mut Problems) -> Option<Arc<List>> {
        if self.known.len() >= MAX_LISTS {
            problems.error(place, format!("the rules have more than {MAX_LISTS} lists"), "merge some of the lists");
            return None;
        }
        let path = list_path(&self.rules_file, name);
        let shown = path.display().to_string();
        problems.report.lists.push(path.clone());
        let report = |error: &io::Error| {
            let fix = match error.kind() {
                ErrorKind::FileTooLarge => "use networks or patterns instead of single values",
                _ => "check its path, which begins at the directory of the rules file, and its permissions",
            };
            problems.unread();
            problems.error(place, format!("cannot read the list {shown}: {error}"), fix);
        };
        let bytes = regular_file::read(&path, MAX_FILE_BYTES).inspect_err(report).ok()?;
        let entries = read_entries(&bytes, &shown, MAX_LIST_ENTRIES - self.entries, problems)?;
        self.entries += entries.len();
        for (line, _) in entries.iter().filter(|(_, entry)| begins_with_star(entry)) {
            self.leading_stars += 1;
            if self.leading_stars > MAX_LEADING_STARS {
                let what =
                    format!("the lists of the rules have more than {MAX_LEADING_STARS} patterns that begin with `*`");
                problems.error_in(&shown, *line as usize, what, "write the values, or the texts that they begin with");
                return None;
            }
        }
        if entries.is_empty() {
            let fix = "add entries to it, one a line";
            problems.warning(place, format!("the list {shown} has no entries, so no value is in it"), fix);
        }
        Some(List::new(name, entries))
    }
}

/// Returns the path of a list that the rules file at this path names so.
pub(super) fn list_path(rules_file: &Path, name: &str) -> PathBuf {
    rules_file.parent().unwrap_or(Path::new("")).join(name)
}

fn begins_with_star(entry: &ListEntry) -> bool {
    matches!(entry, ListEntry::Pattern(pattern @ Pattern::Glob(_)) if pattern.as_str().starts_with('*'))
}

/// Returns the entries with their lines; `None` after reporting what is wrong with them.
fn read_entries(
    bytes: &[u8],
    file: &str,
    max_entries: usize,
    problems: &mut Problems,
) -> Option<Vec<(u32, ListEntry)>> {
    let (mut entries, mut wrong) = (Vec::new(), 0_usize);
    let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    for (line, bytes) in (1_usize..).zip(text.split(|byte| *byte == b'\n')) {
        let entry = match str::from_utf8(bytes) {
            Ok(text) => read_entry(text),
            Err(_) => Err(("the line is not UTF-8".to_owned(), "save the list as UTF-8".to_owned())),
        };
        match entry {
            Ok(None) => {}
            Ok(Some(_)) if entries.len() >= max_entries => {
                let what = format!("the lists of the rules have more than {MAX_LIST_ENTRIES} entries");
                problems.error_in(file, line, what, "use networks or patterns instead of single values");
                return None;
            }
            Ok(Some(entry)) => entries.push((u32::try_from(line).unwrap_or(u32::MAX), entry)),
            Err((what, fix)) => {
                wrong += 1;
                if wrong <= MAX_PROBLEMS {
                    problems.error_in(file, line, what, fix);
                }
            }
        }
    }
    if let Some(more) = wrong.checked_sub(MAX_PROBLEMS).filter(|more| *more > 0) {
        problems.error_in(file, 0, format!("{more} more lines are wrong"), "correct the ones above first");
    }
    (wrong == 0).then_some(entries)
}

/// Reads a line. Returns `None` for an empty one or a comment. An error says what is wrong, and what to do.
fn read_entry(line: &str) -> Result<Option<ListEntry>, (String, String)> {
    let line = line.trim();
    if line.starts_with('"') {
        let mut strings = serde_json::Deserializer::from_str(line).into_iter::<String>();
        let text = strings.next().and_then(Result::ok);
        let rest = line.get(strings.byte_offset()..).unwrap_or_default().trim_start();
        let Some(text) = text.filter(|_| rest.is_empty() || rest.starts_with('#')) else {
            let fix = "write one text a line, \\\" for a quote, \\\\ for a backslash, and # before a comment";
            return Err((format!("{line} is not one text in quotes"), fix.to_owned()));
        };
        return Ok(Some(ListEntry::Quoted(Pattern::Literal(text))));
    }
    let entry = match line.split_once(" #").or(line.split_once("\t#")) {
        _ if line.starts_with('#') => "",
        Some((entry, _)) => entry.trim_end(),
        None => line,
    };
    if entry.is_empty() {
        return Ok(None);
    }
    let wrong =
        |error: &NetworkError, hint: &str| Err((format!("{entry:?} is not a network: {error}"), error.fix() + hint));
    match Network::parse(entry) {
        Ok(network) => Ok(Some(ListEntry::Network(network))),
        Err(error @ NetworkError::HostBits { .. }) => wrong(&error, ""),
        // A pattern may contain an address.
        Err(error) if !entry.contains('*') && network::resembles(entry) => {
            wrong(&error, ", alone on the line, or put it in quotes if it is a text")
        }
        Err(NetworkError::NoAddress) if entry.contains(char::is_control) => {
            Err((format!("the line has a control character: {entry:?}"), "save the list as plain text".to_owned()))
        }
        Err(NetworkError::NoAddress) => Ok(Some(ListEntry::Pattern(Pattern::parse(entry)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(line: &str) -> String {
        match read_entry(line) {
            Ok(None) => "nothing".to_owned(),
            Ok(Some(ListEntry::Network(network))) => format!("network {network}"),
            Ok(Some(ListEntry::Pattern(pattern) | ListEntry::Quoted(pattern))) => format!("{pattern:?}"),
            Err((what, fix)) => format!("{what}; {fix}"),
        }
    }

    #[test]
    fn line_is_a_text_a_pattern_or_a_network() {
        for (line, expected) in [
            ("", "nothing"),
            ("  # office", "nothing"),
            ("10.0.0.0/8 # office\r", "network 10.0.0.0/8"),
            ("\t::ffff:10.1.2.3\t# mapped", "network 10.1.2.3"),
            ("alice", "Literal(\"alice\")"),
            ("alice smith#1", "Literal(\"alice smith#1\")"),
            ("*", "Any"),
            ("*.example.org", "Glob(Glob(\"*.example.org\"))"),
            ("\"10.1.2.3\" # as text", "Literal(\"10.1.2.3\")"),
            ("\"a \\\" # *\"", "Literal(\"a \\\" # *\")"),
            ("1.2.3", "Literal(\"1.2.3\")"),
            ("/a/8", "Literal(\"/a/8\")"),
            ("00:1b:63:84:45:e6", "Literal(\"00:1b:63:84:45:e6\")"),
            ("12:30:45", "Literal(\"12:30:45\")"),
            ("std::vec", "Literal(\"std::vec\")"),
            ("1.2.3.4.example.org", "Literal(\"1.2.3.4.example.org\")"),
            ("10.0.0.*", "Glob(Glob(\"10.0.0.*\"))"),
            ("ann@example.org", "Literal(\"ann@example.org\")"),
        ] {
            assert_eq!(entry(line), expected, "{line}");
        }
    }
}
