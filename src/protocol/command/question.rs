//! What `COMMAND`, its subcommands and `HELP` ask.

use crate::protocol::resp::Arguments;

/// What a client wants to know about the commands.
#[derive(Debug, Clone, Copy)]
pub enum Question<'a> {
    All,
    Count,
    List,
    /// The named commands; null for an unknown one.
    Info(Arguments<'a>),
    /// The named commands, or all; unknown ones are left out.
    Docs(Arguments<'a>),
    /// Of a command with subcommands, by its name.
    Help(&'static str),
}
