//! Operations in RESP: each argument one pair, split at its first `=`.

use super::CommandError;
use crate::protocol::resp::Arguments;
use crate::rules::Operation;

/// The `key=value` arguments of a request, not yet looked at.
#[derive(Debug, Clone, Copy)]
pub struct Pairs<'a>(pub(super) Arguments<'a>);

impl Pairs<'_> {
    /// Reads the pairs into `operation`, which after an error holds nothing of use.
    ///
    /// # Errors
    /// An argument without `=` or that is not UTF-8, and more than `max_pairs` of them.
    pub fn read_into(&self, operation: &mut Operation, max_pairs: usize) -> Result<(), CommandError> {
        operation.clear();
        if self.0.len() > max_pairs {
            return Err(CommandError::TooManyPairs { max_pairs });
        }
        for argument in self.0.iter() {
            let text = std::str::from_utf8(argument).map_err(|_| CommandError::not_utf8(argument))?;
            let (key, value) = text.split_once('=').ok_or_else(|| CommandError::not_a_pair(argument))?;
            operation.set(key, value);
        }
        Ok(())
    }
}
