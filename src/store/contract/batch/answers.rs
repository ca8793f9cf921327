//! The outcomes of a batch: how a store fills them in, and how its caller reads them.

use crate::algorithm::Outcome;
use crate::store::contract::{Batch, Entry, Outcomes, StoreError, Unit, outcome_at};

impl Batch {
    /// Answers every entry, in order, with what `answer` makes of its index, its bucket key and itself; groups have no
    /// meaning to it.
    pub(in crate::store) fn answer_each(
        &mut self,
        mut answer: impl FnMut(usize, &[u8], &Entry) -> Result<Outcome, StoreError>,
    ) {
        self.forget_outcomes();
        let keys = &self.keys;
        let answers = self.entries.iter().enumerate().map(|(index, entry)| answer(index, entry.key_in(keys), entry));
        self.outcomes.extend(answers);
    }

    /// Answers what is not answered yet, unit by unit, until `answer` says false. It adds the outcomes of all of the unit's
    /// entries, or says false and adds none. Whether all are answered now.
    pub(in crate::store) fn answer_on(&mut self, mut answer: impl FnMut(Unit<'_>, &mut Outcomes) -> bool) -> bool {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let answered = outcomes.len();
        outcomes.reserve(self.entries.len().saturating_sub(answered));
        let is_done = if self.groups.is_empty() {
            // As most batches are: looking for groups would cost each of their entries something.
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

    /// Index, key and itself of each entry that is not answered yet, in order.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the embedded store reads in advance"))]
    pub(in crate::store) fn unanswered(&self) -> impl Iterator<Item = (usize, &[u8], &Entry)> {
        let entries = self.entries.iter().enumerate().skip(self.outcomes.len());
        entries.map(|(index, entry)| (index, entry.key_in(&self.keys), entry))
    }

    /// Takes all answers back.
    pub fn forget_outcomes(&mut self) {
        self.outcomes.clear();
    }

    /// Replaces the outcomes that rest on changes which could not be made durable.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the embedded store makes changes durable"))]
    pub(in crate::store) fn fail_unsettled(&mut self, error: &StoreError) {
        for index in self.unsettled.drain(..) {
            if let Some(outcome) = self.outcomes.get_mut(index) {
                *outcome = Err(error.clone());
            }
        }
    }

    /// Every key, entry and outcome, once the batch is applied.
    pub(in crate::store) fn answers(&self) -> impl Iterator<Item = (&[u8], &Entry, &Result<Outcome, StoreError>)> {
        self.entries.iter().zip(&self.outcomes).map(|(entry, outcome)| (entry.key_in(&self.keys), entry, outcome))
    }

    /// Returns the outcome of the entry with this index, or an error if no store has applied it.
    pub fn outcome(&self, index: usize) -> Result<Outcome, StoreError> {
        outcome_at(&self.outcomes, index)
    }

    /// Moves the outcomes out.
    pub fn take_outcomes(&mut self) -> Outcomes {
        std::mem::take(&mut self.outcomes)
    }

    /// Takes back the buffer from [`Batch::take_outcomes`], for the next batch to use.
    pub fn reuse_outcomes(&mut self, outcomes: Outcomes) {
        self.outcomes = outcomes;
    }
}
