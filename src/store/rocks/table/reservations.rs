//! The records of reservations in the table: each in its bucket's stripe, in memory until it ends, and in the journal with its
//! bucket. None of them counts as a counter, and none needs a look-up. What a record says is decided elsewhere.

use super::super::journal::{self, Change};
use super::super::stripe::Stripe;
use super::{KeyHash, Table};
use crate::algorithm::Reservation;
use crate::algorithm::reservation::RecordChange;
use crate::clock::Timestamp;
use crate::store::{record_key, value};

impl Table {
    /// Makes the change of a record in its stripe, which the caller holds and where a change has begun. Returns how many are
    /// forgotten.
    pub(super) fn change_reservation(stripe: &mut Stripe, hash: KeyHash, key: &[u8], change: RecordChange) -> u64 {
        let forgotten = match change {
            RecordChange::Keep => return 0,
            RecordChange::Set(record) => {
                journal::stage(&mut stripe.staged, key, |out| write(&record, out));
                stripe.reservations.set(hash.high, record);
                false
            }
            RecordChange::Clear => {
                journal::stage(&mut stripe.staged, key, |_| ());
                stripe.reservations.remove(&hash.high)
            }
        };
        forgotten.into()
    }

    /// A record that was found when the store was opened, or `None`: that it was forgotten.
    pub fn load_reservation(&self, hash: KeyHash, record: Option<Reservation>) {
        load(&mut self.stripe(hash.stripe()), hash, record);
    }

    /// Drops the records that may be forgotten at `now`. Returns how many these were.
    pub fn sweep_reservations(&self, now: Timestamp) -> u64 {
        self.stripes.iter().map(|stripe| stripe.lock().reservations.sweep(now)).sum()
    }

    pub fn reservations(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.lock().reservations.len() as u64).sum()
    }

    /// As [`Table::write_back`], for the record of a reservation. It is written as this commit has it: a later change is in a
    /// later segment. One that has ended need not be written, and none has a record that ends later than its last change
    /// says, but for those that are forgotten.
    pub(super) fn write_back_reservation(change: &Change<'_>, now: Timestamp, changes: &mut Vec<u8>) {
        let has_ended = value::expiry(change.value).is_ok_and(|expires| expires <= now);
        if !has_ended {
            journal::stage(changes, change.key, |out| out.extend_from_slice(change.value));
        }
    }

    /// Stages the record as it is now.
    pub(super) fn stage_reservation(&self, hash: KeyHash, key: &[u8], changes: &mut Vec<u8>) {
        let stripe = self.stripe(hash.stripe());
        journal::stage(changes, key, |out| {
            if let Some(record) = stripe.reservations.get(&hash.high) {
                write(record, out);
            }
        });
    }

    /// What stands for the key of the record that an entry with `key` is about, and for its bucket's key.
    pub(super) fn hash_of_record(&self, key: &[u8]) -> KeyHash {
        let bucket = self.hasher.hash(record_key::bucket(key));
        KeyHash { high: self.hasher.hash(key).h1, low: bucket.h2 }
    }
}

pub(super) fn load(stripe: &mut Stripe, hash: KeyHash, record: Option<Reservation>) {
    match record {
        Some(record) => stripe.reservations.set(hash.high, record),
        None => drop(stripe.reservations.remove(&hash.high)),
    }
}

fn write(record: &Reservation, out: &mut Vec<u8>) {
    value::encode_reservation(record, record.expires(), out);
}

#[cfg(all(test, not(feature = "model")))]
mod tests;
