//! The replies to `COMMAND` and its subcommands, from the table, in the format that clients expect.

use super::command_rows::{CommandRow, commands, find_full};
use crate::protocol::resp::{Arguments, ReplyWriter};
use divvy_access::Category;

/// A request for descriptions of commands.
#[derive(Debug, Clone, Copy)]
pub enum Question<'a> {
    /// `COMMAND COUNT`
    Count,
    /// `COMMAND LIST`: returns all names.
    List,
    /// Describes the named commands, or all; null for an unknown one.
    Info(Arguments<'a>),
    /// Documents the named commands, or all. Leaves out unknown ones.
    Docs(Arguments<'a>),
}

/// Answers `question`.
pub fn write(reply: &mut ReplyWriter, question: Question) {
    match question {
        Question::Info(names) if names.is_empty() => {
            reply.array(commands().count());
            commands().for_each(|row| write_info(reply, row));
        }
        Question::Count => reply.unsigned(commands().count() as u64),
        Question::List => {
            reply.array(commands().count());
            commands().for_each(|row| reply.bulk(row.full_name().as_bytes()));
        }
        Question::Info(names) => {
            reply.array(names.len());
            for name in names.iter() {
                match find_full(name) {
                    Some(row) => write_info(reply, row),
                    None => reply.null(),
                }
            }
        }
        Question::Docs(names) if names.is_empty() => write_docs(reply, commands()),
        Question::Docs(names) => write_docs(reply, names.iter().filter_map(find_full)),
    }
}

/// Returns the full names of the commands of a category.
pub fn commands_of(category: Category) -> Vec<String> {
    let with_subcommands = |row: &'static CommandRow| {
        let own = (!row.has_subcommands).then_some(row);
        own.into_iter().chain(row.subcommands())
    };
    let of_category = commands().flat_map(with_subcommands).filter(|row| row.category == category);
    of_category.map(|row| row.full_name().into_owned()).collect()
}

/// Writes the ten fields of Redis 7: name, arity, flags, first key, last key, step, ACL categories, tips, key specifications
/// and subcommands.
fn write_info(reply: &mut ReplyWriter, row: &CommandRow) {
    reply.array(10);
    reply.bulk(row.full_name().as_bytes());
    reply.integer(row.arity);
    reply.set(row.flags.len());
    row.flags.iter().for_each(|flag| reply.simple(flag));
    // The positions of the first and the last key, and the step between keys.
    (0..3).for_each(|_| reply.integer(row.has_key.into()));
    reply.set(0);
    reply.array(0);
    reply.array(0);
    reply.array(row.subcommands().count());
    row.subcommands().for_each(|subcommand| write_info(reply, subcommand));
}

fn write_docs(reply: &mut ReplyWriter, rows: impl Iterator<Item = &'static CommandRow> + Clone) {
    reply.map(rows.clone().count());
    rows.for_each(|row| write_doc(reply, row));
}

fn write_doc(reply: &mut ReplyWriter, row: &CommandRow) {
    reply.bulk(row.full_name().as_bytes());
    reply.map(if row.has_subcommands { 4 } else { 3 });
    for (field, text) in [("summary", row.summary), ("since", row.since), ("group", row.group)] {
        reply.bulk(field.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if row.has_subcommands {
        reply.bulk(b"subcommands");
        write_docs(reply, row.subcommands());
    }
}
