//! Statsd: a task that sends the original Divvy's metrics with their original names.
//!
//! At each interval the task sends the changes of the counts that Prometheus reads, so hits cost nothing extra. If
//! statsd is unreachable, the task retries at the next interval. Nothing waits for statsd, no report is queued, and the
//! log has one line when an outage begins and one when it ends.

mod lines;
mod outage;
mod wire;

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use self::lines::Reporter;
use self::outage::Outage;
pub use self::wire::Transport;
use self::wire::Wire;
use crate::metrics::Metrics;

/// Timeout for the last report when the server shuts down.
const LAST_REPORT: Duration = Duration::from_secs(1);

/// Address of statsd, and how to send to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsdOptions {
    /// Host name or address, resolved at each connection.
    pub host: String,
    /// Port of statsd, for either transport.
    pub port: u16,
    /// Prefix of all names, without its dot.
    pub prefix: String,
    /// UDP or TCP.
    pub transport: Transport,
}

impl StatsdOptions {
    /// The port that statsd uses by default.
    pub const DEFAULT_PORT: u16 = 8125;
}

/// Interval between reports. Most statsd servers add up ten seconds.
const INTERVAL: Duration = Duration::from_secs(1);

/// The task that sends reports.
pub struct Statsd {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Statsd {
    /// Starts the task on the current runtime.
    pub fn start(options: StatsdOptions, metrics: Arc<Metrics>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(Sender::new(options, metrics).run(stop.clone()));
        Self { stop, task }
    }

    /// Sends a last report, unless that takes too long, and stops the task.
    pub async fn finish(mut self) {
        self.stop.cancel();
        if timeout(LAST_REPORT, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// State of the task.
struct Sender {
    options: StatsdOptions,
    metrics: Arc<Metrics>,
    reporter: Reporter,
    wire: Option<Wire>,
    outage: Outage,
}

impl Sender {
    fn new(options: StatsdOptions, metrics: Arc<Metrics>) -> Self {
        let reporter = Reporter::new(&options.prefix);
        Self {
            outage: Outage::new(format!("{}:{}", options.host, options.port)),
            options,
            metrics,
            reporter,
            wire: None,
        }
    }

    async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_last = tokio::select! {
                _ = ticks.tick() => false,
                () = stop.cancelled() => true,
            };
            // After a panic, the task continues with the same reporter, because a new one would send everything again.
            let sent = AssertUnwindSafe(self.send()).catch_unwind().await;
            self.outage.record(sent.unwrap_or_else(|_| Err(io::Error::other("a bug in divvy: see the log"))));
            if is_last {
                return;
            }
        }
    }

    /// Sends the changes since the last report. Without a connection, they are part of the next report. A report that
    /// fails midway is not sent again, because the part that has arrived would be counted twice.
    async fn send(&mut self) -> io::Result<()> {
        let mut wire = match self.wire.take().filter(|wire| !wire.is_stale()) {
            Some(wire) => wire,
            None => Wire::connect(&self.options.host, self.options.port, self.options.transport).await?,
        };
        wire.send(&self.reporter.report(&self.metrics)).await?;
        self.wire = Some(wire);
        Ok(())
    }
}
