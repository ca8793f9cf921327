//! Replies as text: a line for each entry of a list, with the members of the entry in columns, or JSON.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::cli::terminal::printable;
use divvy_api::{Member, Shape};
use divvy_core::rules::header;

/// The columns of a list of rules, which have many more settings.
pub const COLUMNS_OF_RULES: [&str; 5] = ["allowed", "denied", "name", "matchPolicy", "operation"];

/// Prints the pages of a reply.
pub struct Printer<W> {
    out: W,
    as_json: bool,
    /// The names of the columns; empty for all members of an entry.
    columns: &'static [&'static str],
    has_header: bool,
    /// Number of entries so far, or the sum of the pages' numbers.
    pub count: u64,
}

impl<W: Write> Printer<W> {
    pub fn new(out: W, as_json: bool, columns: &'static [&'static str]) -> Self {
        Self { out, as_json, columns, has_header: as_json, count: 0 }
    }

    /// Writes text as it is.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())
    }

    /// Prints a reply, or a page of it.
    pub fn print(&mut self, shape: &Shape, reply: &Value) -> io::Result<()> {
        match shape {
            Shape::Named(_, of) => self.print(of, reply),
            Shape::Page { name, of: Shape::List(entry), .. } => match reply.get(name) {
                Some(page) => self.print_list(entry, page),
                // The answer is the only entry.
                None => self.print_entry(entry, reply),
            },
            Shape::Page { name, .. } => {
                self.count += reply.get(name).and_then(Value::as_u64).unwrap_or_default();
                Ok(())
            }
            Shape::Only([Member { name, shape: Shape::List(entry), .. }]) => {
                self.print_list(entry, reply.get(name).unwrap_or(&Value::Null))
            }
            _ if self.as_json => writeln!(self.out, "{reply}"),
            Shape::Only([Member { name, shape: Shape::Text, .. }]) => {
                writeln!(self.out, "{}", cell(name, reply.get(name).unwrap_or(&Value::Null)))
            }
            Shape::Map(members) => {
                let is_list = |member: &&Member| matches!(member.shape, Shape::List(_));
                let line: Vec<_> =
                    members.iter().filter(|member| !is_list(member)).map(|member| pair(member.name, reply)).collect();
                writeln!(self.out, "{}", line.join(" "))?;
                members.iter().filter(is_list).try_for_each(|member| match member.shape {
                    Shape::List(entry) => self.print_list(entry, reply.get(member.name).unwrap_or(&Value::Null)),
                    _ => Ok(()),
                })
            }
            Shape::Object => {
                reply.as_object().into_iter().flatten().try_for_each(|(name, value)| self.print_section(name, value))
            }
            // There is nothing to say but that it is done.
            _ => Ok(()),
        }
    }

    /// Prints the end: the sum of the pages' numbers.
    pub fn finish(&mut self, shape: &Shape) -> io::Result<()> {
        if let Shape::Page { name, of: Shape::Number, .. } = shape {
            match self.as_json {
                true => writeln!(self.out, "{}", json!({ *name: self.count }))?,
                false => writeln!(self.out, "{} {name}", self.count)?,
            }
        }
        self.out.flush()
    }

    fn print_list(&mut self, entry: &Shape, list: &Value) -> io::Result<()> {
        list.as_array().into_iter().flatten().try_for_each(|value| self.print_entry(entry, value))
    }

    fn print_entry(&mut self, entry: &Shape, value: &Value) -> io::Result<()> {
        if let Shape::Named(_, of) = entry {
            return self.print_entry(of, value);
        }
        self.count += 1;
        match entry {
            _ if self.as_json => writeln!(self.out, "{value}"),
            Shape::Row(members) | Shape::Map(members) => {
                let of_name = |name: &&str| members.iter().find(|member| member.name == *name);
                let members: Vec<_> = match self.columns {
                    [] => members.iter().collect(),
                    columns => columns.iter().filter_map(of_name).collect(),
                };
                if !std::mem::replace(&mut self.has_header, true) {
                    self.print_cells(&members, |member| member.name.to_owned())?;
                }
                self.print_cells(&members, |member| cell(member.name, value.get(member.name).unwrap_or(&Value::Null)))
            }
            _ => writeln!(self.out, "{}", cell("", value)),
        }
    }

    /// Prints a line with a cell for each member: numbers first, because texts may be of any length.
    fn print_cells(&mut self, members: &[&Member], text: impl Fn(&Member) -> String) -> io::Result<()> {
        let (numbers, texts): (Vec<_>, Vec<_>) = members.iter().copied().partition(|member| is_short(&member.shape));
        let mut line = String::new();
        numbers.into_iter().for_each(|member| line.push_str(&format!("{:>12} ", text(member))));
        texts.into_iter().for_each(|member| line.push_str(&format!(" {:<23}", text(member))));
        writeln!(self.out, "{}", line.trim_end())
    }

    /// Prints an object as a section with a line for each member.
    fn print_section(&mut self, name: &str, value: &Value) -> io::Result<()> {
        let Some(members) = value.as_object() else { return writeln!(self.out, "{name}:{}", cell(name, value)) };
        writeln!(self.out, "{}# {name}", if std::mem::replace(&mut self.has_header, true) { "\n" } else { "" })?;
        members.iter().try_for_each(|(name, value)| writeln!(self.out, "{name}:{}", cell(name, value)))
    }
}

/// Returns whether all values have a few characters.
fn is_short(shape: &Shape) -> bool {
    match shape {
        Shape::Maybe(of) | Shape::Named(_, of) => is_short(of),
        Shape::Number | Shape::Range(..) | Shape::Signed | Shape::Decimal | Shape::SecondsLeft | Shape::Flag => true,
        _ => false,
    }
}

fn pair(name: &str, object: &Value) -> String {
    match object.get(name) {
        Some(Value::Bool(flag)) => format!("{name}={flag}"),
        value => format!("{name}={}", cell(name, value.unwrap_or(&Value::Null))),
    }
}

/// Returns the text for a value of the member with this name, on one line.
fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(false) => "-".to_owned(),
        Value::Bool(true) => name.to_owned(),
        Value::String(text) => on_one_line(text),
        Value::Object(members) => {
            let texts = members.iter().filter(|(_, value)| !value.is_null());
            let texts: Vec<_> = texts.map(|(name, value)| (name, cell(name, value))).collect();
            on_one_line(&header(texts.iter().map(|(name, text)| (name.as_str(), text.as_str()))))
        }
        other => other.to_string(),
    }
}

fn on_one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use divvy_api::{FIND_LIMITS, FORGET_COUNTERS, LIST_RULES, RANK, SHOW_STATS};

    fn printed(shape: &Shape, as_json: bool, replies: &[Value]) -> String {
        printed_in(&[], shape, as_json, replies)
    }

    fn printed_in(columns: &'static [&'static str], shape: &Shape, as_json: bool, replies: &[Value]) -> String {
        let mut printer = Printer::new(Vec::new(), as_json, columns);
        replies.iter().for_each(|reply| printer.print(shape, reply).unwrap());
        printer.finish(shape).unwrap();
        String::from_utf8(printer.out).unwrap()
    }

    #[test]
    fn pages_are_one_table_without_control_characters() {
        let entry = |actor: &str, ends: Option<u64>| json!({ "rule": "free", "actor": actor, "credits": 5, "expiresIn": ends, "orphan": ends.is_some() });
        let pages = [
            json!({ "limits": [entry("a\u{1b}[2J", None)], "next": "1" }),
            json!({ "limits": [entry("b\nc", Some(60))], "next": null }),
        ];
        let expected = "     credits    expiresIn       orphan  rule                    actor
           5            -            -  free                    a\\u{1b}[2J
           5           60       orphan  free                    b\\nc
";
        assert_eq!(printed(&FIND_LIMITS.reply, false, &pages), expected);
        assert_eq!(printed(&FIND_LIMITS.reply, true, &pages).lines().count(), 2);
        assert_eq!(printed(&FIND_LIMITS.reply, false, &[entry("a", None)]).lines().count(), 2, "the only entry");
    }

    #[test]
    fn numbers_of_pages_are_added() {
        let pages = [json!({ "forgotten": 1000, "next": "x" }), json!({ "forgotten": 7, "next": null })];
        assert_eq!(printed(&FORGET_COUNTERS.reply, false, &pages), "1007 forgotten\n");
        assert_eq!(printed(&FORGET_COUNTERS.reply, true, &pages), "{\"forgotten\":1007}\n");
    }

    #[test]
    fn objects_are_printed_with_their_lists() {
        let ranking = json!({
            "rule": "calls", "order": "denied", "last": 60, "canary": false, "sampled": false, "hasRoom": true, "total": 3,
            "top": [{ "actor": "ann", "cut": false, "count": 2, "error": 0, "rule": "calls" }],
        });
        let expected = "rule=calls order=denied last=60 canary=false sampled=false hasRoom=true total=3
       count        error          cut  actor                   rule
           2            0            -  ann                     calls
";
        assert_eq!(printed(&RANK.reply, false, &[ranking]), expected);
        let rule = json!({ "name": "by-user", "operation": { "user": "*" }, "allowed": 1, "denied": 0, "matchPolicy": "stop" });
        let rules = printed_in(&COLUMNS_OF_RULES, &LIST_RULES.reply, false, &[json!({ "rules": [rule] })]);
        assert!(
            rules.ends_with("           1            0  by-user                 stop                    user=*\n"),
            "{rules}"
        );
        let stats = json!({ "server": { "rules": 2 }, "hits": { "accepted": 1 } });
        assert_eq!(printed(&SHOW_STATS.reply, false, &[stats]), "# server\nrules:2\n\n# hits\naccepted:1\n");
    }
}
