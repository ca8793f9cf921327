//! Requests for descriptions of commands: `COMMAND`, its subcommands, and `HELP`.

use crate::protocol::resp::Arguments;

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
    /// Describes the subcommands of the command with this name.
    Help(&'static str),
}
