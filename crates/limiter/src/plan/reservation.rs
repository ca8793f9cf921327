//! Adds reservations to the plan, credits that are set aside before they are used, and their commits, releases and renewals.
//! Each of these concerns all records in a reservation's id.
//!
//! The ids of reservations, as clients see them: opaque, and safe in a URL. Each names the records of its reservation and their
//! rules. The records name the buckets, so that a settlement finds them even if the rules have changed.
//!
//! The text is base64url without padding (RFC 4648, section 5) of: a version, the records' keys, each after its length, its
//! rule's fingerprint and its run, and a seal on all of that. Only the servers on a store have the key for the seal, so an id whose seal is
//! right was made by one of them. Nothing of an id is read before its seal is checked.

use std::collections::HashSet;
use std::sync::LazyLock;

use base64_simd::URL_SAFE_NO_PAD;

use super::builder::PlanBuilder;
use super::effects::{Intent, Settlement};
use super::entries::IdempotencyKey;
use super::share::read_share;
use super::{Request, SettledRecord, Terms, is_client_id, write_client_record_id};
use crate::active_rules::ActiveRules;
use crate::refusal::{BadReservationId, MAX_ID_TEXT, MAX_TOGETHER, Refusal};
use crate::store::{SEAL_BYTES, SealKey, generation, key, record_key, unknown_seal_key};
use divvy_core::algorithm::{Ask, Limit, Run};
use divvy_core::calendar::Calendar;
use divvy_core::clock::Timestamp;
use divvy_core::rules::{MAX_STACK, Operation};

/// Default for the maximum TTL of reservations (seconds).
pub const DEFAULT_MAX_RESERVATION_TTL: u32 = 600;

/// The client's terms of a reservation.
#[derive(Debug, Clone, Copy)]
pub struct Reserve<'a> {
    /// Credits, at least 1.
    pub credits: u64,
    /// TTL, at least 1. A lease needs none, because it lasts as long as its rule says.
    pub ttl_seconds: Option<u32>,
    /// The client's own name for the reservation. A repeated request with this name returns the same reservation.
    pub id: Option<&'a [u8]>,
}

impl PlanBuilder {
    /// Adds a reservation. It counts as a hit for rules that count requests.
    pub fn add_reservation(&mut self, operation: &Operation, reserve: Reserve<'_>) {
        self.add_with_terms(operation, reserve, false);
    }

    /// Adds a [reservation](PlanBuilder::add_reservation) for at most as many credits as a counter can hold. Its TTL is
    /// the permitted one that is closest to `ttl_seconds`, or the maximum if that is `None`. `credits` is at least 1.
    ///
    /// A [group](PlanBuilder::together) of such reservations has one id.
    pub fn add_clamped_reservation(&mut self, operation: &Operation, credits: u64, ttl_seconds: Option<u32>) {
        let ttl_seconds = ttl_seconds.unwrap_or(u32::MAX).min(self.max_reservation_ttl).max(1);
        self.add_with_terms(operation, Reserve { credits, ttl_seconds: Some(ttl_seconds), id: None }, true);
    }

    fn add_with_terms(&mut self, operation: &Operation, reserve: Reserve<'_>, is_clamped: bool) {
        let max_ttl_seconds = self.max_reservation_ttl;
        if reserve.credits == 0 {
            return self.add_refused(Refusal::NoCredits);
        }
        if reserve.ttl_seconds == Some(0) {
            return self.add_refused(Refusal::BadTtl { ttl_seconds: 0, max: max_ttl_seconds });
        }
        if !reserve.id.is_none_or(is_client_id) {
            return self.add_refused(Refusal::BadClientId);
        }
        if !self.has_seal {
            // The client could not get an id to settle the reservation with.
            return self.add_refused(unknown_seal_key());
        }
        let mut record_id = std::mem::take(&mut self.record_id);
        record_id.clear();
        match (reserve.id, &mut self.group) {
            (Some(id), _) => write_client_record_id(id, &mut record_id),
            (None, Some(group)) => {
                record_id.extend_from_slice(group.record_id.get_or_insert_with(|| new_record_id().to_vec()))
            }
            (None, None) => record_id.extend_from_slice(&new_record_id()),
        }
        let terms = Terms { ttl_seconds: reserve.ttl_seconds, max_ttl_seconds, record_id, is_clamped };
        let start = self.plan.mark();
        self.key =
            reserve.id.map(|id| Box::new(IdempotencyKey::of_reservation(id, reserve.credits, reserve.ttl_seconds)));
        self.add_under(operation, Intent::Reserve, Some(reserve.credits), Some(&terms));
        self.key = None;
        self.record_id = terms.record_id;
        if self.group.is_none() && self.id_length(self.plan.len() - 1) > MAX_ID_TEXT {
            self.plan.return_to(start);
            self.add_refused(Refusal::LongReservation);
        }
    }

    /// Returns the maximum length of the id in the answer to request `index`, a reservation (characters).
    pub fn id_length(&self, index: usize) -> usize {
        self.plan.id_length(self.plan.members_of(self.plan.requests.get(index)).unwrap_or_default())
    }
}

/// Returns a record id that is unique among all reservations on all servers.
pub(super) fn new_record_id() -> [u8; 17] {
    use std::hash::{BuildHasher, RandomState};
    static SERVER: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
    let mut id = [b's'; 17];
    id[1..9].copy_from_slice(&SERVER.to_le_bytes());
    id[9..].copy_from_slice(&generation().to_le_bytes());
    id
}

impl PlanBuilder {
    /// Adds a commit, a release or a renewal of a reservation.
    pub fn settle(&mut self, id: &ReservationId, settlement: Settlement) {
        let (active, max) = (self.plan.active.take(), self.max_reservation_ttl);
        let request = match (&active, settlement) {
            // This comes first, because other refusals depend on the reservation.
            (Some(active), _) if !self.is_in_scope(active, id) => Request::Refused(Refusal::OutOfScope),
            // A lease lasts as long as its rule says.
            (_, Settlement::Renew { ttl_seconds: Some(ttl_seconds) })
                if ttl_seconds == 0 || (ttl_seconds > max && !id.is_of_leases()) =>
            {
                Request::Refused(Refusal::BadTtl { ttl_seconds, max })
            }
            (None, _) => Request::Refused(Refusal::NoRules),
            (Some(active), _) => self.settle_records(active, id, settlement),
        };
        self.plan.active = active;
        self.plan.requests.push(request);
    }

    /// Whether the rule and the actor of every record are in scope. The store is not asked, so the answer does not
    /// depend on the reservation.
    fn is_in_scope(&self, active: &ActiveRules, id: &ReservationId) -> bool {
        let Some(scope) = &self.scope else { return true };
        id.records().all(|NamedRecord { rule: fingerprint, key, .. }| {
            let bucket = record_key::bucket(key);
            let prefix = key::split_limit(bucket).map_or(0, |(prefix, _)| prefix.len());
            let actor = String::from_utf8_lossy(bucket.get(prefix..).unwrap_or_default());
            scope.covers_counter(active.rule_of_record(bucket, fingerprint), &actor)
        })
    }

    /// Adds an entry for every record, as one group. So the first of several settlements decides about all of them.
    fn settle_records(&mut self, active: &ActiveRules, id: &ReservationId, settlement: Settlement) -> Request {
        let (batch, settled) = (&mut self.plan.batch, &mut self.plan.settled);
        let (first, first_entry) = (settled.len(), batch.len());
        for NamedRecord { rule: fingerprint, run, key } in id.records() {
            let Some((bucket, record_id)) = record_key::split(key) else { continue };
            let Some((rule, limit)) = limit_of_bucket(active, fingerprint, bucket, batch.now()) else { continue };
            let Some(limit) = limit else {
                settled.push(SettledRecord { entry: None, rule });
                continue;
            };
            let write_key = |out: &mut Vec<u8>| {
                out.extend_from_slice(bucket);
                Some(limit)
            };
            match (settlement, read_share(record_id, batch.now())) {
                (Settlement::Return { credits }, Some((until, most))) => {
                    let credits = u32::try_from(credits).unwrap_or(u32::MAX).min(most);
                    if credits == 0 {
                        settled.push(SettledRecord { entry: None, rule });
                        continue;
                    }
                    let entry = batch.push_idempotent(Ask::Return { credits, until }, (record_id, 0), write_key);
                    settled.push(SettledRecord { entry, rule });
                    continue;
                }
                // The id of a share commits nothing, and the id of a reservation returns nothing.
                (Settlement::Return { .. }, None) | (_, Some(_)) => continue,
                (_, None) => {}
            }
            let Some(ask) = settlement.ask(&limit, rule.is_some(), run) else { continue };
            settled.push(SettledRecord { entry: batch.push_reservation(ask, record_id, write_key), rule });
        }
        let records = first..settled.len();
        if self.names_each_bucket_once(first_entry) {
            self.plan.batch.group(first_entry);
        }
        let is_foreign = records.is_empty() && !id.is_of_nothing();
        if is_foreign { Request::Refused(BadReservationId.into()) } else { Request::Settlement(records) }
    }

    /// Returns whether the entries from index `first` on are all for different buckets, as a group requires.
    fn names_each_bucket_once(&self, first: usize) -> bool {
        let mut entries = first..self.plan.batch.len();
        let mut buckets = HashSet::new();
        let is_new = |entry| self.plan.batch.key_at(entry).is_some_and(|key| buckets.insert(record_key::bucket(key)));
        entries.len() < 2 || entries.all(is_new)
    }
}

/// Finds the rule in force that has this bucket, and the bucket's limit: the actor's own, or the rule's. If several
/// rules share the bucket, `fingerprint` selects one. Without a rule, the limit is read from the key. It is `None` if
/// this server's zone data lack the zone of its calendar.
fn limit_of_bucket(
    active: &ActiveRules,
    fingerprint: u32,
    key: &[u8],
    now: Timestamp,
) -> Option<(Option<usize>, Option<Limit>)> {
    if let Some((rule, counter)) = active.rule_of(key, fingerprint) {
        let actor = key.get(counter.prefix.as_bytes().len()..).unwrap_or_default();
        return Some((Some(rule), Some(counter.limit_of(actor, now).unwrap_or_else(|| counter.limit_at(now)))));
    }
    key::split_limit(key)?;
    // The id is sealed, so this calendar comes from an operator's rules. It is loaded once, and stays in memory.
    let limit = match key::split_stored_limit(key).map(|(_, limit)| limit) {
        Some(Limit::CalendarWindow(window)) => {
            Some(Limit::CalendarWindow(Calendar::of(window.calendar)?.dated(window, now)))
        }
        limit => limit,
    };
    Some((None, limit))
}

/// Version of the layout.
const VERSION: u8 = 3;
/// Size of a record's length, its rule's fingerprint and its run (bytes).
const HEAD: usize = 3 * size_of::<u32>();
/// Maximum number of records in an id: operations that are reserved together, each with a stack of rules.
const MAX_RECORDS: usize = MAX_TOGETHER * MAX_STACK;
/// Initial capacity, which suffices for most ids.
const USUAL_BYTES: usize = 192;

/// The id of a reservation. See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationId(Vec<u8>);

/// A record in an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedRecord<'a> {
    /// The fingerprint of its rule.
    pub rule: u32,
    /// The run of its name.
    pub run: Option<Run>,
    pub key: &'a [u8],
}

impl ReservationId {
    /// Creates the id for these records.
    pub(crate) fn new<'a>(records: impl Iterator<Item = NamedRecord<'a>>) -> Self {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        bytes.push(VERSION);
        for NamedRecord { rule, run, key } in records {
            bytes.extend_from_slice(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(&rule.to_le_bytes());
            bytes.extend_from_slice(&run.map_or(0, Run::get).to_le_bytes());
            bytes.extend_from_slice(key);
        }
        Self(bytes)
    }

    /// Returns the number of characters in the id of records with keys of these lengths.
    pub(super) fn text_length(keys: impl Iterator<Item = usize>) -> usize {
        let bytes = keys.fold(1 + SEAL_BYTES, |bytes, key| bytes + HEAD + key);
        (bytes * 4).div_ceil(3)
    }

    /// Parses an id that was sealed with this key.
    ///
    /// # Errors
    /// The seal is not valid, or the records are malformed.
    pub fn parse(text: &[u8], key: &SealKey) -> Result<Self, BadReservationId> {
        if text.len() > MAX_ID_TEXT {
            return Err(BadReservationId);
        }
        let mut bytes = URL_SAFE_NO_PAD.decode_to_vec(text).map_err(|_| BadReservationId)?;
        let (sealed, seal) = bytes.split_last_chunk().ok_or(BadReservationId)?;
        if sealed.first() != Some(&VERSION) || !key.has_sealed(sealed, seal) {
            return Err(BadReservationId);
        }
        bytes.truncate(bytes.len() - SEAL_BYTES);
        let id = Self(bytes);
        // Every id that divvy makes is whole.
        if id.is_whole() { Ok(id) } else { Err(BadReservationId) }
    }

    /// Writes the id for a client, sealed with this key.
    pub fn into_text(self, key: &SealKey) -> String {
        let Self(mut bytes) = self;
        let seal = key.seal(&bytes);
        bytes.extend_from_slice(&seal);
        URL_SAFE_NO_PAD.encode_to_string(bytes)
    }

    /// Returns the records.
    pub(crate) fn records(&self) -> impl Iterator<Item = NamedRecord<'_>> {
        let mut rest = self.0.get(1..).unwrap_or_default();
        std::iter::from_fn(move || next_record(&mut rest))
    }

    /// Returns whether the id names only leases. Their rule says how long they last.
    pub(crate) fn is_of_leases(&self) -> bool {
        let limit = |key| key::split_limit(record_key::split(key)?.0)?.1;
        let is_lease = |key| matches!(limit(key), Some(Limit::Concurrency(_)));
        !self.is_of_nothing() && self.records().all(|record| is_lease(record.key))
    }

    /// Returns whether the id names no counter, because no rule counts the request.
    pub fn is_of_nothing(&self) -> bool {
        self.records().next().is_none()
    }

    /// Returns whether the id consists of whole records, and not too many.
    fn is_whole(&self) -> bool {
        let mut rest = self.0.get(1..).unwrap_or_default();
        let count = std::iter::from_fn(|| next_record(&mut rest)).count();
        rest.is_empty() && count <= MAX_RECORDS
    }
}

fn next_record<'a>(rest: &mut &'a [u8]) -> Option<NamedRecord<'a>> {
    let (length, after) = rest.split_first_chunk()?;
    let (rule, after) = after.split_first_chunk()?;
    let (run, after) = after.split_first_chunk()?;
    let (key, after) = after.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    *rest = after;
    Some(NamedRecord { rule: u32::from_le_bytes(*rule), run: Run::new(u32::from_le_bytes(*run)), key })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(any::<Vec<u8>>(), 0..=MAX_STACK)
    }

    fn record(run: u32, key: &[u8]) -> NamedRecord<'_> {
        NamedRecord { rule: 7, run: Run::new(run), key }
    }

    fn id_of(keys: &[Vec<u8>]) -> ReservationId {
        ReservationId::new((0..).zip(keys).map(|(run, key)| record(run, key)))
    }

    fn seal_key() -> SealKey {
        SealKey::parse("000102030405060708090a0b0c0d0e0f").unwrap()
    }

    #[test]
    fn id_has_at_most_as_many_records_as_a_group_of_stacks_has_rules() {
        let key = seal_key();
        let text = |records| ReservationId::new(std::iter::repeat_n(record(1, b"a"), records)).into_text(&key);
        assert!(ReservationId::parse(text(MAX_RECORDS).as_bytes(), &key).is_ok());
        assert_eq!(ReservationId::parse(text(MAX_RECORDS + 1).as_bytes(), &key), Err(BadReservationId));
    }

    #[test]
    fn longest_id_is_read() {
        const ROOM: usize = MAX_ID_TEXT / 4 * 3 - 1 - SEAL_BYTES;
        let length = |key: usize| ReservationId::text_length(std::iter::once(key));
        let longest = ROOM - HEAD;
        assert_eq!((length(longest), length(longest + 1) > MAX_ID_TEXT), (MAX_ID_TEXT, true));
        let text = id_of(&[vec![7; longest]]).into_text(&seal_key());
        assert!(ReservationId::parse(text.as_bytes(), &seal_key()).is_ok());
    }

    /// Anyone could compute the checksum that ids of version 1 had.
    #[test]
    fn ids_of_other_versions_are_refused() {
        for version in [1, 2, 4] {
            let mut id = id_of(&[vec![7; 20]]);
            id.0[0] = version;
            let checked = [&*id.0, &[1, 2, 3, 4]].concat();
            for text in [URL_SAFE_NO_PAD.encode_to_string(checked), id.into_text(&seal_key())] {
                assert_eq!(ReservationId::parse(text.as_bytes(), &seal_key()), Err(BadReservationId));
            }
        }
    }

    proptest! {
        #[test]
        fn id_reads_back_and_is_safe_in_a_url(keys in keys()) {
            let id = id_of(&keys);
            let text = id.clone().into_text(&seal_key());
            prop_assert_eq!(text.len(), ReservationId::text_length(keys.iter().map(Vec::len)));
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
            let read = ReservationId::parse(text.as_bytes(), &seal_key()).unwrap();
            prop_assert!(read.records().eq((0..).zip(&keys).map(|(run, key)| record(run, key))));
            prop_assert_eq!(read, id);
        }

        #[test]
        fn changed_id_is_refused(keys in keys(), place: prop::sample::Index, letter in "[A-Za-z0-9_-]", bit in 0..8_u32) {
            let text = id_of(&keys).into_text(&seal_key()).into_bytes();
            let place = place.index(text.len());
            let mut changed = text.clone();
            changed[place] = letter.as_bytes()[0];
            let mut flipped = text.clone();
            flipped[place] ^= 1 << bit;
            for other in [&changed, &flipped, &text[..place], &text[place..], &[&*text, b"A"].concat()] {
                prop_assert_eq!(ReservationId::parse(other, &seal_key()).is_ok(), *other == *text);
            }
        }

        #[test]
        fn id_with_the_seal_of_another_key_is_refused(keys in keys(), key: u128) {
            let key = SealKey::parse(&format!("{key:032x}")).unwrap();
            let text = id_of(&keys).into_text(&key);
            prop_assert_eq!(ReservationId::parse(text.as_bytes(), &seal_key()).is_ok(), key == seal_key());
        }

        /// divvy would not write these bytes, but their seal is valid.
        #[test]
        fn sealed_bytes_are_whole_records_or_refused(bytes: Vec<u8>, version in prop::sample::select(vec![VERSION, 1, 0])) {
            let sealed = ReservationId([&[version], &*bytes].concat());
            let text = sealed.clone().into_text(&seal_key());
            let read = ReservationId::parse(text.as_bytes(), &seal_key());
            prop_assert_eq!(read == Ok(sealed.clone()), version == VERSION && sealed.is_whole());
            if let Ok(id) = read {
                prop_assert_eq!(ReservationId::new(id.records()), id);
            }
        }
    }
}
