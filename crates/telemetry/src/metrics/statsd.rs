//! Statsd: a task that sends the original Divvy's metrics with their original names.
//!
//! At each interval the task sends the changes of the counts that Prometheus reads, so hits cost nothing extra. If
//! statsd is unreachable, the task retries at the next interval. Nothing waits for statsd, no report is queued, and the
//! log has one line when an outage begins and one when it ends.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use futures_util::FutureExt;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::ratelimit::{LimitTotals, RATE_LIMIT, RESPONSE_TIME};
use super::registry::BucketContents;
use super::rules::HitCount;
use super::{ErrorKind, LimitStatistic, Metrics, ServiceEvent};

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
    /// TCP, which sends a stream of lines, instead of UDP, whose packets may be lost.
    pub is_tcp: bool,
}

/// The port that statsd uses by default.
pub const DEFAULT_STATSD_PORT: u16 = 8125;

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
        let reporter = Reporter::new(&options.prefix);
        let sender = Sender { options, metrics, reporter, wire: None, reports: 0, outage: None };
        let task = tokio::spawn(sender.run(stop.clone()));
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

/// Number of consecutive reports without an error that end an outage. If nothing receives datagrams, only every other
/// one fails, because a refusal belongs to an earlier datagram.
const REPORTS_TO_TRUST: u32 = 5;

/// Number of reports as datagrams until the name is resolved again, because no error shows that the address has changed.
const REPORTS_PER_LOOK_UP: u64 = 60;

/// State of the task.
struct Sender {
    options: StatsdOptions,
    metrics: Arc<Metrics>,
    reporter: Reporter,
    wire: Option<Wire>,
    /// Number of reports since the name was resolved.
    reports: u64,
    /// During an outage, the number of reports since the last error.
    outage: Option<u32>,
}

impl Sender {
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
            self.record(sent.unwrap_or_else(|_| Err(io::Error::other("a bug in divvy: see the log"))));
            if is_last {
                return;
            }
        }
    }

    /// Sends the changes since the last report. Without a connection, they are part of the next report. A report that
    /// fails midway is not sent again, because the part that has arrived would be counted twice.
    async fn send(&mut self) -> io::Result<()> {
        let is_fresh = self.reports < REPORTS_PER_LOOK_UP || self.options.is_tcp;
        self.reports = if is_fresh { self.reports + 1 } else { 0 };
        let mut wire = match self.wire.take().filter(|_| is_fresh) {
            Some(wire) => wire,
            None => Wire::connect(&self.options.host, self.options.port, self.options.is_tcp).await?,
        };
        wire.send(&self.reporter.report(&self.metrics)).await?;
        self.wire = Some(wire);
        Ok(())
    }

    /// Records the result of a report, and logs the beginning and the end of an outage.
    fn record(&mut self, result: io::Result<()>) {
        let statsd = format_args!("{}:{}", self.options.host, self.options.port);
        self.outage = match (result, self.outage) {
            (Err(error), outage) => {
                if outage.is_none() {
                    tracing::warn!(%statsd, %error, "cannot send metrics to statsd; retrying");
                }
                Some(0)
            }
            (Ok(()), Some(sent)) if sent + 1 >= REPORTS_TO_TRUST => {
                tracing::info!(%statsd, "sending metrics to statsd again");
                None
            }
            (Ok(()), outage) => outage.map(|sent| sent + 1),
        };
    }
}

/// Turns counts into lines, and remembers the counts of the last report. A line is `name:value|type`, with `|@rate` if it
/// stands for several observations.
struct Reporter {
    /// Prefix of all names: empty, or ending in a dot.
    prefix: String,
    lines: Vec<String>,
    /// Counts by their names.
    counts: HashMap<String, u64>,
    /// Counts of ratelimit's limits by their names.
    limits: HashMap<Arc<str>, LimitTotals>,
    durations: HashMap<&'static str, Vec<BucketContents>>,
}

impl Reporter {
    /// Creates a reporter. Names begin with `prefix` and a dot, unless it is empty.
    pub fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_end_matches('.');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
        Self { prefix, lines: Vec::new(), counts: HashMap::new(), limits: HashMap::new(), durations: HashMap::new() }
    }

    /// Returns a line for each count that changed since the last report, and one for the open connections.
    pub fn report(&mut self, metrics: &Metrics) -> Vec<String> {
        let mut by_status: HashMap<String, u64> = HashMap::new();
        for HitCount { status, rule, hits } in metrics.hits.counted() {
            self.count(format!("hit.{status}.{rule}"), hits);
            *by_status.entry(status).or_default() += hits;
        }
        by_status.into_iter().for_each(|(status, hits)| self.count(format!("hit.{status}"), hits));
        for kind in ErrorKind::ALL {
            self.count(format!("error.{}", kind.name()), metrics.errors.counted(kind));
        }
        self.report_durations("hit", metrics.hits.duration.observed());
        for event in ServiceEvent::ALL {
            self.count(event.name().to_owned(), metrics.ratelimit.counted(event));
        }
        self.report_durations(RESPONSE_TIME, metrics.ratelimit.response_time.observed());
        metrics.ratelimit.limits().into_iter().for_each(|(limit, now)| self.report_limit(limit, now));
        self.lines.push(format!("{}connections:{}|g", self.prefix, metrics.connections.open()));
        mem::take(&mut self.lines)
    }

    /// Adds a line for each statistic of a limit that has changed.
    fn report_limit(&mut self, limit: Arc<str>, now: LimitTotals) {
        let head = format!("{}{RATE_LIMIT}{limit}.", self.prefix);
        let last = self.limits.insert(limit, now).unwrap_or_default();
        for ((statistic, now), last) in LimitStatistic::ALL.into_iter().zip(now).zip(last) {
            if now > last {
                self.lines.push(format!("{head}{statistic}:{}|c", now - last));
            }
        }
    }

    /// Adds a line for what was counted since the last report, if anything was.
    fn count(&mut self, name: String, total: u64) {
        let last = self.counts.entry(name);
        let line = format!("{}{}:", self.prefix, last.key());
        let new = total - mem::replace(last.or_default(), total);
        if new > 0 {
            self.lines.push(format!("{line}{new}|c"));
        }
    }

    /// Adds a line for each bucket with new hits: their mean, with the sample rate that makes statsd count all of them. The
    /// number of lines is bounded, count and mean are exact, and percentiles are as precise as the buckets. Times are fractions of
    /// milliseconds, because most hits take less than one.
    fn report_durations(&mut self, name: &'static str, now: Vec<BucketContents>) {
        let last = self.durations.insert(name, now.clone()).unwrap_or_default();
        for (index, now) in now.iter().enumerate() {
            let last = last.get(index).copied().unwrap_or_default();
            let hits = now.observations.wrapping_sub(last.observations);
            if hits == 0 {
                continue;
            }
            let mean_ns = now.sum.wrapping_sub(last.sum) as f64 / hits as f64;
            // Rounded to microseconds: anything finer is noise.
            let millis = (mean_ns / 1e3).round() / 1e3;
            let rate = if hits > 1 { format!("|@{}", 1.0 / hits as f64) } else { String::new() };
            self.lines.push(format!("{}{name}:{millis}|ms{rate}", self.prefix));
        }
    }
}

/// Maximum length of a datagram (bytes). Most networks carry it unfragmented.
const MAX_DATAGRAM: usize = 1432;

/// Timeout for connecting and for sending.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A connection to statsd.
enum Wire {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Wire {
    /// Connects to statsd.
    ///
    /// # Errors
    /// The name cannot be resolved, or none of its addresses answers.
    pub async fn connect(host: &str, port: u16, is_tcp: bool) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in lookup_host((host, port)).await? {
            let connected = match is_tcp {
                false => udp(address).await.map(Self::Udp),
                true => in_time(TcpStream::connect(address)).await.map(Self::Tcp),
            };
            match connected {
                Ok(wire) => return Ok(wire),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends lines.
    ///
    /// # Errors
    /// The system refuses, or statsd does not read in time. A part may have arrived.
    pub async fn send(&mut self, lines: &[String]) -> io::Result<()> {
        match self {
            Self::Udp(socket) => {
                for datagram in datagrams(lines) {
                    in_time(socket.send(datagram.as_bytes())).await?;
                }
                Ok(())
            }
            Self::Tcp(stream) => {
                let text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
                in_time(stream.write_all(text.as_bytes())).await
            }
        }
    }
}

async fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr =
        if address.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    Ok(socket)
}

/// Packs lines into as few datagrams as possible. A line that is too long gets its own.
fn datagrams(lines: &[String]) -> Vec<String> {
    let mut datagrams: Vec<String> = Vec::new();
    for line in lines {
        match datagrams.last_mut().filter(|last| last.len() + 1 + line.len() <= MAX_DATAGRAM) {
            Some(last) => last.extend(["\n", line.as_str()]),
            None => datagrams.push(line.clone()),
        }
    }
    datagrams
}

async fn in_time<T>(action: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(TIMEOUT, action).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::super::Tally;
    use super::*;

    fn report(reporter: &mut Reporter, metrics: &Metrics) -> Vec<String> {
        let mut lines = reporter.report(metrics);
        lines.sort();
        lines
    }

    #[test]
    fn report_contains_the_changes_since_the_last_one() {
        let metrics = Metrics::new();
        let (status, canary) = (metrics.hits.rule("status", false), metrics.hits.rule("default", true));
        let mut reporter = Reporter::new("");
        assert_eq!(report(&mut reporter, &metrics), ["connections:0|g"]);
        status.count(true, 3);
        status.count(false, 1);
        canary.count(true, 2);
        metrics.hits.rule("default", false).count(true, 4);
        metrics.errors.count(ErrorKind::Unknown);
        let _open = metrics.connections.front("line").opened();
        assert_eq!(
            report(&mut reporter, &metrics),
            [
                "connections:1|g",
                "error.unknown:1|c",
                "hit.accepted.default:4|c",
                "hit.accepted.status:3|c",
                "hit.accepted:7|c",
                "hit.canary-accepted.default:2|c",
                "hit.canary-accepted:2|c",
                "hit.rejected.status:1|c",
                "hit.rejected:1|c",
            ]
        );
        status.count(true, 1);
        metrics.errors.count(ErrorKind::UnknownCommand);
        metrics.errors.count(ErrorKind::Unauthenticated);
        assert_eq!(
            report(&mut reporter, &metrics),
            [
                "connections:1|g",
                "error.unauthenticated:1|c",
                "error.unknown-command:1|c",
                "hit.accepted.status:1|c",
                "hit.accepted:1|c"
            ]
        );
        assert_eq!(report(&mut reporter, &metrics), ["connections:1|g"]);
    }

    #[test]
    fn each_bucket_has_one_line_for_all_of_its_hits() {
        let metrics = Metrics::new();
        let mut reporter = Reporter::new("");
        metrics.hits.duration.observe(12_000, 3);
        metrics.hits.duration.observe(20_000, 1);
        metrics.hits.duration.observe(1_500_000, 1);
        metrics.hits.duration.observe(2_000_000_000, 2);
        assert_eq!(
            report(&mut reporter, &metrics),
            ["connections:0|g", "hit:0.014|ms|@0.25", "hit:1.5|ms", "hit:2000|ms|@0.5"]
        );
        metrics.hits.duration.observe(12_000, 1);
        assert_eq!(report(&mut reporter, &metrics), ["connections:0|g", "hit:0.012|ms"]);
    }

    #[test]
    fn changes_of_ratelimits_statistics_have_their_names() {
        let (metrics, mut reporter) = (Metrics::new(), Reporter::new("p"));
        let tally = Tally { cost: 2, limit: 2, used: Some(3), near_limit_ratio: 0.5, is_shadow: false };
        let limit = metrics.ratelimit.configured("d.k_1.2.3.4");
        limit.count(tally);
        metrics.ratelimit.configured("d.unused");
        metrics.ratelimit.domain_not_found("x", 1);
        metrics.ratelimit.event(ServiceEvent::TotalRequests);
        metrics.ratelimit.response_time.observe(3_000_000, 1);
        assert_eq!(
            report(&mut reporter, &metrics),
            [
                "p.connections:0|g",
                "p.ratelimit.service.rate_limit.d.k_1_2_3_4.near_limit:1|c",
                "p.ratelimit.service.rate_limit.d.k_1_2_3_4.over_limit:1|c",
                "p.ratelimit.service.rate_limit.d.k_1_2_3_4.total_hits:2|c",
                "p.ratelimit.service.rate_limit.x.domain_not_found:1|c",
                "p.ratelimit_server.ShouldRateLimit.response_time:3|ms",
                "p.ratelimit_server.ShouldRateLimit.total_requests:1|c",
            ]
        );
        limit.count(Tally { used: None, ..tally });
        assert_eq!(
            report(&mut reporter, &metrics),
            ["p.connections:0|g", "p.ratelimit.service.rate_limit.d.k_1_2_3_4.total_hits:2|c"]
        );
    }

    #[test]
    fn datagrams_are_full_and_not_too_long() {
        let lines: Vec<String> = (0..100).map(|number| format!("{number:0>50}")).collect();
        let datagrams = datagrams(&lines);
        assert!(datagrams.iter().all(|datagram| datagram.len() <= MAX_DATAGRAM));
        assert_eq!(datagrams.len(), 100_usize.div_ceil((MAX_DATAGRAM + 1) / 51));
        assert_eq!(datagrams.join("\n"), lines.join("\n"));
        let lines = ["a".to_owned(), "b".repeat(2 * MAX_DATAGRAM), "c".to_owned()];
        assert_eq!(super::datagrams(&lines), lines, "a line that is too long gets its own");
    }

    #[test]
    fn peer_that_does_not_read_times_out() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut wire = Wire::connect("127.0.0.1", address.port(), true).await.unwrap();
            // More than the kernel buffers for a connection.
            wire.send(&["x".repeat(64 << 20)]).await.unwrap_err()
        });
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
