//! Who names a bucket.

/// Who names the buckets. On disk the spaces 4 to 15 are reserved: for records of groups, reservations, leases, limits of
/// single actors, and requests that may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// A rule of the rules file: the name is its operation.
    Rule = 0,
    /// A client that brings its own token bucket: without a name, the client's key is the actor.
    TokenBucket = 1,
    /// A client that brings its own leaky bucket: likewise.
    Throttle = 2,
    /// Counters with a name, which rules share: they count what was used, and their credits are no part of the key.
    Named = 3,
    /// A rule that may be in a stack, in a Redis Cluster, never on disk: the bucket is in the slot of its actor,
    SlotOfActor = 16,
    /// or, when that is made of several fields, in that of the first field's value.
    SlotOfFirstField = 17,
    /// Counters with a name, in a Redis Cluster: as those of rules.
    NamedInSlotOfActor = 18,
    NamedInSlotOfFirstField = 19,
    /// A fixed window with debt, in Redis, never on disk. Those of [`Space::Rule`] have the original's names there, and what
    /// the original takes for one must not be below 0 as a rule.
    Debt = 20,
    DebtInSlotOfActor = 21,
    DebtInSlotOfFirstField = 22,
}

impl Space {
    pub(super) const ALL: [Self; 11] = [
        Self::Rule,
        Self::TokenBucket,
        Self::Throttle,
        Self::Named,
        Self::SlotOfActor,
        Self::SlotOfFirstField,
        Self::NamedInSlotOfActor,
        Self::NamedInSlotOfFirstField,
        Self::Debt,
        Self::DebtInSlotOfActor,
        Self::DebtInSlotOfFirstField,
    ];

    pub(super) fn is_named(self) -> bool {
        matches!(self, Self::Named | Self::NamedInSlotOfActor | Self::NamedInSlotOfFirstField)
    }
}
