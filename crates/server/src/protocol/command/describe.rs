//! The replies to `COMMAND`, its subcommands and `HELP`, from the table, in the format that clients expect.

use super::question::Question;
use super::table::{self, COMMANDS, Spec};
use crate::protocol::resp::ReplyWriter;
use divvy_access::Category;

/// Answers `question`.
pub fn write(reply: &mut ReplyWriter, question: Question) {
    match question {
        Question::All => {
            reply.array(table::offered(COMMANDS).count());
            table::offered(COMMANDS).for_each(|spec| write_info(reply, spec, None));
        }
        Question::Count => reply.integer(i64::try_from(table::offered(COMMANDS).count()).unwrap_or(i64::MAX)),
        Question::List => {
            reply.array(table::offered(COMMANDS).count());
            table::offered(COMMANDS).for_each(|spec| reply.bulk(spec.name.as_bytes()));
        }
        Question::Info(names) => {
            reply.array(names.len());
            for name in names.iter() {
                match find(name) {
                    Some((parent, spec)) => write_info(reply, spec, parent),
                    None => reply.null(),
                }
            }
        }
        Question::Docs(names) if names.is_empty() => {
            write_docs(reply, table::offered(COMMANDS).map(|spec| (None, spec)));
        }
        Question::Docs(names) => write_docs(reply, names.iter().filter_map(find)),
        Question::Help(parent) => match table::find(COMMANDS, parent.as_bytes()) {
            Some(parent) => write_help(reply, parent),
            None => reply.null(),
        },
    }
}

/// Returns the full names of the commands of a category.
pub fn commands_of(category: Category) -> Vec<String> {
    let named = |spec: &Spec, parent: Option<&Spec>| (spec.category == category).then(|| spec.full_name(parent));
    let with_subcommands = |spec: &'static Spec| {
        let own = named(spec, None).filter(|_| spec.subcommands.is_empty());
        own.into_iter().chain(table::offered(spec.subcommands).filter_map(move |sub| named(sub, Some(spec))))
    };
    table::offered(COMMANDS).flat_map(with_subcommands).collect()
}

/// Finds the row of a command, or the rows of `parent|subcommand`.
fn find(name: &[u8]) -> Option<(Option<&'static Spec>, &'static Spec)> {
    match name.iter().position(|&byte| byte == b'|').and_then(|at| name.split_at_checked(at)) {
        None => table::find(COMMANDS, name).map(|spec| (None, spec)),
        Some((parent, subcommand)) => {
            let parent = table::find(COMMANDS, parent)?;
            let spec = table::find(parent.subcommands, subcommand.strip_prefix(b"|")?)?;
            Some((Some(parent), spec))
        }
    }
}

/// Writes the ten fields of Redis 7: name, arity, flags, first key, last key, step, ACL categories, tips, key specifications
/// and subcommands.
fn write_info(reply: &mut ReplyWriter, spec: &Spec, parent: Option<&Spec>) {
    reply.array(10);
    reply.bulk(spec.full_name(parent).as_bytes());
    reply.integer(spec.arity);
    reply.set(spec.flags.len());
    spec.flags.iter().for_each(|flag| reply.simple(flag));
    reply.integer(spec.keys.first);
    reply.integer(spec.keys.last);
    reply.integer(spec.keys.step);
    reply.set(0);
    reply.array(0);
    reply.array(0);
    reply.array(table::offered(spec.subcommands).count());
    table::offered(spec.subcommands).for_each(|subcommand| write_info(reply, subcommand, Some(spec)));
}

fn write_docs<'t>(reply: &mut ReplyWriter, specs: impl Iterator<Item = (Option<&'t Spec>, &'t Spec)> + Clone) {
    reply.map(specs.clone().count());
    specs.for_each(|(parent, spec)| write_doc(reply, spec, parent));
}

fn write_doc(reply: &mut ReplyWriter, spec: &Spec, parent: Option<&Spec>) {
    reply.bulk(spec.full_name(parent).as_bytes());
    reply.map(if spec.subcommands.is_empty() { 3 } else { 4 });
    for (field, text) in [("summary", spec.summary), ("since", spec.since), ("group", spec.group)] {
        reply.bulk(field.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if !spec.subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(table::offered(spec.subcommands).count());
        table::offered(spec.subcommands).for_each(|subcommand| write_doc(reply, subcommand, Some(spec)));
    }
}

fn write_help(reply: &mut ReplyWriter, parent: &Spec) {
    reply.array(1 + 2 * table::offered(parent.subcommands).count());
    reply.simple(&format!("{} <subcommand> [<argument> ...]. Subcommands are:", parent.name.to_uppercase()));
    for subcommand in table::offered(parent.subcommands) {
        reply.simple(&subcommand.name.to_uppercase());
        reply.simple(&format!("    {}", subcommand.summary));
    }
}
