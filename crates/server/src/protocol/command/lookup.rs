//! From a request to its command: finds the row in the table, then runs the row's parser.

use super::error::CommandError;
use super::kinds::Command;
use super::question::Question;
use super::table::{self, Spec};
use crate::protocol::resp::Arguments;
use divvy_api as api;
use divvy_core::nearest::nearest;

/// A command's row in the table, and its parent's if it is a subcommand.
#[derive(Debug, Clone, Copy)]
pub struct CommandMatch {
    /// The command of a subcommand. `None` if `spec` is the command itself.
    pub parent: Option<&'static Spec>,
    /// The row whose arity and parser apply.
    pub spec: &'static Spec,
}

impl CommandMatch {
    /// Returns the name in Redis's lists: `parent|name` for a subcommand.
    pub fn full_name(&self) -> String {
        self.spec.full_name(self.parent)
    }
}

impl<'a> Command<'a> {
    /// Reads a request, which must have at least one argument: callers skip empty requests.
    ///
    /// # Errors
    /// [`CommandError`], with Redis's wording where Redis has one.
    pub fn parse(request: Arguments<'a>) -> Result<Self, CommandError> {
        Self::parse_as(Self::find(request)?, request)
    }

    /// Finds the command of a request.
    ///
    /// # Errors
    /// The command or its subcommand is unknown.
    pub fn find(request: Arguments<'_>) -> Result<CommandMatch, CommandError> {
        let name = request.get(0).unwrap_or_default();
        if table::is_usual_hit(name) {
            return Ok(CommandMatch { parent: None, spec: &table::HIT });
        }
        let Some(spec) = table::find(table::COMMANDS, name) else {
            return Err(CommandError::unknown_command(request, suggest(name)));
        };
        if spec.subcommands.is_empty() {
            return Ok(CommandMatch { parent: None, spec });
        }
        match request.get(1) {
            Some(subcommand) if !is_help(subcommand) => {
                let found = table::find(spec.subcommands, subcommand);
                let found = found.ok_or_else(|| CommandError::unknown_subcommand(spec.name, subcommand))?;
                Ok(CommandMatch { parent: Some(spec), spec: found })
            }
            _ => Ok(CommandMatch { parent: None, spec }),
        }
    }

    /// Returns whether clients send this request when they connect, and work even if it fails.
    pub fn is_optional(request: Arguments<'_>) -> bool {
        let Some(spec) = table::find_any(table::COMMANDS, request.get(0).unwrap_or_default()) else { return false };
        let subcommand = request.get(1).and_then(|name| table::find_any(spec.subcommands, name));
        subcommand.unwrap_or(spec).is_optional()
    }

    /// Reads a request of the command that [`Command::find`] found in it.
    ///
    /// # Errors
    /// Same as [`Command::parse`].
    pub fn parse_as(found: CommandMatch, request: Arguments<'a>) -> Result<Self, CommandError> {
        let CommandMatch { parent, spec } = found;
        if !spec.subcommands.is_empty() && request.get(1).is_some_and(is_help) {
            return Ok(Self::Describe(Question::Help(spec.name)));
        }
        if !spec.takes(request.len()) {
            return Err(CommandError::wrong_arity(found.full_name()));
        }
        let words = request.skip(if parent.is_some() { 2 } else { 1 });
        match spec.endpoint {
            Some(endpoint) => {
                // Mistakes are found now, and the words are read again when the operation is carried out.
                api::Arguments::from_words(endpoint, words.iter(), usize::MAX)?;
                Ok(Self::Operate(endpoint, words))
            }
            None => (spec.parse)(words),
        }
    }
}

/// Returns the divvy command that `name` probably stands for: `divvy.hit` for `HIT` or `DIVVY.HITS`. Names of Redis's commands
/// have no suggestion.
fn suggest(name: &[u8]) -> Option<&'static str> {
    let name = std::str::from_utf8(name).ok()?.to_lowercase();
    let own: Vec<_> = table::COMMANDS.iter().filter_map(|spec| spec.name.strip_prefix("divvy.")).collect();
    let meant = match name.strip_prefix("divvy") {
        Some(rest) => nearest(rest.trim_start_matches(['.', '_', '-', ':']), &own)?,
        None => own.into_iter().find(|known| *known == name)?,
    };
    table::find(table::COMMANDS, format!("divvy.{meant}").as_bytes()).map(|spec| spec.name)
}

fn is_help(subcommand: &[u8]) -> bool {
    subcommand.eq_ignore_ascii_case(b"help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_commands_are_suggested() {
        for (name, meant) in [
            ("HIT", "divvy.hit"),
            ("peek", "divvy.peek"),
            ("DIVVY.HITS", "divvy.hit"),
            ("DIVVY_HIT", "divvy.hit"),
            ("divvy.counter", "divvy.counters"),
            ("DIVVY.RESERV", "divvy.reserve"),
        ] {
            assert_eq!(suggest(name.as_bytes()), Some(meant), "{name}");
        }
        for name in ["GETRANGE", "NONSENSE", "", "DIVVY", "DIVVY.XYZ", "INCR", "\u{ff}"] {
            assert_eq!(suggest(name.as_bytes()), None, "{name}");
        }
    }
}
