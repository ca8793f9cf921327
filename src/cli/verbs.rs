//! Subcommands that send one request about an operation or a reservation to a running server, and print the answer: `divvy
//! hit` and its siblings.

mod answer;
mod hit;
mod request;
mod reservations;

pub use self::hit::{CHARGE_EXAMPLE, CorrectionArgs, HitArgs, PeekArgs, REFUND_EXAMPLE, charge, refund};
pub use self::reservations::{CommitArgs, ReleaseArgs, RenewArgs, ReserveArgs};
