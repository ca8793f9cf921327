//! Stored values: what a bucket remembers, as bytes.
//!
//! Little-endian 64-bit words, the first always the expiry by the server's clock, so that a compaction filter decides
//! from eight bytes without knowing the algorithm. The algorithm itself is part of the key.

use crate::algorithm::{Limit, State, fixed_window};
use crate::clock::Timestamp;

const WORD: usize = size_of::<u64>();

/// Bytes that are no value of the bucket's algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stored value of {length} bytes is none of this algorithm's")]
pub struct Damaged {
    pub length: usize,
}

/// Appends `state`, which may be forgotten from `expires` on.
pub fn encode(state: &State, expires: Timestamp, out: &mut Vec<u8>) {
    match state {
        // A window's end is its expiry: one word serves both.
        State::FixedWindow(state) => write_words(out, [state.ends.as_nanos(), state.left]),
    }
}

/// Reads a value back as a state of `limit`'s algorithm.
///
/// # Errors
/// [`Damaged`] when the length is wrong; every word is a valid number.
pub fn decode(limit: &Limit, bytes: &[u8]) -> Result<State, Damaged> {
    match limit {
        Limit::FixedWindow(_) => {
            let [ends, left] = read_words(bytes)?;
            Ok(State::FixedWindow(fixed_window::State { ends: Timestamp::from_nanos(ends), left }))
        }
    }
}

/// When the value may be forgotten, whatever its algorithm.
///
/// # Errors
/// [`Damaged`] when there is no whole word to read.
pub fn expiry(bytes: &[u8]) -> Result<Timestamp, Damaged> {
    let word = bytes.first_chunk::<WORD>().ok_or(Damaged { length: bytes.len() })?;
    Ok(Timestamp::from_nanos(u64::from_le_bytes(*word)))
}

fn write_words<const N: usize>(out: &mut Vec<u8>, words: [u64; N]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn read_words<const N: usize>(bytes: &[u8]) -> Result<[u64; N], Damaged> {
    let (words, rest) = bytes.as_chunks::<WORD>();
    let words: &[[u8; WORD]; N] = words.try_into().map_err(|_| Damaged { length: bytes.len() })?;
    if !rest.is_empty() {
        return Err(Damaged { length: bytes.len() });
    }
    Ok(words.map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::FixedWindow;
    use proptest::prelude::*;
    use std::num::NonZeroU64;

    fn fixed_window() -> Limit {
        Limit::FixedWindow(FixedWindow { credits: NonZeroU64::MIN, window_ns: NonZeroU64::MIN })
    }

    proptest! {
        #[test]
        fn a_value_reads_back(ends: u64, left: u64) {
            let state = State::FixedWindow(fixed_window::State { ends: Timestamp::from_nanos(ends), left });
            let mut bytes = Vec::new();
            encode(&state, Timestamp::from_nanos(ends), &mut bytes);
            prop_assert_eq!(expiry(&bytes), Ok(Timestamp::from_nanos(ends)));
            prop_assert_eq!(decode(&fixed_window(), &bytes), Ok(state));
        }

        #[test]
        fn foreign_bytes_are_refused_not_misread(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(decode(&fixed_window(), &bytes).is_ok(), bytes.len() == 2 * WORD);
            prop_assert_eq!(expiry(&bytes).is_ok(), bytes.len() >= WORD);
        }
    }
}
