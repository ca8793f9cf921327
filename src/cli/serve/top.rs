//! The flag for ranking the actors of rules.

use crate::limiter::DEFAULT_TOP_MEMORY;
use crate::units::{self, Bytes};

/// Upper bound, more than any machine has.
const MAX_TOP_MEMORY: u64 = 1 << 50;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rules")]
pub struct TopArgs {
    /// Memory for ranking actors by denials and by credits (`divvy top`). Rules that are hit after it is spent are not
    /// ranked. 0: none are
    #[arg(long, value_name = "BYTES", default_value_t = Bytes(DEFAULT_TOP_MEMORY as u64),
          value_parser = units::bytes(0..=MAX_TOP_MEMORY))]
    top_memory: Bytes,
}

impl TopArgs {
    /// Returns the memory in bytes.
    pub fn memory(&self) -> usize {
        self.top_memory.in_memory()
    }
}
