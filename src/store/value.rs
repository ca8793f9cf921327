//! Stored values: what a bucket remembers, as bytes.
//!
//! Little-endian 64-bit words, the first always the expiry by the server's clock, so that a compaction filter decides
//! from eight bytes without knowing the algorithm. The algorithm itself is part of the key.

use crate::algorithm::{
    Limit, MAX_LOG_CREDITS, State, fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket,
};
use crate::clock::Timestamp;

const WORD: usize = size_of::<u64>();

/// Bytes that are no value of the bucket's algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stored value of {length} bytes does not belong to this algorithm")]
pub struct Damaged {
    pub length: usize,
}

/// Appends `state`, which may be forgotten from `expires` on.
pub fn encode(state: &State, expires: Timestamp, out: &mut Vec<u8>) {
    match state {
        // A window's end is its expiry: one word serves both.
        State::FixedWindow(state) => write_words(out, [state.ends.as_nanos(), state.count]),
        State::SlidingWindow(state) => {
            write_words(out, [expires.as_nanos(), state.start.as_nanos(), state.current, state.previous]);
        }
        State::SlidingLog(state) => {
            write_words(out, [expires.as_nanos()]);
            write_words(out, state.times.iter().map(|time| time.as_nanos()));
        }
        State::TokenBucket(state) => {
            write_words(out, [expires.as_nanos(), state.mark.as_nanos(), state.count, state.session.as_nanos()]);
        }
        State::LeakyBucket(state) => {
            write_words(out, [expires.as_nanos(), state.mark.as_nanos(), state.credits, state.drops]);
        }
    }
}

/// Reads a value back as a state of `limit`'s algorithm.
///
/// # Errors
/// [`Damaged`] when the length is wrong; every word is a valid number.
pub fn decode(limit: &Limit, bytes: &[u8]) -> Result<State, Damaged> {
    match limit {
        Limit::FixedWindow(_) | Limit::CalendarWindow(_) => {
            let [ends, count] = read_words(bytes)?;
            Ok(State::FixedWindow(fixed_window::State { ends: Timestamp::from_nanos(ends), count }))
        }
        Limit::SlidingWindow(_) => {
            let [_, start, current, previous] = read_words(bytes)?;
            Ok(State::SlidingWindow(sliding_window::State { start: Timestamp::from_nanos(start), current, previous }))
        }
        Limit::SlidingLog(_) => {
            let [_, times @ ..] = words(bytes)? else { return Err(Damaged { length: bytes.len() }) };
            // Its limit may have been a higher one than that of the key: an actor may have one of its own.
            if times.len() as u64 > MAX_LOG_CREDITS {
                return Err(Damaged { length: bytes.len() });
            }
            let times = times.iter().map(|word| Timestamp::from_nanos(u64::from_le_bytes(*word))).collect();
            Ok(State::SlidingLog(sliding_log::State { times }))
        }
        Limit::TokenBucket(_) => {
            let [_, mark, count, session] = read_words(bytes)?;
            let (mark, session) = (Timestamp::from_nanos(mark), Timestamp::from_nanos(session));
            Ok(State::TokenBucket(token_bucket::State { mark, count, session }))
        }
        Limit::LeakyBucket(_) => {
            let [_, mark, credits, drops] = read_words(bytes)?;
            Ok(State::LeakyBucket(leaky_bucket::State { mark: Timestamp::from_nanos(mark), credits, drops }))
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

fn write_words(out: &mut Vec<u8>, words: impl IntoIterator<Item = u64>) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn read_words<const N: usize>(bytes: &[u8]) -> Result<[u64; N], Damaged> {
    let words: &[[u8; WORD]; N] = words(bytes)?.try_into().map_err(|_| Damaged { length: bytes.len() })?;
    Ok(words.map(u64::from_le_bytes))
}

fn words(bytes: &[u8]) -> Result<&[[u8; WORD]], Damaged> {
    let (words, rest) = bytes.as_chunks::<WORD>();
    if rest.is_empty() { Ok(words) } else { Err(Damaged { length: bytes.len() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Ask, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket};
    use proptest::prelude::*;

    fn fixed_window() -> Limit {
        Limit::FixedWindow(FixedWindow::new(1, 1).unwrap())
    }

    /// One limit of each algorithm, and the fewest words that its values have.
    fn limits() -> [(Limit, usize); 5] {
        [
            (Limit::FixedWindow(FixedWindow::new(9, 70).unwrap()), 2),
            (Limit::SlidingWindow(SlidingWindow::new(9, 70).unwrap()), 4),
            (Limit::SlidingLog(SlidingLog::new(9, 70).unwrap()), 1),
            (Limit::TokenBucket(TokenBucket::new(9, 2, 30).unwrap()), 4),
            (Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap()), 4),
        ]
    }

    #[test]
    fn a_state_of_every_algorithm_reads_back() {
        for (limit, shortest) in limits() {
            let mut state = None;
            for nanos in [1_000, 1_011, 1_060, 1_085] {
                let at = Timestamp::from_nanos(nanos);
                state = limit.decide(state.as_ref(), Ask::Take { cost: 2 }, at).state;
                let stored = state.clone().unwrap();
                let expires = at.plus(limit.lifetime_ns(&stored, at));
                let mut bytes = Vec::new();
                encode(&stored, expires, &mut bytes);
                assert!(bytes.len() >= shortest * WORD, "{limit:?}");
                assert_eq!(expiry(&bytes), Ok(expires), "{limit:?}");
                assert_eq!(decode(&limit, &bytes), Ok(stored), "{limit:?}");
            }
        }
    }

    #[test]
    fn a_log_with_more_times_than_any_limit_has_credits_is_damaged() {
        let limit = Limit::SlidingLog(SlidingLog::new(3, 60).unwrap());
        assert!(decode(&limit, &[0; 1_001 * WORD]).is_ok());
        assert_eq!(decode(&limit, &[0; 1_002 * WORD]), Err(Damaged { length: 1_002 * WORD }));
        assert_eq!(decode(&limit, &[]), Err(Damaged { length: 0 }));
    }

    proptest! {
        #[test]
        fn a_value_reads_back(ends: u64, count: u64) {
            let state = State::FixedWindow(fixed_window::State { ends: Timestamp::from_nanos(ends), count });
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
