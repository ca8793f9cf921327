//! The options of `divvy hit`, and its answer.

use std::time::Duration;

use super::front::Front;
use crate::cli::pairs::Pair;
use crate::cli::resp::ServerArgs;
use crate::cli::units;

/// Maximum time for reaching the server, and for its answer.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Send a hit to a running server and print the answer.
///
/// The answer is `OK`, whether the hit is allowed, the credits left, and the seconds until there are more, as in `OK
/// true 999 60`. Exits with 1 when there is no answer, and with 0 for any answer unless --exit-code is given.
#[derive(Debug, clap::Args)]
pub struct HitArgs {
    // First, because it checks whether the other values come from flags or variables.
    #[command(flatten)]
    pub(super) front: Front,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    /// Speak the line protocol with this address, instead of RESP with --server [default: 127.0.0.1:8321]
    #[arg(long, env = "DIVVY_ADDR", value_name = "HOST:PORT")]
    pub(super) addr: Option<String>,
    /// Credits that the hit takes, regardless of the rule's costField. Not available over the line protocol
    #[arg(long, value_name = "N", value_parser = units::count::<u64>(0..=i64::MAX as u64))]
    pub(super) cost: Option<u64>,
    /// Name of this hit: sent again within a minute under the same name, it takes nothing and has the same answer. 1 to 255
    /// bytes. Not available over the line protocol
    #[arg(long, value_name = "TEXT")]
    pub(super) id: Option<String>,
    /// Exit with 3 when the hit is denied
    #[arg(long)]
    pub(super) exit_code: bool,
    /// Print a JSON object instead of a line
    #[arg(long)]
    pub(super) json: bool,
    /// The operation: each argument is one pair, split at its first `=`
    #[arg(value_name = "KEY=VALUE")]
    pub(super) operation: Vec<Pair>,
}

/// The server's answer.
pub struct Verdict {
    pub allowed: bool,
    /// Credits left.
    pub credit: u64,
    /// Seconds until more credits are available.
    pub reset_seconds: u64,
}
