//! What `COMMAND`, its subcommands and `HELP` ask.

use crate::protocol::resp::Arguments;

/// What a client wants to know about the commands.
#[derive(Debug, Clone, Copy)]
pub enum Question<'a> {
    All,
    Count,
    List,
    /// Of the named commands; each unknown one is answered with a null.
    Info(Arguments<'a>),
    /// Of the named commands, or of all when none is named; unknown ones are left out.
    Docs(Arguments<'a>),
    /// Of a command with subcommands, by its name.
    Help(&'static str),
}
