//! Adds reservations to the plan, credits that are set aside before they are used, and their commits, releases and renewals.
//! Each of these concerns all records in a reservation's id.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::builder::PlanBuilder;
use super::contents::{Request, SettledRecord, Terms, is_client_id, write_client_record_id};
use super::reservation_id::{NamedRecord, ReservationId};
use super::table::{Intent, Settlement};
use crate::policy::Policy;
use crate::refusal::{BadReservationId, MAX_ID_TEXT, Refusal};
use crate::store::{key, record_key, unknown_seal_key};
use divvy_core::algorithm::Limit;
use divvy_core::calendar::Calendar;
use divvy_core::clock::Timestamp;
use divvy_core::rules::Operation;

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
            return self.add_refused(Refusal::ZeroTtl);
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
            (None, Some(group)) => record_id.extend_from_slice(group.record_id.get_or_insert_with(new_record_id)),
            (None, None) => write_new_record_id(&mut record_id),
        }
        let terms = Terms { ttl_seconds: reserve.ttl_seconds, max_ttl_seconds, record_id, is_clamped };
        let start = self.plan.mark();
        self.add_under(operation, Intent::Reserve, Some(reserve.credits), Some(&terms));
        self.record_id = terms.record_id;
        if self.group.is_none() && self.id_length(self.plan.len() - 1) > MAX_ID_TEXT {
            self.plan.return_to(start);
            self.add_refused(Refusal::LongReservation);
        }
    }

    /// Returns the maximum length of the id in the answer to request `index`, a reservation (characters).
    pub fn id_length(&self, index: usize) -> usize {
        self.plan.id_length(self.plan.members_of(index).unwrap_or_default())
    }
}

fn new_record_id() -> Vec<u8> {
    let mut id = Vec::new();
    write_new_record_id(&mut id);
    id
}

/// Appends a record id that is unique among all reservations on all servers.
fn write_new_record_id(out: &mut Vec<u8>) {
    use std::hash::{BuildHasher, RandomState};
    static FIRST: LazyLock<[u64; 2]> = LazyLock::new(|| [0, 1].map(|half| RandomState::new().hash_one(half)));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let [server, first] = *FIRST;
    let number = first.wrapping_add(NEXT.fetch_add(1, Relaxed));
    out.push(b's');
    out.extend_from_slice(&server.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
}

impl PlanBuilder {
    /// Adds a commit, a release or a renewal of a reservation.
    pub fn settle(&mut self, id: &ReservationId, settlement: Settlement) {
        let policy = self.plan.policy.take();
        let request = match (&policy, self.check_renewal(id, settlement)) {
            // This comes first, because other refusals depend on the reservation.
            (Some(policy), _) if !self.is_in_scope(policy, id) => Request::Refused(Refusal::OutOfScope),
            (_, Err(refusal)) => Request::Refused(refusal),
            (None, Ok(())) => Request::Refused(Refusal::NoRules),
            (Some(policy), Ok(())) => self.settle_records(policy, id, settlement),
        };
        self.plan.policy = policy;
        self.plan.requests.push(request);
    }

    /// Checks the TTL of a renewal. A lease lasts as long as its rule says.
    fn check_renewal(&self, id: &ReservationId, settlement: Settlement) -> Result<(), Refusal> {
        let max = self.max_reservation_ttl;
        match settlement {
            Settlement::Renew { ttl_seconds: Some(0) } => Err(Refusal::ZeroTtl),
            Settlement::Renew { ttl_seconds: Some(ttl_seconds) } if ttl_seconds > max && !id.is_of_leases() => {
                Err(Refusal::LongTtl { ttl_seconds, max })
            }
            Settlement::Commit { .. } | Settlement::Release | Settlement::Renew { .. } => Ok(()),
        }
    }

    /// Whether the rule and the actor of every record are in scope. The store is not asked, so the answer does not
    /// depend on the reservation.
    fn is_in_scope(&self, policy: &Policy, id: &ReservationId) -> bool {
        let Some(scope) = &self.scope else { return true };
        id.records().all(|NamedRecord { rule: fingerprint, key, .. }| {
            let bucket = record_key::bucket(key);
            let prefix = key::split_limit(bucket).map_or(0, |(prefix, _)| prefix.len());
            let actor = String::from_utf8_lossy(bucket.get(prefix..).unwrap_or_default());
            scope.covers_counter(policy.rule_of_record(bucket, fingerprint), &actor)
        })
    }

    /// Adds an entry for every record, as one group. So the first of several settlements decides about all of them.
    fn settle_records(&mut self, policy: &Policy, id: &ReservationId, settlement: Settlement) -> Request {
        let (batch, settled) = (&mut self.plan.batch, &mut self.plan.settled);
        let (first, first_entry) = (settled.len(), batch.len());
        for NamedRecord { rule: fingerprint, run, key } in id.records() {
            let Some((bucket, record_id)) = record_key::split(key) else { continue };
            let Some((rule, limit)) = limit_of_bucket(policy, fingerprint, bucket, batch.now()) else { continue };
            let Some(limit) = limit else {
                settled.push(SettledRecord { entry: None, rule });
                continue;
            };
            let Some(ask) = settlement.ask(&limit, rule.is_some(), run) else { continue };
            let write_key = |out: &mut Vec<u8>| {
                out.extend_from_slice(bucket);
                Some(limit)
            };
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
        let entries = first..self.plan.batch.len();
        if entries.len() < 2 {
            return true;
        }
        let mut buckets: Vec<_> =
            entries.filter_map(|entry| self.plan.batch.key_at(entry)).map(record_key::bucket).collect();
        buckets.sort_unstable();
        buckets.windows(2).all(|two| matches!(two, [one, next] if one != next))
    }
}

/// Finds the rule in force that has this bucket, and the bucket's limit: the actor's own, or the rule's. If several
/// rules share the bucket, `fingerprint` selects one. Without a rule, the limit is read from the key. It is `None` if
/// this server's zone data lack the zone of its calendar.
fn limit_of_bucket(
    policy: &Policy,
    fingerprint: u32,
    key: &[u8],
    now: Timestamp,
) -> Option<(Option<usize>, Option<Limit>)> {
    if let Some((rule, bucket)) = policy.rule_of(key, fingerprint) {
        let actor = key.get(bucket.prefix.as_bytes().len()..).unwrap_or_default();
        return Some((Some(rule), Some(bucket.limit_of(actor, now).unwrap_or_else(|| bucket.limit_at(now)))));
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
