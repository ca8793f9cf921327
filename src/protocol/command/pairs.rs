//! Operations in RESP: each argument one pair, split at its first `=`; and the cost and the id that may follow them.

use std::ops::Range;

use super::error::CommandError;
use super::integer::integer;
use crate::protocol::resp::Arguments;
use crate::rules::Operation;

/// Precedes the cost of a hit, in any case. A pair contains `=`, so this is not one.
const COST: &[u8] = b"COST";
/// Likewise, its id.
const ID: &[u8] = b"ID";

/// The `key=value` arguments of a request, not yet looked at.
#[derive(Debug, Clone, Copy)]
pub struct Pairs<'a>(pub(super) Arguments<'a>);

/// `key=value… [COST n] [ID text]`: pairs, and what a hit of them takes.
#[derive(Debug, Clone, Copy)]
pub struct PricedOperation<'a> {
    pub pairs: Pairs<'a>,
    /// Credits to take instead of the rules' cost. `None`: the rules' cost.
    pub cost: Option<u64>,
    /// The client's own name of the request, which is then answered once: any bytes.
    pub id: Option<&'a [u8]>,
}

/// What may follow the pairs.
#[derive(Debug, Clone, Copy)]
enum PricedSuffix {
    Cost,
    Id,
}

impl<'a> PricedOperation<'a> {
    /// # Errors
    /// The cost is not a number, or is negative. A misplaced `COST` or `ID` is found when the pairs are read.
    #[inline]
    pub(super) fn read(arguments: Arguments<'a>) -> Result<Self, CommandError> {
        let mut read = Self { pairs: Pairs(arguments), cost: None, id: None };
        while let Some(option) = read.last_option() {
            read.take(option)?;
        }
        Ok(read)
    }

    /// The option at the end, if there is one that was not there before.
    #[inline]
    fn last_option(&self) -> Option<PricedSuffix> {
        let place = self.pairs.0.len().checked_sub(2)?;
        let word = self.pairs.0.get(place)?;
        if self.cost.is_none() && word.eq_ignore_ascii_case(COST) {
            Some(PricedSuffix::Cost)
        } else if self.id.is_none() && word.eq_ignore_ascii_case(ID) {
            Some(PricedSuffix::Id)
        } else {
            None
        }
    }

    /// Takes the option off the end.
    #[inline(never)]
    fn take(&mut self, option: PricedSuffix) -> Result<(), CommandError> {
        let arguments = self.pairs.0;
        let pairs = arguments.len().saturating_sub(2);
        let value = arguments.get(pairs + 1).unwrap_or_default();
        match option {
            PricedSuffix::Cost => {
                let cost = integer(value).and_then(|number| u64::try_from(number).ok());
                self.cost = Some(cost.ok_or_else(|| CommandError::not_a_cost(value))?);
            }
            PricedSuffix::Id => self.id = Some(value),
        }
        self.pairs = Pairs(arguments.first(pairs));
        Ok(())
    }
}

impl Pairs<'_> {
    /// # Errors
    /// There are more than `max_pairs`.
    pub fn check_count(&self, max_pairs: usize) -> Result<(), CommandError> {
        if self.0.len() > max_pairs { Err(CommandError::TooManyPairs { max_pairs }) } else { Ok(()) }
    }

    /// Reads the pairs into `operation`. After an error, do not use its content.
    ///
    /// # Errors
    /// An argument without `=` or that is not UTF-8, and more than `max_pairs` of them.
    pub fn read_into(&self, operation: &mut Operation, max_pairs: usize) -> Result<(), CommandError> {
        self.check_count(max_pairs)?;
        let (text, places) = self.0.span();
        operation.begin_text(text);
        // Most requests are ASCII, which is seen many bytes at once.
        let is_ascii = text.is_ascii();
        for Range { start, end } in places {
            let argument = text.get(start..end).unwrap_or_default();
            if !is_ascii && std::str::from_utf8(argument).is_err() {
                return Err(CommandError::not_utf8(argument));
            }
            let equals = argument.iter().position(|byte| *byte == b'=').ok_or_else(|| not_a_pair(argument))?;
            operation.set_spans(start..start + equals, start + equals + 1..end);
        }
        Ok(())
    }
}

fn not_a_pair(argument: &[u8]) -> CommandError {
    if argument.eq_ignore_ascii_case(COST) {
        CommandError::MisplacedCost
    } else if argument.eq_ignore_ascii_case(ID) {
        CommandError::MisplacedId
    } else {
        CommandError::not_a_pair(argument)
    }
}
