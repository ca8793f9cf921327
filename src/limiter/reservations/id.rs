//! The ids of reservations, as clients see them: opaque, and safe in a URL. Each names the records of its reservation, and so
//! its buckets, whatever the rules are when it is settled, and the rules, of which several may share a bucket.
//!
//! The text is base64url without padding (RFC 4648, section 5) of: a version, the records' keys, each after its length and what
//! stands for its rule, and a checksum. The checksum finds slips, and no malice: an id allows no more than a charge does.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip128::SipHasher13;

use crate::limiter::{Limit, MAX_TOGETHER};
use crate::rules::MAX_STACK;
use crate::store::{key, record_key};

/// The layout.
const VERSION: u8 = 1;
/// Bytes of a record's length.
const LENGTH: usize = size_of::<u32>();
/// Bytes of what stands for a rule.
const RULE: usize = size_of::<u32>();
/// Bytes of the checksum.
const CHECKSUM: usize = 4;
/// Records of an id, at most: of operations that are reserved together, each with a stack of rules.
const MAX_RECORDS: usize = MAX_TOGETHER * MAX_STACK;
/// Characters of an id, at most: what is sent in a URL must fit there.
pub const MAX_ID_TEXT: usize = 8 * 1024;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationId(Vec<u8>);

/// A text that is no reservation's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no id of a reservation: send the one that the reservation was answered with")]
pub struct BadReservationId;

impl ReservationId {
    /// Of the records with these keys, each after what stands for its rule.
    pub(in crate::limiter) fn new<'a>(records: impl Iterator<Item = (u32, &'a [u8])>) -> Self {
        let mut bytes = vec![VERSION];
        for (rule, key) in records {
            bytes.extend_from_slice(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(&rule.to_le_bytes());
            bytes.extend_from_slice(key);
        }
        Self(bytes)
    }

    /// How many characters the id of records with keys of these lengths has.
    pub(super) fn text_length(keys: impl Iterator<Item = usize>) -> usize {
        let bytes = keys.fold(1 + CHECKSUM, |bytes, key| bytes + LENGTH + RULE + key);
        (bytes * 4).div_ceil(3)
    }

    /// # Errors
    /// When it is none.
    pub fn parse(text: &[u8]) -> Result<Self, BadReservationId> {
        if text.len() > MAX_ID_TEXT {
            return Err(BadReservationId);
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| BadReservationId)?;
        let length = bytes.len().checked_sub(CHECKSUM).ok_or(BadReservationId)?;
        let checksum = bytes.split_off(length);
        let id = Self(bytes);
        let is_whole = id.0.first() == Some(&VERSION) && checksum == id.checksum() && id.rest_of_records().is_empty();
        if is_whole && id.records().count() <= MAX_RECORDS { Ok(id) } else { Err(BadReservationId) }
    }

    /// The keys of its records, each after what stands for its rule.
    pub(in crate::limiter) fn records(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let mut rest = self.0.get(1..).unwrap_or_default();
        std::iter::from_fn(move || next_record(&mut rest))
    }

    /// Whether all that it names are leases, whose time is their rule's.
    pub(in crate::limiter) fn is_of_leases(&self) -> bool {
        let limit = |key| key::split_limit(record_key::split(key)?.0)?.1;
        let is_lease = |key| matches!(limit(key), Some(Limit::Concurrency(_)));
        !self.is_of_nothing() && self.records().all(|(_, key)| is_lease(key))
    }

    /// Whether it names no counter: nothing that was asked for is counted.
    pub fn is_of_nothing(&self) -> bool {
        self.records().next().is_none()
    }

    /// What follows the last record.
    fn rest_of_records(&self) -> &[u8] {
        let mut rest = self.0.get(1..).unwrap_or_default();
        while next_record(&mut rest).is_some() {}
        rest
    }

    fn checksum(&self) -> [u8; CHECKSUM] {
        (SipHasher13::new_with_keys(0, 0).hash(&self.0).h1 as u32).to_le_bytes()
    }
}

fn next_record<'a>(rest: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    let (length, after) = rest.split_first_chunk::<LENGTH>()?;
    let (rule, after) = after.split_first_chunk::<RULE>()?;
    let (key, after) = after.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    *rest = after;
    Some((u32::from_le_bytes(*rule), key))
}

impl std::fmt::Display for ReservationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode([&self.0[..], &self.checksum()].concat()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(any::<Vec<u8>>(), 0..=MAX_STACK)
    }

    #[test]
    fn an_id_has_no_more_records_than_stacks_that_are_taken_together_have_rules() {
        let text = |records| ReservationId::new(std::iter::repeat_n((7, &b"a"[..]), records)).to_string();
        assert!(ReservationId::parse(text(MAX_RECORDS).as_bytes()).is_ok());
        assert_eq!(ReservationId::parse(text(MAX_RECORDS + 1).as_bytes()), Err(BadReservationId));
    }

    proptest! {
        #[test]
        fn an_id_reads_back_and_is_safe_in_a_url(keys in keys()) {
            let id = ReservationId::new(keys.iter().map(|key| (7, key.as_slice())));
            let text = id.to_string();
            prop_assert_eq!(text.len(), ReservationId::text_length(keys.iter().map(Vec::len)));
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
            let read = ReservationId::parse(text.as_bytes()).unwrap();
            prop_assert!(read.records().eq(keys.iter().map(|key| (7, key.as_slice()))));
        }

        #[test]
        fn a_slip_is_found(keys in keys(), place: prop::sample::Index, letter in "[A-Za-z0-9_-]") {
            let text = ReservationId::new(keys.iter().map(|key| (7, key.as_slice()))).to_string();
            let mut changed = text.clone().into_bytes();
            changed[place.index(text.len())] = letter.as_bytes()[0];
            let read = ReservationId::parse(&changed).map(|id| id.to_string());
            prop_assert!(read == Ok(text) || read == Err(BadReservationId));
        }

        #[test]
        fn anything_may_come(bytes: Vec<u8>) {
            prop_assert_eq!(ReservationId::parse(&bytes), Err(BadReservationId));
        }
    }
}
