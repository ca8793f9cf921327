//! Stored values: states of buckets, and records, as bytes.
//!
//! A value consists of little-endian 64-bit words. The first word is always the expiry by the server's clock, so that a
//! compaction filter needs only eight bytes, and does not depend on the algorithm. The algorithm is part of the key.
//!
//! A token bucket and a leaky bucket have one more word if they were last used under an actor's own limit.
//!
//! A record, and a bucket with reservations, ends in a byte that names its kind. So it is never a whole number of words.

use crate::contract::StoreError;
use divvy_core::algorithm::groups::{BucketClock, ExpiryGroup, ExpiryGroups};
use divvy_core::algorithm::record::{Content, Reservation};
use divvy_core::algorithm::{
    ConcurrencyState, LeakyBucketState, Limit, MAX_LOG_CREDITS, Outcome, OutcomeSource, Record, ReservedState,
    Resolution, Run, SlidingLogState, SlidingWindowState, State, TokenBucketState, WindowState,
};
use divvy_core::clock::{NANOS_PER_MILLI, Timestamp};

const WORD: usize = size_of::<u64>();
/// Size of a group of reservations (bytes): the milliseconds from the end of the first group to its own (four bytes),
/// and its credits (a word).
const GROUP: usize = size_of::<u32>() + WORD;
/// The last byte of a bucket with reservations.
const RESERVED: u8 = 5;
/// The last byte of a bucket with reservations that was last used under an actor's own limit, which its state names.
const RESERVED_OWN: u8 = 6;
/// The last byte of the record of an open reservation.
const OPEN: u8 = 2;
/// The last byte of the record of a committed reservation.
const COMMITTED: u8 = 3;
/// The last byte of the record of an idempotent request.
const ANSWERED: u8 = 4;

// Flags of an answer.
const ALLOWED: u64 = 1;
const HELD_BACK: u64 = 2;
const HAS_RETRY: u64 = 4;

/// Appends a state that may be forgotten from `expires` on.
pub fn encode(state: &State, expires: Timestamp, out: &mut Vec<u8>) {
    // A window's end is also its expiry, so both share one word.
    if !matches!(state, State::FixedWindow(_)) {
        write_words(out, [expires.as_nanos()]);
    }
    match state {
        State::FixedWindow(state) => encode_window(state.ends.as_nanos(), state.count, out),
        State::SlidingWindow(state) => write_words(out, [state.start.as_nanos(), state.current, state.previous]),
        State::SlidingLog(state) => state.times.iter().for_each(|time| write_words(out, [time.as_nanos()])),
        State::TokenBucket(state) => {
            write_words(out, [state.mark.as_nanos(), state.count, state.session.as_nanos()]);
        }
        State::LeakyBucket(state) => write_words(out, [state.mark.as_nanos(), state.credits, state.drops]),
        State::Concurrency(state) => write_words(out, [state.time.as_nanos()]),
        State::Reserved(state) => {
            encode(&state.base, expires, out);
            encode_groups(&state.groups, out);
            out.push(if own_capacity(&state.base) > 0 { RESERVED_OWN } else { RESERVED });
        }
    }
    match own_capacity(state) {
        0 => {}
        capacity => write_words(out, [capacity]),
    }
}

/// Returns the capacity of an actor's own limit, or 0 if the state was last used under the rule's.
fn own_capacity(state: &State) -> u64 {
    match state {
        State::TokenBucket(state) => state.own_capacity,
        State::LeakyBucket(state) => state.own_capacity,
        _ => 0,
    }
}

/// Appends the state of a fixed window. Its end is its expiry, in one word.
#[inline]
pub fn encode_window(ends: u64, count: u64, out: &mut Vec<u8>) {
    write_words(out, [ends, count]);
}

fn encode_groups(groups: &ExpiryGroups, out: &mut Vec<u8>) {
    let first = groups.groups().first().map_or(Timestamp::EPOCH, |group| group.ends);
    write_words(out, [groups.generation, groups.time.as_nanos(), groups.clock.ahead_ms, first.as_nanos()]);
    for group in groups.groups() {
        let later_ms = group.ends.since(first) / NANOS_PER_MILLI;
        out.extend_from_slice(&u32::try_from(later_ms).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&group.credits.to_le_bytes());
    }
}

/// Appends a record.
pub fn encode_record(record: &Record, out: &mut Vec<u8>) {
    let until = record.until.as_nanos();
    match record.content {
        Content::Open { reservation, ends, generation, capacity } => {
            let terms = terms_word(&reservation);
            write_words(out, [until, reservation.credits, terms, ends.as_nanos(), generation, capacity]);
            out.push(OPEN);
        }
        Content::Committed { reservation, left, owed, reset_ns } => {
            let terms = terms_word(&reservation);
            write_words(out, [until, reservation.credits, terms, until, left, owed, reset_ns]);
            out.push(COMMITTED);
        }
        Content::Answer { fingerprint, is_held_back, outcome } => {
            let Outcome { allowed, before, left, owed, reset_ns, retry_ns, session, run: _, resolution: _, source: _ } =
                outcome;
            let flag = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
            let flags = flag(allowed, ALLOWED) | flag(is_held_back, HELD_BACK) | flag(retry_ns.is_some(), HAS_RETRY);
            write_words(out, [until, fingerprint, flags, before, left, owed, reset_ns]);
            write_words(out, [retry_ns.unwrap_or(0), session.as_nanos()]);
            out.push(ANSWERED);
        }
    }
}

/// Returns the TTL and the run of a reservation in one word: the run is in the upper half.
fn terms_word(reservation: &Reservation) -> u64 {
    u64::from(reservation.run.map_or(0, Run::get)) << 32 | u64::from(reservation.ttl_seconds)
}

fn read_reservation(credits: u64, terms: u64) -> Reservation {
    Reservation { credits, ttl_seconds: terms as u32, run: Run::new((terms >> 32) as u32) }
}

/// Reads a record.
///
/// # Errors
/// The bytes are not a record.
pub fn decode_record(bytes: &[u8]) -> Result<Record, StoreError> {
    read_record(bytes).ok_or_else(|| damaged(bytes))
}

fn read_record(bytes: &[u8]) -> Option<Record> {
    let (kind, words) = bytes.split_last()?;
    let (until, content) = match *kind {
        OPEN => {
            let [until, credits, terms, ends, generation, capacity] = read_words(words)?;
            let reservation = read_reservation(credits, terms);
            (until, Content::Open { reservation, ends: Timestamp::from_nanos(ends), generation, capacity })
        }
        COMMITTED => {
            let [_, credits, terms, until, left, owed, reset_ns] = read_words(words)?;
            let reservation = read_reservation(credits, terms);
            (until, Content::Committed { reservation, left, owed, reset_ns })
        }
        ANSWERED => {
            let [until, fingerprint, flags, before, left, owed, reset_ns, retry_ns, session] = read_words(words)?;
            let is_set = |bit| flags & bit != 0;
            let outcome = Outcome {
                allowed: is_set(ALLOWED),
                before,
                left,
                owed,
                reset_ns,
                retry_ns: is_set(HAS_RETRY).then_some(retry_ns),
                session: Timestamp::from_nanos(session),
                run: None,
                resolution: Resolution::Done,
                source: OutcomeSource::Store,
            };
            (until, Content::Answer { fingerprint, is_held_back: is_set(HELD_BACK), outcome })
        }
        _ => return None,
    };
    Some(Record { until: Timestamp::from_nanos(until), content })
}

/// Reads a value as a state of `limit`'s algorithm.
///
/// # Errors
/// The length is wrong. Every word is a valid number.
pub fn decode(limit: &Limit, bytes: &[u8]) -> Result<State, StoreError> {
    read_state(limit, bytes).ok_or_else(|| damaged(bytes))
}

fn read_state(limit: &Limit, bytes: &[u8]) -> Option<State> {
    if let Some((kind @ (&RESERVED | &RESERVED_OWN), words)) = bytes.split_last()
        && !bytes.len().is_multiple_of(WORD)
    {
        return read_reserved(limit, *kind == RESERVED_OWN, words);
    }
    let mut rest = bytes;
    let is_own = bytes.len() > 4 * WORD && matches!(limit, Limit::TokenBucket(_) | Limit::LeakyBucket(_));
    let state = read_own_state(limit, is_own, &mut rest)?;
    rest.is_empty().then_some(state)
}

/// Reads the state of the algorithm alone, which is followed by others in a bucket with reservations.
fn read_own_state(limit: &Limit, is_own: bool, bytes: &mut &[u8]) -> Option<State> {
    let own_capacity = |bytes: &mut _| if is_own { take_words(bytes).map(|[capacity]| capacity) } else { Some(0) };
    let time = Timestamp::from_nanos;
    Some(match limit {
        Limit::FixedWindow(_) | Limit::CalendarWindow(_) | Limit::Counter(_) => {
            let [ends, count] = take_words(bytes)?;
            State::FixedWindow(WindowState { ends: time(ends), count })
        }
        Limit::SlidingWindow(_) => {
            let [_, start, current, previous] = take_words(bytes)?;
            State::SlidingWindow(SlidingWindowState { start: time(start), current, previous })
        }
        // A log takes the rest. It has no reservations.
        Limit::SlidingLog(_) => {
            let [_, times @ ..] = words(std::mem::take(bytes))? else { return None };
            // An actor's own limit may have more credits than the limit in the key.
            if times.len() as u64 > MAX_LOG_CREDITS {
                return None;
            }
            let times = times.iter().map(|word| time(u64::from_le_bytes(*word))).collect();
            State::SlidingLog(SlidingLogState { times })
        }
        Limit::TokenBucket(_) => {
            let [_, mark, count, session] = take_words(bytes)?;
            let own_capacity = own_capacity(bytes)?;
            State::TokenBucket(TokenBucketState { mark: time(mark), count, session: time(session), own_capacity })
        }
        Limit::LeakyBucket(_) => {
            let [_, mark, credits, drops] = take_words(bytes)?;
            let own_capacity = own_capacity(bytes)?;
            State::LeakyBucket(LeakyBucketState { mark: time(mark), credits, drops, own_capacity })
        }
        Limit::Concurrency(_) => {
            let [_, changed] = take_words(bytes)?;
            State::Concurrency(ConcurrencyState { time: time(changed) })
        }
    })
}

fn read_reserved(limit: &Limit, is_own: bool, bytes: &[u8]) -> Option<State> {
    let mut rest = bytes.get(WORD..)?;
    let base = read_own_state(limit, is_own, &mut rest)?;
    let [generation, time, ahead_ms, first] = take_words(&mut rest)?;
    let (groups, rest) = rest.as_chunks::<GROUP>();
    let group = |bytes: &[u8; GROUP]| {
        let (later_ms, credits) = bytes.split_first_chunk()?;
        let ends = Timestamp::from_nanos(first).plus(u64::from(u32::from_le_bytes(*later_ms)) * NANOS_PER_MILLI);
        Some(ExpiryGroup { ends, credits: u64::from_le_bytes(*credits.first_chunk()?) })
    };
    let groups: Option<Vec<_>> = groups.iter().map(group).collect();
    let clock = BucketClock { ahead_ms };
    let groups = ExpiryGroups::from_stored(generation, Timestamp::from_nanos(time), clock, groups?)
        .filter(|_| rest.is_empty())?;
    Some(State::Reserved(Box::new(ReservedState { base, groups })))
}

/// Returns when the value may be forgotten, regardless of its algorithm.
///
/// # Errors
/// The value is shorter than a word.
pub fn expiry(bytes: &[u8]) -> Result<Timestamp, StoreError> {
    let word = bytes.first_chunk::<WORD>().ok_or_else(|| damaged(bytes))?;
    Ok(Timestamp::from_nanos(u64::from_le_bytes(*word)))
}

#[cold]
fn damaged(bytes: &[u8]) -> StoreError {
    StoreError::new(format!("a stored value of {} bytes does not belong to this algorithm", bytes.len()))
}

fn write_words<const N: usize>(out: &mut Vec<u8>, words: [u64; N]) {
    out.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
}

fn read_words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let words: &[[u8; WORD]; N] = words(bytes)?.try_into().ok()?;
    Some(words.map(u64::from_le_bytes))
}

/// Reads words from the front of `bytes`, and removes them.
fn take_words<const N: usize>(bytes: &mut &[u8]) -> Option<[u64; N]> {
    let (taken, rest) = bytes.split_at_checked(N * WORD)?;
    *bytes = rest;
    read_words(taken)
}

fn words(bytes: &[u8]) -> Option<&[[u8; WORD]]> {
    let (words, rest) = bytes.as_chunks::<WORD>();
    rest.is_empty().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::algorithm::{Ask, Kind, SlidingLog};
    use proptest::prelude::*;

    /// Returns a limit of each algorithm that counts hits.
    fn limits() -> impl Iterator<Item = Limit> {
        let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Concurrency);
        kinds.map(|kind| Limit::new(kind, 9, 4, 70).unwrap())
    }

    #[test]
    fn state_of_every_algorithm_reads_back() {
        for limit in limits() {
            let mut state = None;
            for nanos in [1_000, 1_011, 1_060, 1_085] {
                let at = Timestamp::from_nanos(nanos);
                state = limit.decide(state.as_ref(), Ask::Take { cost: 2 }, at).state;
                let stored = state.clone().unwrap();
                let expires = at.plus(limit.lifetime_ns(&stored, at));
                let mut bytes = Vec::new();
                encode(&stored, expires, &mut bytes);
                assert_eq!(expiry(&bytes).ok(), Some(expires), "{limit:?}");
                assert_eq!(decode(&limit, &bytes).ok(), Some(stored), "{limit:?}");
            }
        }
    }

    #[test]
    fn bucket_with_reservations_reads_back_and_takes_less_than_a_kibibyte() {
        let at = Timestamp::from_secs(1_000_000).unwrap();
        for limit in limits().filter(|limit| limit.kind() != Kind::SlidingLog) {
            let limit = limit.counting(divvy_core::algorithm::CountBasis::Used);
            let mut groups = ExpiryGroups::new(u64::MAX);
            for group in 0..100 {
                groups.clock = BucketClock { ahead_ms: group };
                groups.add(u64::MAX / 200, at.plus(group * group * 1_000 * NANOS_PER_MILLI), at.plus(group));
                let base = limit.decide(None, Ask::Charge { cost: 3 }, at).state.unwrap();
                let state = State::Reserved(Box::new(ReservedState { base, groups: groups.clone() }));
                let mut bytes = Vec::new();
                encode(&state, at.plus(5), &mut bytes);
                assert!(bytes.len() < 1_024 && !bytes.len().is_multiple_of(WORD), "{}", bytes.len());
                assert_eq!(expiry(&bytes).ok(), Some(at.plus(5)));
                assert_eq!(decode(&limit, &bytes).ok(), Some(state));
            }
        }
    }

    fn assert_reads_back(record: Record) {
        let mut bytes = Vec::new();
        encode_record(&record, &mut bytes);
        assert_eq!((decode_record(&bytes).ok(), expiry(&bytes).ok()), (Some(record), Some(record.until)));
    }

    #[test]
    fn log_with_more_times_than_any_limit_has_credits_is_damaged() {
        let limit = Limit::SlidingLog(SlidingLog::new(3, 60).unwrap());
        assert!(decode(&limit, &[0; 1_001 * WORD]).is_ok());
        assert!(decode(&limit, &[0; 1_002 * WORD]).unwrap_err().to_string().contains("8016 bytes"));
        assert!(decode(&limit, &[]).is_err());
    }

    proptest! {
        #[test]
        fn reservation_reads_back(credits: u64, ttl_seconds: u32, run: u32, word: u64, left: u64, owed: u64, reset_ns: u64) {
            let reservation = Reservation { credits, ttl_seconds, run: Run::new(run) };
            let until = Timestamp::from_nanos(word);
            let open = Content::Open { reservation, ends: Timestamp::from_nanos(owed), generation: left, capacity: reset_ns };
            for content in [open, Content::Committed { reservation, left, owed, reset_ns }] {
                assert_reads_back(Record { until, content });
            }
        }

        #[test]
        fn answer_reads_back(numbers: [u64; 7], bits: [bool; 3]) {
            let [fingerprint, until, before, left, owed, reset_ns, retry] = numbers;
            let [allowed, is_held_back, has_retry] = bits;
            let (until, retry_ns) = (Timestamp::from_nanos(until), has_retry.then_some(retry));
            let outcome = Outcome { allowed, before, left, owed, reset_ns, retry_ns, session: until, ..Outcome::default() };
            assert_reads_back(Record { until, content: Content::Answer { fingerprint, is_held_back, outcome } });
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(0..5u8, 0..120)) {
            let _ = decode_record(&bytes);
            for limit in limits() {
                let _ = decode(&limit, &bytes);
            }
        }
    }
}
