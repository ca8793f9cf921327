//! Adds reservations to the plan: credits that are set aside before they are used.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::builder::PlanBuilder;
use super::reservation_id::MAX_ID_TEXT;
use super::table::Intent;
use super::terms::{Terms, is_client_id, write_client_record_id};
use crate::refusal::Refusal;
use crate::store::unknown_seal_key;
use divvy_core::rules::Operation;

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
