//! Operations in RESP: each argument is a pair, split at its first `=`. A cost, an id and the form of the reply may follow.

use std::ops::Range;

use super::error::CommandError;
use super::integer::integer;
use crate::protocol::resp::Arguments;
use divvy_core::rules::Operation;

/// Precedes the cost of a hit, in upper or lower case. A pair contains `=`, so this is not one.
const COST: &[u8] = b"COST";
/// Precedes the id of a hit, in upper or lower case.
const ID: &[u8] = b"ID";

/// Precedes the form of the reply, in upper or lower case.
const REPLY: &[u8] = b"REPLY";
/// The form of a reply that is the answer of the HTTP API.
const JSON: &[u8] = b"JSON";

/// The `key=value` arguments of a request, not parsed yet.
#[derive(Debug, Clone, Copy)]
pub struct Pairs<'a>(pub(super) Arguments<'a>);

/// `key=value… [COST n] [ID text] [REPLY JSON]`: pairs, and the options of a request about them.
#[derive(Debug, Clone, Copy)]
pub struct PricedOperation<'a> {
    /// The operation, without the options after it.
    pub pairs: Pairs<'a>,
    /// Cost in credits; `None` for the rules' cost.
    pub cost: Option<u64>,
    /// The idempotency key: any bytes.
    pub id: Option<&'a [u8]>,
    /// Whether the reply is the answer of the HTTP API, which names the rule.
    pub in_json: bool,
}

/// An option after the pairs.
#[derive(Debug, Clone, Copy)]
enum PricedSuffix {
    Cost,
    Id,
    Reply,
}

impl<'a> PricedOperation<'a> {
    /// Splits the options from the pairs.
    ///
    /// # Errors
    /// The cost is not a number, or is negative, or the form of the reply is unknown. A misplaced option is found when the pairs
    /// are read.
    #[inline]
    pub(super) fn read(arguments: Arguments<'a>) -> Result<Self, CommandError> {
        let mut read = Self { pairs: Pairs(arguments), cost: None, id: None, in_json: false };
        while let Some(option) = read.last_option() {
            read.take(option)?;
        }
        Ok(read)
    }

    /// Returns the option at the end, unless it was read already.
    #[inline]
    fn last_option(&self) -> Option<PricedSuffix> {
        let place = self.pairs.0.len().checked_sub(2)?;
        let word = self.pairs.0.get(place)?;
        if self.cost.is_none() && word.eq_ignore_ascii_case(COST) {
            Some(PricedSuffix::Cost)
        } else if self.id.is_none() && word.eq_ignore_ascii_case(ID) {
            Some(PricedSuffix::Id)
        } else if !self.in_json && word.eq_ignore_ascii_case(REPLY) {
            Some(PricedSuffix::Reply)
        } else {
            None
        }
    }

    /// Reads the option at the end, and removes it.
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
            PricedSuffix::Reply if value.eq_ignore_ascii_case(JSON) => self.in_json = true,
            PricedSuffix::Reply => return Err(CommandError::MisplacedReply),
        }
        self.pairs = Pairs(arguments.first(pairs));
        Ok(())
    }
}

impl<'a> Pairs<'a> {
    /// Returns the arguments as sent. Some of them may be invalid.
    pub fn arguments(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.0.iter()
    }
}

impl Pairs<'_> {
    /// Checks the number of pairs.
    ///
    /// # Errors
    /// There are more than `max_pairs`.
    pub fn check_count(&self, max_pairs: usize) -> Result<(), CommandError> {
        if self.0.len() > max_pairs { Err(CommandError::TooManyPairs { max_pairs }) } else { Ok(()) }
    }

    /// Reads the pairs into `operation`. After an error, do not use its content.
    ///
    /// # Errors
    /// An argument has no `=` or is not UTF-8, a field is given twice, or there are more than `max_pairs`.
    pub fn read_into(&self, operation: &mut Operation, max_pairs: usize) -> Result<(), CommandError> {
        self.check_count(max_pairs)?;
        let (text, places) = self.0.span();
        operation.begin_text(text);
        // Most requests are ASCII, and checking that takes many bytes at once.
        let is_ascii = text.is_ascii();
        for Range { start, end } in places {
            let argument = text.get(start..end).unwrap_or_default();
            if !is_ascii && std::str::from_utf8(argument).is_err() {
                return Err(CommandError::not_utf8(argument));
            }
            let equals = find_equals(argument).ok_or_else(|| not_a_pair(argument))?;
            if !operation.set_spans(start..start + equals, start + equals + 1..end) {
                return Err(CommandError::repeated(argument.get(..equals).unwrap_or_default()));
            }
        }
        Ok(())
    }
}

/// Returns the position of the first `=`. Most keys have fewer than eight bytes, which are searched in a few instructions: a
/// byte is 0 if and only if subtracting 1 from it borrows, as long as no lower byte is 0 (H. S. Warren, "Hacker's Delight",
/// section 6-1).
#[inline]
fn find_equals(argument: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 0xff;
    let Some((first, rest)) = argument.split_first_chunk() else {
        return argument.iter().position(|byte| *byte == b'=');
    };
    let zeroed = u64::from_le_bytes(*first) ^ (ONES * u64::from(b'='));
    match zeroed.wrapping_sub(ONES) & !zeroed & (ONES << 7) {
        0 => memchr::memchr(b'=', rest).map(|at| first.len() + at),
        found => Some(found.trailing_zeros() as usize / 8),
    }
}

fn not_a_pair(argument: &[u8]) -> CommandError {
    if argument.eq_ignore_ascii_case(COST) {
        CommandError::MisplacedCost
    } else if argument.eq_ignore_ascii_case(ID) {
        CommandError::MisplacedId
    } else if argument.eq_ignore_ascii_case(REPLY) {
        CommandError::MisplacedReply
    } else {
        CommandError::not_a_pair(argument)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn first_equals_sign_is_found(argument in prop::collection::vec(prop_oneof![any::<u8>(), 0x3c..=0x3e_u8], 0..20)) {
            prop_assert_eq!(find_equals(&argument), argument.iter().position(|byte| *byte == b'='));
        }
    }
}
