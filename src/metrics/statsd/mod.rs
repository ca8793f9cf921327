//! Statsd: the original Divvy's metrics under their old names, sent by a task of their own.
//!
//! Every interval the task sends what was counted since the last time, so a hit costs nothing more than what Prometheus
//! reads anyway. A statsd that cannot be reached is tried again at the next interval; nothing waits for it, nothing is
//! queued for it, and the log has one line when that begins and one when it is over.

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

/// How long the last report may take when the server ends.
const LAST_REPORT: Duration = Duration::from_secs(1);

/// Which statsd, and how to send to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsdOptions {
    pub host: String,
    pub port: u16,
    /// What the names begin with; a dot is put behind it.
    pub prefix: String,
    pub transport: Transport,
    /// How often what was counted is sent.
    pub interval: Duration,
}

impl StatsdOptions {
    pub const DEFAULT_PORT: u16 = 8125;
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
}

/// The task that sends.
pub struct Statsd {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Statsd {
    /// Starts to send, on the runtime that this is called in.
    pub fn start(options: StatsdOptions, metrics: Arc<Metrics>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(Sender::new(options, metrics).run(stop.clone()));
        Self { stop, task }
    }

    /// Sends what was counted last, unless that takes too long, and ends.
    pub async fn finish(mut self) {
        self.stop.cancel();
        if timeout(LAST_REPORT, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// What the task works with.
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
            outage: Outage::of(format!("{}:{}", options.host, options.port)),
            options,
            metrics,
            reporter,
            wire: None,
        }
    }

    async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(self.options.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_last = tokio::select! {
                _ = ticks.tick() => false,
                () = stop.cancelled() => true,
            };
            // Its report goes on from where the last one ended: a task that began anew would send everything again.
            let sent = AssertUnwindSafe(self.send()).catch_unwind().await;
            self.outage.note(sent.unwrap_or_else(|_| Err(io::Error::other("a bug in divvy, which the log tells"))));
            if is_last {
                return;
            }
        }
    }

    /// Sends what was counted since the last time. What could not even be begun is sent next time; of what broke off on
    /// its way it is unknown how much arrived, and to send it again might count it twice.
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
