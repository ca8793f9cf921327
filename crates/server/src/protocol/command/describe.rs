//! The replies to `COMMAND`, its subcommands and `HELP`, from the table, in the format that clients expect.

use super::command_rows::{Spec, commands, find_full};
use crate::protocol::resp::{Arguments, ReplyWriter};
use divvy_access::Category;

/// A request for descriptions of commands.
#[derive(Debug, Clone, Copy)]
pub enum Question<'a> {
    /// `COMMAND`: describes all commands.
    All,
    /// `COMMAND COUNT`
    Count,
    /// `COMMAND LIST`: returns all names.
    List,
    /// Describes the named commands; null for an unknown one.
    Info(Arguments<'a>),
    /// Documents the named commands, or all. Leaves out unknown ones.
    Docs(Arguments<'a>),
    /// Describes the subcommands of this command.
    Help(&'static Spec),
}

/// Answers `question`.
pub fn write(reply: &mut ReplyWriter, question: Question) {
    match question {
        Question::All => {
            reply.array(commands().count());
            commands().for_each(|spec| write_info(reply, spec));
        }
        Question::Count => reply.unsigned(commands().count() as u64),
        Question::List => {
            reply.array(commands().count());
            commands().for_each(|spec| reply.bulk(spec.name().as_bytes()));
        }
        Question::Info(names) => {
            reply.array(names.len());
            for name in names.iter() {
                match find_full(name) {
                    Some(spec) => write_info(reply, spec),
                    None => reply.null(),
                }
            }
        }
        Question::Docs(names) if names.is_empty() => write_docs(reply, commands()),
        Question::Docs(names) => write_docs(reply, names.iter().filter_map(find_full)),
        Question::Help(command) => {
            let name = command.name().to_uppercase();
            reply.array(1 + 2 * command.subcommands().count());
            reply.simple(&format!("{name} <subcommand> [<argument> ...]. Subcommands are:"));
            for subcommand in command.subcommands() {
                reply.simple(&subcommand.name().to_uppercase());
                reply.simple(&format!("    {}", subcommand.summary));
            }
        }
    }
}

/// Returns the full names of the commands of a category.
pub fn commands_of(category: Category) -> Vec<String> {
    let with_subcommands = |spec: &'static Spec| {
        let own = (!spec.has_subcommands).then_some(spec);
        own.into_iter().chain(spec.subcommands())
    };
    let of_category = commands().flat_map(with_subcommands).filter(|spec| spec.category == category);
    of_category.map(|spec| spec.full_name().into_owned()).collect()
}

/// Writes the ten fields of Redis 7: name, arity, flags, first key, last key, step, ACL categories, tips, key specifications
/// and subcommands.
fn write_info(reply: &mut ReplyWriter, spec: &Spec) {
    reply.array(10);
    reply.bulk(spec.full_name().as_bytes());
    reply.integer(spec.arity);
    reply.set(spec.flags.len());
    spec.flags.iter().for_each(|flag| reply.simple(flag));
    spec.keys.into_iter().for_each(|place| reply.integer(place));
    reply.set(0);
    reply.array(0);
    reply.array(0);
    reply.array(spec.subcommands().count());
    spec.subcommands().for_each(|subcommand| write_info(reply, subcommand));
}

fn write_docs(reply: &mut ReplyWriter, specs: impl Iterator<Item = &'static Spec> + Clone) {
    reply.map(specs.clone().count());
    specs.for_each(|spec| write_doc(reply, spec));
}

fn write_doc(reply: &mut ReplyWriter, spec: &Spec) {
    reply.bulk(spec.full_name().as_bytes());
    reply.map(if spec.has_subcommands { 4 } else { 3 });
    for (field, text) in [("summary", spec.summary), ("since", spec.since), ("group", spec.group)] {
        reply.bulk(field.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if spec.has_subcommands {
        reply.bulk(b"subcommands");
        write_docs(reply, spec.subcommands());
    }
}
