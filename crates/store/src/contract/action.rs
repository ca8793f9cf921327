//! Actions on buckets.

use crate::record_key::RecordSpace;
use divvy_core::algorithm::{Ask, ReservationAsk};

/// An action on a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Asks the bucket, without a record of the request.
    Ask(Ask),
    /// Forgets the bucket. `allowed` in the outcome says whether its state was not fresh.
    Forget,
    /// Asks about a reservation. The entry's key is the key of the reservation's record, and contains the bucket's key.
    Reservation(ReservationAsk),
    /// Asks, and records the outcome. The same request (same key, same fingerprint) gets the same outcome again, and
    /// takes nothing. Any ask can be idempotent. The entry's key is the key of the answer's record, and contains the
    /// bucket's key.
    Idempotent {
        /// The ask. A repeated request does not carry it out again.
        ask: Ask,
        /// Identifies the request. A different request under the same key has a different fingerprint.
        fingerprint: u64,
    },
}

// The size matters, because every hit writes an action.
const _: () = assert!(size_of::<Action>() == 24);

impl Action {
    /// Returns whether the action reports what has already happened: a charge, a refund or a release.
    pub fn is_settlement(self) -> bool {
        matches!(self, Self::Reservation(ReservationAsk::Release { .. }))
            || matches!(self.ask(), Some(Ask::Charge { .. } | Ask::Refund { .. }))
    }

    /// Returns the action's ask, idempotent or not. `None` if it forgets the bucket or is about a reservation.
    #[inline]
    pub fn ask(self) -> Option<Ask> {
        match self {
            Self::Ask(ask) | Self::Idempotent { ask, .. } => Some(ask),
            Self::Forget | Self::Reservation(_) => None,
        }
    }

    /// Returns the credits that must be left for the action to be granted. `None` if it is always granted, or forgets
    /// the bucket.
    pub(super) fn wanted(self) -> Option<u64> {
        match self {
            Self::Reservation(ReservationAsk::Reserve { credits, .. }) => Some(credits),
            _ => self.ask().map(Ask::wanted),
        }
    }

    /// Returns the fingerprint of an idempotent request.
    pub fn fingerprint(self) -> Option<u64> {
        if let Self::Idempotent { fingerprint, .. } = self { Some(fingerprint) } else { None }
    }

    /// Returns whether the action settles a reservation: a commit, a release or a renewal.
    pub fn settles_reservation(self) -> bool {
        matches!(self, Self::Reservation(ask) if !matches!(ask, ReservationAsk::Reserve { .. }))
    }

    /// Returns whether only the store may answer the action, and no policy.
    pub fn needs_store(self) -> bool {
        self.is_settlement() || self.is_about_reservation() || matches!(self.ask(), Some(Ask::Show))
    }

    /// Returns whether the bucket may have more credits left after the action than before.
    pub fn gives_back(self) -> bool {
        match self {
            Self::Forget => true,
            Self::Reservation(ask) => matches!(ask, ReservationAsk::Commit { .. } | ReservationAsk::Release { .. }),
            Self::Ask(ask) | Self::Idempotent { ask, .. } => matches!(ask, Ask::Refund { .. }),
        }
    }

    /// Returns whether the action makes, settles or keeps a reservation.
    pub fn is_about_reservation(self) -> bool {
        matches!(self, Self::Reservation(_))
    }

    /// Returns the kind of the action's record, which changes together with the bucket. `None` if it has no record.
    pub fn record_space(self) -> Option<RecordSpace> {
        match self {
            Self::Reservation(_) => Some(RecordSpace::Reservations),
            Self::Idempotent { .. } => Some(RecordSpace::Answers),
            Self::Ask(_) | Self::Forget => None,
        }
    }

    /// Returns the same action for at most `credits`, and at least 1, if it takes or reserves credits.
    pub(super) fn up_to(self, credits: u64) -> Self {
        let most = credits.max(1);
        match self {
            Self::Ask(Ask::Take { cost }) => Self::Ask(Ask::Take { cost: cost.min(most) }),
            Self::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }) => {
                Self::Reservation(ReservationAsk::Reserve { credits: credits.min(most), ttl_seconds })
            }
            Self::Ask(_) | Self::Forget | Self::Reservation(_) | Self::Idempotent { .. } => self,
        }
    }

    /// Returns whether the action has a record next to the bucket.
    #[inline]
    pub fn has_record(self) -> bool {
        self.record_space().is_some()
    }
}
