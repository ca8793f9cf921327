//! The log of a statsd that cannot be reached.

use std::io;

/// Number of consecutive reports without an error that end an outage. If nothing receives datagrams, only every other
/// one fails.
const REPORTS_TO_TRUST: u32 = 5;

pub struct Outage {
    statsd: String,
    lasts: bool,
    sent_since: u32,
}

impl Outage {
    /// Creates the log for statsd at this address.
    pub fn new(statsd: String) -> Self {
        Self { statsd, lasts: false, sent_since: 0 }
    }

    /// Records the result of a report, and logs the beginning and the end of an outage.
    pub fn record(&mut self, result: io::Result<()>) {
        match result {
            Err(error) => {
                if !self.lasts {
                    tracing::warn!(statsd = %self.statsd, %error, "cannot send metrics to statsd; retrying");
                }
                (self.lasts, self.sent_since) = (true, 0);
            }
            Ok(()) if self.lasts => {
                self.sent_since += 1;
                if self.sent_since >= REPORTS_TO_TRUST {
                    tracing::info!(statsd = %self.statsd, "sending metrics to statsd again");
                    self.lasts = false;
                }
            }
            Ok(()) => {}
        }
    }
}
