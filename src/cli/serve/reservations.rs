//! Flags for reservations.

use std::time::Duration;

use crate::algorithm::reservation::LONGEST_SECONDS;
use crate::limiter::DEFAULT_MAX_RESERVATION_TTL;
use crate::units::{self, Time};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rules")]
pub struct ReservationArgs {
    /// Maximum duration of a reservation, in whole seconds
    #[arg(long, value_name = "SECONDS",
          default_value_t = Time(Duration::from_secs(DEFAULT_MAX_RESERVATION_TTL.into())),
          value_parser = units::whole_seconds(1..=LONGEST_SECONDS.into()))]
    max_reservation_ttl: Time,
}

impl ReservationArgs {
    /// Returns the maximum duration in seconds.
    pub fn max_ttl(&self) -> u32 {
        u32::try_from(self.max_reservation_ttl.0.as_secs()).unwrap_or(u32::MAX)
    }
}
