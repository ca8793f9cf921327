//! Subcommands that send one request about an operation or a reservation to a running server, and print the answer: `divvy
//! hit` and its siblings. Each has a file with its arguments and its answer.

mod answer;
mod call;
mod commit;
mod correction;
mod denial;
mod hit;
mod peek;
mod release;
mod renew;
mod request;
mod reserve;
mod verdict;

pub use self::commit::CommitArgs;
pub use self::correction::{CHARGE_EXAMPLE, CorrectionArgs, REFUND_EXAMPLE, charge, refund};
pub use self::hit::HitArgs;
pub use self::peek::PeekArgs;
pub use self::release::ReleaseArgs;
pub use self::renew::RenewArgs;
pub use self::reserve::ReserveArgs;
