//! Answers to bouncers, written piece by piece, so that a long answer takes little memory however slowly it is read. A piece is
//! empty if the bouncer wants none of the decisions that were looked at for it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::bouncers::{Bouncer, Bouncers};
use super::journal::{Journal, Place};
use crate::clock::Timestamp;
use crate::protocol::crowdsec::{DecisionFilter, DecisionList, NetworkFilter};

/// Maximum number of decisions that are looked at for a piece. The journal is locked for that long.
const PIECE: usize = 256;

/// The answer to `GET /v1/decisions/stream`: the decisions since the last answer. The bouncer is taken to have them once its
/// connection has accepted the whole answer.
pub struct StreamAnswer {
    journal: Arc<Mutex<Journal>>,
    bouncers: Arc<Mutex<Bouncers>>,
    bouncer: Bouncer,
    filter: DecisionFilter,
    now: Timestamp,
    /// The changes that the answer has.
    after: u64,
    through: u64,
    step: Step,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Start,
    /// Within a part, after the change at this position.
    Part {
        part: Part,
        at: u64,
        is_first: bool,
    },
    /// Everything is written.
    Written,
    /// The last piece was accepted.
    Accepted,
}

/// The decisions of an answer, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Decisions in force.
    New,
    /// Decisions that have ended.
    Ended,
    /// Decisions whose reason has changed. The bouncer does not want the present one.
    Unwanted,
}

impl StreamAnswer {
    /// Creates the answer with the changes after the start of the range, up to its end.
    pub fn new(
        journal: Arc<Mutex<Journal>>,
        bouncers: Arc<Mutex<Bouncers>>,
        bouncer: Bouncer,
        filter: DecisionFilter,
        now: Timestamp,
        changes: Range<u64>,
    ) -> Self {
        let Range { start: after, end: through } = changes;
        Self { journal, bouncers, bouncer, filter, now, after, through, step: Step::Start }
    }

    /// Writes decisions of a part after `at`. Returns the step after them.
    fn write(&self, part: Part, at: u64, mut is_first: bool, out: &mut Vec<u8>) -> Step {
        let journal = self.journal.lock();
        let (mut last, mut count) = (at, 0);
        let list = if part == Part::Ended { DecisionList::Deleted } else { DecisionList::New };
        for (change, entry) in journal.changes(list, at, self.through).take(PIECE) {
            (last, count) = (change, count + 1);
            let reason = match part {
                Part::New | Part::Ended => entry.wanted(&self.filter),
                Part::Unwanted => entry.lost(&self.filter),
            };
            if let Some(reason) = reason {
                entry.write(reason, part == Part::New, self.now, is_first, out);
                is_first = false;
            }
        }
        match part {
            _ if count == PIECE => Step::Part { part, at: last, is_first },
            Part::New => {
                out.extend_from_slice(b"],\"deleted\":[");
                Step::Part { part: Part::Ended, at: self.after, is_first: true }
            }
            Part::Ended => Step::Part { part: Part::Unwanted, at: self.after, is_first },
            Part::Unwanted => {
                out.extend_from_slice(b"]}");
                Step::Written
            }
        }
    }
}

impl Iterator for StreamAnswer {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        self.step = match self.step {
            Step::Start => {
                out.extend_from_slice(b"{\"new\":[");
                self.write(Part::New, self.after, true, &mut out)
            }
            Step::Part { part, at, is_first } => self.write(part, at, is_first, &mut out),
            Step::Written => {
                self.bouncers.lock().advance(self.bouncer.clone(), self.through);
                self.step = Step::Accepted;
                return None;
            }
            Step::Accepted => return None,
        };
        Some(out.into())
    }
}

/// The answer to `GET /v1/decisions`: the decisions in force.
pub struct ListAnswer {
    journal: Arc<Mutex<Journal>>,
    filter: DecisionFilter,
    now: Timestamp,
    after: Option<Place>,
    is_first: bool,
    is_written: bool,
}

impl ListAnswer {
    /// Creates the answer with the decisions that the filter wants.
    pub fn new(journal: Arc<Mutex<Journal>>, filter: DecisionFilter, now: Timestamp) -> Self {
        Self { journal, filter, now, after: None, is_first: true, is_written: false }
    }

    /// Returns whether everything is written.
    pub fn is_written(&self) -> bool {
        self.is_written
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        let journal = self.journal.lock();
        let network = match self.filter.network {
            // One for each length of a prefix at most.
            Some(NetworkFilter::Covering(network)) => {
                let wanted = journal.covering(network).filter_map(|entry| Some((entry, entry.wanted(&self.filter)?)));
                for (entry, reason) in wanted {
                    out.extend_from_slice(if self.is_first { b"[" } else { b"" });
                    entry.write(reason, true, self.now, self.is_first, out);
                    self.is_first = false;
                }
                self.is_written = true;
                return;
            }
            Some(NetworkFilter::Within(network)) => Some(network),
            None => None,
        };
        let mut count = 0;
        for (place, entry) in journal.within(network, self.after).take(PIECE) {
            (self.after, count) = (Some(place), count + 1);
            if let Some(reason) = entry.wanted(&self.filter) {
                out.extend_from_slice(if self.is_first { b"[" } else { b"" });
                entry.write(reason, true, self.now, self.is_first, out);
                self.is_first = false;
            }
        }
        self.is_written = count < PIECE;
    }
}

impl Iterator for ListAnswer {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.is_written {
            return None;
        }
        let mut out = Vec::new();
        self.write(&mut out);
        if self.is_written {
            // Bouncers in Lua look for exactly this text.
            out.extend_from_slice(if self.is_first { b"null" } else { b"]" });
        }
        Some(out.into())
    }
}

#[cfg(test)]
mod tests;
