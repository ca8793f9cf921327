//! Calendars of reservations that another server on the same store has made.
//!
//! A calendar stays in memory for as long as the process runs, so no id may bring a new one: made-up ids would fill the
//! memory. But where servers share a store, an id may name a bucket with a calendar that only the rules of another server
//! have. Then the store is asked whether it has the reservation's record, which only a server can have written.

use super::{ReservationId, Settlement};
use crate::limiter::{Asked, Limiter, Refusal, Requests, StoreError};
use crate::store::{Store, key, record_key};

/// A request about a reservation some of whose calendars this server does not know.
#[derive(Debug)]
pub struct Postponed {
    /// Its number in the batch.
    request: usize,
    id: ReservationId,
    settlement: Settlement,
}

impl Requests {
    /// Whether the next request has to wait until the store was asked about its calendars.
    pub(super) fn postpone(&mut self, id: &ReservationId, settlement: Settlement) -> bool {
        let is_postponed = self.has_shared_store && unknown_calendars(id).next().is_some();
        if is_postponed {
            self.postponed.push(Postponed { request: self.asked.len(), id: id.clone(), settlement });
        }
        is_postponed
    }
}

impl Limiter {
    /// Asks about the reservations that were postponed, as soon as their calendars are known or turn out to be made up.
    pub(in crate::limiter) async fn ask_postponed(&self, requests: &mut Requests) {
        let postponed = std::mem::take(&mut requests.postponed);
        let learned = self.learn_calendars(&postponed).await;
        for Postponed { request, id, settlement } in postponed {
            let asked = match &learned {
                Ok(()) => requests.settle(&id, settlement),
                Err(error) => Asked::Refused(Refusal::Store(error.clone())),
            };
            if let Some(place) = requests.asked.get_mut(request) {
                *place = asked;
            }
        }
    }

    async fn learn_calendars(&self, postponed: &[Postponed]) -> Result<(), StoreError> {
        let keys: Vec<Vec<u8>> =
            postponed.iter().flat_map(|one| unknown_calendars(&one.id)).map(<[u8]>::to_vec).collect();
        let is_stored = self.store.has_reservations(keys.clone()).await?;
        let stored: Vec<_> = keys.into_iter().zip(is_stored).filter(|(_, is_stored)| *is_stored).collect();
        if stored.is_empty() {
            return Ok(());
        }
        // It reads files.
        let load = move || {
            for (key, _) in stored {
                record_key::split(&key).and_then(|(bucket, _)| key::split_stored_limit(bucket));
            }
        };
        let loaded = tokio::task::spawn_blocking(load).await;
        loaded.map_err(|error| StoreError::new(format!("cannot load a calendar: {error}")))
    }
}

/// The keys of the id's records whose buckets have calendars that this process does not know.
fn unknown_calendars(id: &ReservationId) -> impl Iterator<Item = &[u8]> {
    let is_unknown = |key: &&[u8]| {
        let bucket = record_key::split(key).map(|(bucket, _)| bucket);
        matches!(bucket.and_then(key::split_limit), Some((_, None)))
    };
    id.records().map(|(_, key)| key).filter(is_unknown)
}
