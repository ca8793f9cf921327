//! Requests about operations, each argument a pair that is split at its first `=`, with options after the pairs; and requests about
//! reservations.

use std::ops::Range;

use super::connection_commands::{ParseResult, integer};
use super::{Command, CommandError, echo};
use crate::protocol::resp::Arguments;
use divvy_core::rules::Operation;
use divvy_limiter::{Intent, Reserve, Settlement};

/// Precedes the cost of a hit, in upper or lower case. A pair contains `=`, so this is not one.
const COST: &[u8] = b"COST";
/// Precedes the id of a hit or a reservation, in upper or lower case.
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

impl<'a> PricedOperation<'a> {
    /// Splits the options from the pairs.
    ///
    /// # Errors
    /// The cost is not a number, or is negative, or the form of the reply is unknown. A misplaced option is found when the pairs
    /// are read.
    #[inline]
    pub(super) fn read(arguments: Arguments<'a>) -> Result<Self, CommandError> {
        let mut read = Self { pairs: Pairs(arguments), cost: None, id: None, in_json: false };
        // The last two arguments are an option and its value, unless they are pairs.
        while let Some(place) = read.pairs.len().checked_sub(2) {
            let arguments = read.pairs.0;
            let (word, value) = (arguments.word(place), || arguments.word(place + 1));
            if read.cost.is_none() && word.eq_ignore_ascii_case(COST) {
                read.cost = Some(read_cost(value())?);
            } else if read.id.is_none() && word.eq_ignore_ascii_case(ID) {
                read.id = Some(value());
            } else if !read.in_json && word.eq_ignore_ascii_case(REPLY) {
                if !value().eq_ignore_ascii_case(JSON) {
                    return Err(CommandError::fixed("ERR REPLY must be JSON"));
                }
                read.in_json = true;
            } else {
                break;
            }
            read.pairs = Pairs(arguments.first(place));
        }
        Ok(read)
    }
}

impl Pairs<'_> {
    /// Returns the number of arguments.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Reads the pairs into `operation`. After an error, do not use its content.
    ///
    /// # Errors
    /// An argument has no `=` or is not UTF-8, a field is given twice, or there are more than `max_pairs`.
    pub fn read_into(&self, operation: &mut Operation, max_pairs: usize) -> Result<(), CommandError> {
        if self.len() > max_pairs {
            return Err(CommandError::too_many_pairs(max_pairs));
        }
        let (text, places) = self.0.span();
        operation.begin_text(text);
        // Most requests are ASCII, and checking that takes many bytes at once.
        let is_ascii = text.is_ascii();
        for Range { start, end } in places {
            let argument = text.get(start..end).unwrap_or_default();
            if !is_ascii && std::str::from_utf8(argument).is_err() {
                return Err(not_utf8(argument));
            }
            let equals = find_equals(argument).ok_or_else(|| not_a_pair(argument))?;
            if !operation.set_spans(start..start + equals, start + equals + 1..end) {
                return Err(repeated(argument.get(..equals).unwrap_or_default()));
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

#[cold]
pub(super) fn not_a_pair(argument: &[u8]) -> CommandError {
    let is_option = [COST, ID, REPLY].iter().any(|option| argument.eq_ignore_ascii_case(option));
    let hint = if is_option { "; an option comes once, after all pairs and with its value" } else { "" };
    CommandError::argument(format!("ERR expected key=value, got '{}'{hint}", echo(argument)))
}

#[cold]
pub(super) fn not_utf8(argument: &[u8]) -> CommandError {
    CommandError::argument(format!("ERR '{}' is not valid UTF-8", echo(argument)))
}

#[cold]
pub(super) fn repeated(field: &[u8]) -> CommandError {
    CommandError::argument(format!("ERR the field '{}' is given twice", echo(field)))
}

/// Parses pairs and their options. A peek needs no id, because it may be repeated.
#[inline]
pub(super) fn ask(intent: Intent, arguments: Arguments<'_>) -> ParseResult<'_> {
    match PricedOperation::read(arguments)? {
        request if intent == Intent::Peek && request.id.is_some() => {
            Err(CommandError::fixed("ERR DIVVY.PEEK takes no ID"))
        }
        request => Ok(Command::Ask(intent, request)),
    }
}

/// Parses `key=value… AMOUNT n [TTL seconds] [ID text]`.
pub(super) fn reserve(arguments: Arguments<'_>) -> ParseResult<'_> {
    let pairs = count_pairs(arguments);
    let usage = "DIVVY.RESERVE key=value... AMOUNT n [TTL seconds] [ID text]";
    let [amount, ttl, id] = options(arguments.skip(pairs), ["AMOUNT", "TTL", "ID"], usage)?;
    let amount = amount.ok_or(CommandError::fixed("ERR DIVVY.RESERVE needs AMOUNT n after all pairs"))?;
    let (credits, ttl_seconds) = (whole("AMOUNT", amount, 1)?, ttl.map(read_ttl).transpose()?);
    Ok(Command::Reserve(Pairs(arguments.first(pairs)), Reserve { credits, ttl_seconds, id }))
}

/// Parses `key=value… WANT n`.
pub(super) fn share(arguments: Arguments<'_>) -> ParseResult<'_> {
    let pairs = count_pairs(arguments);
    let [want] = options(arguments.skip(pairs), ["WANT"], "DIVVY.SHARE key=value... WANT n")?;
    let want = want.ok_or(CommandError::fixed("ERR DIVVY.SHARE needs WANT n after all pairs"))?;
    Ok(Command::Share(Pairs(arguments.first(pairs)), whole("WANT", want, 1)?))
}

/// Parses `id CREDITS n`.
pub(super) fn give_back(arguments: Arguments<'_>) -> ParseResult<'_> {
    let [credits] = options(arguments.skip(1), ["CREDITS"], "DIVVY.RETURN id CREDITS n")?;
    let credits = whole("CREDITS", credits.unwrap_or_default(), 1)?;
    Ok(Command::Settle(arguments.word(0), Settlement::Return { credits }))
}

/// Parses `id COST n`.
pub(super) fn commit(arguments: Arguments<'_>) -> ParseResult<'_> {
    let [cost] = options(arguments.skip(1), ["COST"], "DIVVY.COMMIT id COST n")?;
    Ok(Command::Settle(arguments.word(0), Settlement::Commit { cost: read_cost(cost.unwrap_or_default())? }))
}

/// Parses `id [TTL seconds]`.
pub(super) fn renew(arguments: Arguments<'_>) -> ParseResult<'_> {
    let [ttl] = options(arguments.skip(1), ["TTL"], "DIVVY.RENEW id [TTL seconds]")?;
    Ok(Command::Settle(arguments.word(0), Settlement::Renew { ttl_seconds: ttl.map(read_ttl).transpose()? }))
}

/// Returns the number of pairs before the options. A pair contains `=`, so no option looks like one.
fn count_pairs(arguments: Arguments<'_>) -> usize {
    arguments.iter().take_while(|argument| argument.contains(&b'=')).count()
}

/// Reads the values of options with these names, each at most once, in any order and case.
fn options<'a, const COUNT: usize>(
    words: Arguments<'a>,
    names: [&str; COUNT],
    usage: &str,
) -> Result<[Option<&'a [u8]>; COUNT], CommandError> {
    let mut values = [None; COUNT];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let place = names.iter().position(|name| word.eq_ignore_ascii_case(name.as_bytes()));
        match (place.and_then(|place| values.get_mut(place)), words.next()) {
            (Some(value @ None), Some(given)) => *value = Some(given),
            _ => {
                let text = format!("ERR '{}' is not an option here; the command is {usage}", echo(word));
                return Err(CommandError::argument(text));
            }
        }
    }
    Ok(values)
}

#[inline(never)]
fn read_cost(value: &[u8]) -> Result<u64, CommandError> {
    whole("COST", value, 0)
}

/// Parses seconds, and caps them. The limiter refuses the cap as too long, too.
fn read_ttl(value: &[u8]) -> Result<u32, CommandError> {
    Ok(u32::try_from(whole("TTL", value, 1)?).unwrap_or(u32::MAX))
}

/// Parses the value of an option, a whole number from `least`.
fn whole(option: &str, value: &[u8], least: u64) -> Result<u64, CommandError> {
    let number = integer(value).and_then(|number| u64::try_from(number).ok()).filter(|number| *number >= least);
    number.ok_or_else(|| {
        let most = i64::MAX;
        let text = format!("ERR {option} is '{}', but must be a whole number from {least} to {most}", echo(value));
        CommandError::argument(text)
    })
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
