//! Histories: the requests of clients, their answers, and the times of both.

use std::fmt;
use std::sync::LazyLock;
use std::time::Instant;

/// A request about one counter. A key is the number of an idempotency key, and a name is the number of a reservation's `ID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    Hit {
        cost: u64,
        key: Option<u8>,
    },
    Peek {
        cost: u64,
    },
    Charge {
        cost: u64,
        key: Option<u8>,
    },
    Refund {
        cost: u64,
        key: Option<u8>,
    },
    Reserve {
        amount: u64,
        name: Option<u8>,
    },
    Commit {
        id: ReservationId,
        cost: u64,
    },
    Release {
        id: ReservationId,
    },
    Renew {
        id: ReservationId,
    },
    Reset,
    /// `RL.REDUCE` at this second.
    Reduce {
        take: u64,
        at: u64,
    },
    /// Not a request: a new master, which may lack what the old one acknowledged.
    Failover,
}

/// Number of a reservation's id. The clients of a history number the ids as they learn them.
pub type ReservationId = usize;

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    Settled,
    Late,
    Repeated,
}

/// An answer without its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    /// The answer to a hit or a peek.
    Verdict {
        allowed: bool,
        left: u64,
    },
    /// The answer to a charge or a refund.
    Balance(i64),
    Reserved {
        allowed: bool,
        left: u64,
        id: Option<ReservationId>,
    },
    Committed {
        balance: i64,
        status: Status,
    },
    /// The answer to a release or a renewal: whether anything was set aside.
    WasHeld(bool),
    /// The answer to `RL.REDUCE`: the tokens before it.
    Tokens(u64),
    /// The answer to a reset.
    Done,
}

/// A request and its result. Times are nanoseconds of one monotonic clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub client: usize,
    /// Front and server, for reports.
    pub place: String,
    pub request: Request,
    pub called: u64,
    /// `u64::MAX` if the answer is unknown.
    pub returned: u64,
    /// `None` if it is unknown whether the request took effect: then it did once, at any time after the call, or never.
    pub reply: Option<Reply>,
    /// Why it is unknown.
    pub error: Option<String>,
}

impl Operation {
    /// Returns the operation as it looked at a time before its answer.
    pub fn unanswered(&self) -> Self {
        Self { returned: u64::MAX, reply: None, ..self.clone() }
    }
}

/// All operations on one counter, in the order of their calls.
#[derive(Debug, Clone)]
pub struct History {
    /// Name of the counter, and the seed of its requests.
    pub name: String,
    pub operations: Vec<Operation>,
}

impl History {
    pub fn unknown(&self) -> usize {
        self.operations.iter().filter(|operation| operation.reply.is_none()).count()
    }
}

/// Returns the nanoseconds since the first call.
pub fn now() -> u64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed().as_nanos() as u64
}

impl fmt::Display for Request {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keyed = |key: &Option<u8>| key.map(|key| format!(" key k{key}")).unwrap_or_default();
        match self {
            Self::Hit { cost, key } => write!(to, "hit {cost}{}", keyed(key)),
            Self::Peek { cost } => write!(to, "peek {cost}"),
            Self::Charge { cost, key } => write!(to, "charge {cost}{}", keyed(key)),
            Self::Refund { cost, key } => write!(to, "refund {cost}{}", keyed(key)),
            Self::Reserve { amount, name: None } => write!(to, "reserve {amount}"),
            Self::Reserve { amount, name: Some(name) } => write!(to, "reserve {amount} as n{name}"),
            Self::Commit { id, cost } => write!(to, "commit r{id} {cost}"),
            Self::Release { id } => write!(to, "release r{id}"),
            Self::Renew { id } => write!(to, "renew r{id}"),
            Self::Reset => write!(to, "reset"),
            Self::Reduce { take, at } => write!(to, "reduce {take} at {at}"),
            Self::Failover => write!(to, "failover"),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = |allowed: &bool| if *allowed { "allowed" } else { "denied" };
        match self {
            Self::Verdict { allowed, left } => write!(to, "{}, {left} left", verdict(allowed)),
            Self::Balance(balance) => write!(to, "balance {balance}"),
            Self::Reserved { allowed, left, id: None } => write!(to, "{}, {left} left", verdict(allowed)),
            Self::Reserved { allowed, left, id: Some(id) } => write!(to, "{}, {left} left, r{id}", verdict(allowed)),
            Self::Committed { balance, status } => {
                write!(to, "{}, balance {balance}", format!("{status:?}").to_lowercase())
            }
            Self::WasHeld(held) => write!(to, "{}", if *held { "was held" } else { "was not held" }),
            Self::Tokens(tokens) => write!(to, "{tokens} tokens before"),
            Self::Done => write!(to, "done"),
        }
    }
}
