//! The key that seals ids for clients.
//!
//! A store keeps its key as long as its counters. So a valid seal shows that an id comes from a server on this store.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use siphasher::sip128::SipHasher24;
use subtle::ConstantTimeEq;

use crate::contract::StoreError;

/// Length of a key (bytes).
const BYTES: usize = 16;
/// Length of a seal (bytes).
pub const SEAL_BYTES: usize = BYTES;
/// Number of hexadecimal digits in a key's text.
const DIGITS: usize = 2 * BYTES;

/// A secret of 128 bits. The seal of bytes is their 128-bit SipHash-2-4, which only holders of the key can compute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealKey([u8; BYTES]);

impl SealKey {
    /// Creates a new key.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn random() -> Result<Self, StoreError> {
        let mut key = [0; BYTES];
        let filled = getrandom::getrandom(&mut key);
        filled.map_err(|error| StoreError::new(format!("cannot make a key for reservation ids: {error}")))?;
        Ok(Self(key))
    }

    /// Returns the seal of these bytes.
    pub fn seal(&self, bytes: &[u8]) -> [u8; SEAL_BYTES] {
        SipHasher24::new_with_key(&self.0).hash(bytes).as_bytes()
    }

    /// Returns whether this is the seal of these bytes. The time of the check does not depend on the number of correct
    /// bytes.
    pub fn has_sealed(&self, bytes: &[u8], seal: &[u8; SEAL_BYTES]) -> bool {
        self.seal(bytes).ct_eq(seal).into()
    }

    /// Reads a text from [`SealKey::to_text`].
    pub fn parse(text: &str) -> Option<Self> {
        let is_number = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(Self(u128::from_str_radix(text, 16).ok().filter(|_| is_number)?.to_be_bytes()))
    }

    /// Returns the key in hexadecimal digits, as stores keep it.
    pub fn to_text(self) -> String {
        format!("{:0DIGITS$x}", u128::from_be_bytes(self.0))
    }
}

/// Omits the key, which must not appear in a log.
impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

/// The key of a store, once this process knows it.
#[derive(Debug, Default)]
pub struct Seal {
    key: RwLock<Option<SealKey>>,
    is_known: AtomicBool,
}

impl Seal {
    /// Creates a seal whose key is known.
    pub fn new(key: SealKey) -> Self {
        Self { key: RwLock::new(Some(key)), is_known: AtomicBool::new(true) }
    }

    /// Returns whether the key is known. Once it is known, it stays known, but it may change.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// Returns the key.
    ///
    /// # Errors
    /// This process does not have the key yet.
    pub fn key(&self) -> Result<SealKey, StoreError> {
        self.known().ok_or_else(unknown_seal_key)
    }

    /// Returns the key, if it is known.
    pub fn known(&self) -> Option<SealKey> {
        *self.key.read()
    }

    /// Replaces the key. Returns the previous one.
    pub fn replace(&self, key: SealKey) -> Option<SealKey> {
        let before = self.key.write().replace(key);
        self.is_known.store(true, Ordering::Release);
        before
    }
}

/// Returns the error of a reservation while the key is not known.
pub fn unknown_seal_key() -> StoreError {
    StoreError::Unreachable(
        "the key for reservation ids could not be read since this server started: see its log".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn key_is_not_shown_for_debugging() {
        let key = SealKey::random().unwrap();
        assert!(!format!("{:?} {:?}", key, Seal::new(key)).contains(&key.to_text()[..8]));
        assert_ne!(key, SealKey::random().unwrap());
    }

    /// A test vector of the reference implementation, for bytes that count up from 0.
    #[test]
    fn seal_is_siphash_2_4_of_128_bits() {
        let bytes: [u8; BYTES] = std::array::from_fn(|index| u8::try_from(index).unwrap());
        let expected = *b"\x54\x93\xe9\x99\x33\xb0\xa8\x11\x7e\x08\xec\x0f\x97\xcf\xc3\xd9";
        assert_eq!(SealKey(bytes).seal(&bytes[..15]), expected);
    }

    proptest! {
        #[test]
        fn key_reads_back_from_its_text(key: [u8; BYTES]) {
            let text = SealKey(key).to_text();
            prop_assert_eq!(text.len(), DIGITS);
            prop_assert_eq!(SealKey::parse(&text), Some(SealKey(key)));
            for other in [&text[1..], &format!("{text}0"), &format!("+{}", &text[1..]), &format!("{} v2", text)] {
                prop_assert_eq!(SealKey::parse(other), None);
            }
        }

        #[test]
        fn seal_depends_on_the_bytes_and_the_key(key: [u8; BYTES], bytes: Vec<u8>, flipped: prop::sample::Index) {
            let key = SealKey(key);
            let seal = key.seal(&bytes);
            prop_assert!(key.has_sealed(&bytes, &seal));
            prop_assert!(!SealKey([!key.0[0]; BYTES]).has_sealed(&bytes, &seal));
            let bit = flipped.index(8 * BYTES);
            let mut wrong = seal;
            wrong[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!key.has_sealed(&bytes, &wrong));
        }
    }
}
