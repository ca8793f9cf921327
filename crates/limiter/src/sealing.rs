//! Seals ids for clients with the store's key, and checks the ids that they send back.

use super::Limiter;
use super::plan::ReservationId;
use super::refusal::Refusal;
use crate::store::StoreError;

impl Limiter {
    /// Parses an id from a client. This does not ask the store.
    ///
    /// # Errors
    /// No server on this store made the id, or this server does not have the key yet.
    pub fn read_id(&self, text: &[u8]) -> Result<ReservationId, Refusal> {
        Ok(ReservationId::parse(text, &self.store.seal().key()?)?)
    }

    /// Writes an id for a client.
    ///
    /// # Errors
    /// This server does not have the key yet. It makes no reservations until then.
    pub fn write_id(&self, id: ReservationId) -> Result<String, Refusal> {
        Ok(id.into_text(&self.store.seal().key()?))
    }

    /// Reads the key for ids again, if several servers share it. Redis may lose the key, so servers call this every
    /// second.
    ///
    /// # Errors
    /// The store's error. The key in memory stays in force.
    pub async fn follow_seal(&self) -> Result<(), StoreError> {
        self.store.follow_seal().await
    }
}
