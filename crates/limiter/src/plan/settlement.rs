//! Adds commits, releases and renewals to the plan. Each concerns all records in a reservation's id.

use super::builder::PlanBuilder;
use super::contents::{Request, SettledRecord};
use super::reservation_id::{BadReservationId, NamedRecord, ReservationId};
use super::table::Settlement;
use crate::policy::Policy;
use crate::refusal::Refusal;
use crate::store::{key, record_key};
use divvy_core::algorithm::Limit;
use divvy_core::calendar::Calendar;
use divvy_core::clock::Timestamp;

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
