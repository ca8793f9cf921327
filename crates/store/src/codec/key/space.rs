//! Spaces of keys.

/// The kind of name that a bucket has. On disk, the spaces 4 to 15 are reserved for records of groups, reservations, leases,
/// limits of single actors, and idempotent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// A rule of the rules file. The name is its operation.
    Rule = 0,
    /// A token bucket with a client's own limit. It has no name, and the client's key is the actor.
    TokenBucket = 1,
    /// A leaky bucket with a client's own limit, named in the same way.
    Throttle = 2,
    /// A counter with a name, which rules share. It counts the credits used. The key does not contain the number of
    /// credits.
    Named = 3,
    /// A rule that may be in a stack, in a Redis Cluster. The bucket is in the slot of its actor. Never on disk.
    SlotOfActor = 16,
    /// The same for an actor of several fields. The bucket is in the slot of the first field's value.
    SlotOfFirstField = 17,
    /// A counter with a name, in the slot of its actor.
    NamedInSlotOfActor = 18,
    /// The same for an actor of several fields, in the slot of the first field's value.
    NamedInSlotOfFirstField = 19,
    /// A fixed window with debt, in Redis. Never on disk. Windows of [`Space::Rule`] have names there that Button's
    /// Divvy reads, and must not be negative.
    Debt = 20,
    /// The same in the slot of its actor.
    DebtInSlotOfActor = 21,
    /// The same in the slot of the first field's value.
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
