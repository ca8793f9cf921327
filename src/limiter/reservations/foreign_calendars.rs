//! Calendars of reservations that were made under other rules: by another server on the same store, or before a restart.
//!
//! A calendar stays in memory for as long as the process runs. An id was sealed by a server on this store, so its calendars
//! are from rules that an operator wrote, and there are no more than these. Loading one reads files, so another thread does it.

use super::{ReservationId, Settlement};
use crate::limiter::{Asked, Limiter, Refusal, Requests, StoreError};
use crate::store::{key, record_key};

/// A request about a reservation some of whose calendars this server does not know yet.
#[derive(Debug)]
pub struct Postponed {
    /// Its number in the batch.
    request: usize,
    id: ReservationId,
    settlement: Settlement,
}

impl Requests {
    /// Postpones the next request, about this reservation, until its calendars are loaded.
    pub(super) fn postpone(&mut self, id: &ReservationId, settlement: Settlement) -> Asked {
        self.postponed.push(Postponed { request: self.asked.len(), id: id.clone(), settlement });
        Asked::Settling(0..0)
    }
}

impl Limiter {
    /// Loads the calendars of the requests that were postponed, and adds these to the batch.
    pub(in crate::limiter) async fn ask_postponed(&self, requests: &mut Requests) {
        let postponed = std::mem::take(&mut requests.postponed);
        let loaded = load_calendars(&postponed).await;
        for Postponed { request, id, settlement } in postponed {
            let asked = match &loaded {
                Ok(()) => requests.settle(&id, settlement),
                Err(error) => Asked::Refused(Refusal::Store(error.clone())),
            };
            if let Some(place) = requests.asked.get_mut(request) {
                *place = asked;
            }
        }
    }
}

async fn load_calendars(postponed: &[Postponed]) -> Result<(), StoreError> {
    let ids: Vec<_> = postponed.iter().map(|one| one.id.clone()).collect();
    let load = move || {
        for (_, key) in ids.iter().flat_map(ReservationId::records) {
            record_key::split(key).and_then(|(bucket, _)| key::split_stored_limit(bucket));
        }
    };
    let loaded = tokio::task::spawn_blocking(load).await;
    loaded.map_err(|error| StoreError::new(format!("cannot load a calendar: {error}")))
}
