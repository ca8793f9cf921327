//! An event that counts for an actor, and the two orders and windows of boards.

/// Maximum length of the part of an actor's name that a board keeps (bytes).
pub const MAX_NAME: usize = 256;

/// An event of one rule.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    pub order: Order,
    /// The actor, as the rule's counters name it.
    pub actor: &'a [u8],
    /// The number of denials, which is 1, or of credits.
    pub amount: u64,
    /// The number of events that this one stands for.
    pub weight: u64,
}

/// The order of a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Denied requests.
    Denied,
    /// Credits that were taken.
    Taken,
}

/// The time until now over which a board counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
}

impl Order {
    /// All orders.
    pub const ALL: [Self; 2] = [Self::Denied, Self::Taken];

    /// Returns the name that clients use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Taken => "taken",
        }
    }
}

impl Window {
    /// All windows.
    pub const ALL: [Self; 2] = [Self::Minute, Self::Hour];

    /// Returns its length.
    pub fn seconds(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }
}
