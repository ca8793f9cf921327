//! Outcomes of a batch: stores fill them in, and callers read them.

use crate::contract::{Batch, Entry, Outcomes, StoreError, Unit, outcome_at};
use divvy_core::algorithm::Outcome;

impl Batch {
    /// Answers every entry with `answer`, in order. Ignores groups.
    pub fn answer_each(&mut self, answer: impl FnMut(&Entry) -> Result<Outcome, StoreError>) {
        self.outcomes.clear();
        self.outcomes.extend(self.entries.iter().map(answer));
    }

    /// Answers the unanswered entries, unit by unit. `answer` adds the outcomes of all of the unit's entries. If it
    /// adds none and returns false, this stops. Returns whether all entries are answered.
    pub fn answer_on(&mut self, mut answer: impl FnMut(Unit<'_>, &mut Outcomes) -> bool) -> bool {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let answered = outcomes.len();
        outcomes.reserve(self.entries.len().saturating_sub(answered));
        let is_done = if self.groups.is_empty() {
            // Fast path: there are no groups to search for.
            let mut entries = self.entries.iter().enumerate().skip(answered);
            entries.all(|(first, entry)| {
                answer(Unit { first, entries: std::slice::from_ref(entry), keys: &self.keys }, &mut outcomes)
            })
        } else {
            self.units(answered).all(|unit| answer(unit, &mut outcomes))
        };
        self.outcomes = outcomes;
        is_done
    }

    /// Iterates over the unanswered entries, with their indexes and keys.
    pub fn unanswered(&self) -> impl Iterator<Item = (usize, &[u8], &Entry)> {
        let entries = self.entries.iter().enumerate().skip(self.outcomes.len());
        entries.map(|(index, entry)| (index, entry.key_in(&self.keys), entry))
    }

    /// Replaces the outcomes that depend on changes that could not be made durable.
    pub fn fail_unsettled(&mut self, error: &StoreError) {
        for index in self.unsettled.drain(..) {
            if let Some(outcome) = self.outcomes.get_mut(index) {
                *outcome = Err(error.clone());
            }
        }
    }

    /// Iterates over keys, entries and outcomes, once the batch is applied.
    pub fn answers(&self) -> impl Iterator<Item = (&[u8], &Entry, &Result<Outcome, StoreError>)> {
        self.entries.iter().zip(&self.outcomes).map(|(entry, outcome)| (entry.key_in(&self.keys), entry, outcome))
    }

    /// Returns the outcome of the entry with this index, or an error if no store has applied it.
    pub fn outcome(&self, index: usize) -> Result<Outcome, StoreError> {
        outcome_at(&self.outcomes, index)
    }
}
