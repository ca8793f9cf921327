//! The store's [`SealKey`] in Redis, under one name for all servers. The first server creates it, and the others read
//! it.
//!
//! Redis may lose the key (FLUSHALL, eviction, a replica that takes over). A server that still has the key then puts it
//! back, unless another server has already created a new one.

use super::RedisStore;
use super::wire::Call;
use divvy_store::contract::StoreError;
use divvy_store::seal::SealKey;

const NAME: &[u8] = b"divvy.seal";

impl RedisStore {
    /// Reads the key, or creates it if Redis has none.
    ///
    /// # Errors
    /// Redis does not answer, refuses, or has something else under the name. Then the key in memory stays in force.
    pub async fn follow_seal(&self) -> Result<(), StoreError> {
        let key = match self.read_seal_key().await? {
            Some(key) => key,
            None => self.make_seal_key().await?,
        };
        if self.seal.replace(key).is_some_and(|before| before != key) {
            tracing::warn!("the key for reservation ids in Redis has changed: ids of earlier reservations are refused");
        }
        Ok(())
    }

    async fn make_seal_key(&self) -> Result<SealKey, StoreError> {
        let key = self.seal.known().map_or_else(SealKey::random, Ok)?;
        self.ask(Call::command_on_key(&[b"SET", NAME, key.to_text().as_bytes(), b"NX"])).await?;
        // Another server may have been first.
        self.read_seal_key().await?.ok_or_else(|| StoreError::new("Redis lost the key for reservation ids immediately"))
    }

    async fn read_seal_key(&self) -> Result<Option<SealKey>, StoreError> {
        let reply = self.ask(Call::command_on_key(&[b"GET", NAME])).await?;
        let stored: Option<Vec<u8>> =
            reply.decode("the key for reservation ids is not text").map_err(|failure| self.describe(&failure))?;
        stored.map(|text| parse(&text)).transpose()
    }
}

fn parse(text: &[u8]) -> Result<SealKey, StoreError> {
    let key = std::str::from_utf8(text).ok().and_then(SealKey::parse);
    let name = String::from_utf8_lossy(NAME);
    key.ok_or_else(|| {
        StoreError::new(format!(
            "{name} in Redis is not a key for reservation ids that this version can read: delete it, unless a later version of divvy wrote it"
        ))
    })
}
