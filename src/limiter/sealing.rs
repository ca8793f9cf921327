//! Ids on their way to clients and back: sealed with the store's key.

use super::Limiter;
use super::plan::ReservationId;
use super::refusal::Refusal;
use crate::store::StoreError;

impl Limiter {
    /// Reads an id that a client sent. This asks nothing of the store.
    ///
    /// # Errors
    /// When no server on this store made it, and while this server does not know the key.
    pub fn read_id(&self, text: &[u8]) -> Result<ReservationId, Refusal> {
        Ok(ReservationId::parse(text, &self.store.seal().key()?)?)
    }

    /// Writes an id for a client.
    ///
    /// # Errors
    /// While this server does not know the key. It makes no reservations then.
    pub fn write_id(&self, id: ReservationId) -> Result<String, Refusal> {
        Ok(id.into_text(&self.store.seal().key()?))
    }

    /// Learns the key for ids, if several servers share it. Redis may lose it, so servers call this every second.
    ///
    /// # Errors
    /// The store's. The key that is known stays in force.
    pub async fn follow_seal(&self) -> Result<(), StoreError> {
        self.store.follow_seal().await
    }
}
