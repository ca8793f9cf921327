//! `divvy serve` with its own rules and data directory, or with a Redis.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rocksdb::{Cache, DB, Env, Options, properties};
use tempfile::TempDir;

use crate::disk::bytes_below;
use crate::process::{Process, ask};
use crate::sample::{Protocol, Target};

/// Longer than any run, so that no counter expires during a measurement.
pub const RESET_SECONDS: u64 = 86_400;

/// Enough credit that no hit is denied.
pub const PLENTY: u64 = 1_000_000_000;

/// The configuration of a server, which is kept for restarts.
#[derive(Debug)]
pub struct Home {
    program: PathBuf,
    directory: TempDir,
    /// Flags that select and configure the store.
    flags: Vec<String>,
}

#[derive(Debug)]
pub struct Divvy {
    process: Process,
    line: String,
    resp: String,
    http: String,
    grpc: String,
    /// Kept open, because the server may continue to write to it.
    _stdout: BufReader<ChildStdout>,
}

/// Look-ups of counters in the in-memory table.
#[derive(Debug, Clone, Copy)]
pub struct Lookups {
    hits: f64,
    misses: f64,
}

impl Lookups {
    /// Returns the share of misses since `earlier`.
    pub fn missed_since(self, earlier: Self) -> f64 {
        let (hits, misses) = (self.hits - earlier.hits, self.misses - earlier.misses);
        misses / (hits + misses)
    }
}

impl Home {
    pub fn new(directory: &Path, durability: &'static str, rules: &str) -> anyhow::Result<Self> {
        let mut home = Self::with_flags(directory, &["--store", "rocksdb", "--durability", durability], rules)?;
        home.flags.extend(["--data-dir".to_owned(), home.data().to_string_lossy().into_owned()]);
        Ok(home)
    }

    /// Configures a server that keeps its counters in the Redis at `addr`.
    pub fn on_redis(directory: &Path, addr: &str, flags: &[&str], rules: &str) -> anyhow::Result<Self> {
        let url = format!("redis://{addr}");
        Self::with_flags(directory, &[&["--store", "redis", "--redis-url", &url], flags].concat(), rules)
    }

    fn with_flags(directory: &Path, flags: &[&str], rules: &str) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix_in("divvy-compare-", directory)?;
        std::fs::write(directory.path().join("rules.ini"), rules)?;
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Ok(Self { program: env!("CARGO_BIN_EXE_divvy").into(), directory, flags })
    }

    /// Returns this configuration for another build of divvy.
    pub fn with_program(self, program: &Path) -> Self {
        Self { program: program.into(), ..self }
    }

    /// Makes room for this many counters.
    pub fn with_max_counters(mut self, counters: u64) -> Self {
        self.flags.extend(["--max-counters".to_owned(), counters.to_string()]);
        self
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn start(&self) -> anyhow::Result<Divvy> {
        let mut process = Process::start(
            Command::new(&self.program)
                .arg("serve")
                .arg(self.directory.path().join("rules.ini"))
                .args(["--listen", "127.0.0.1:0", "--resp-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
                .args(["--grpc-listen", "127.0.0.1:0"])
                .args(&self.flags)
                .env("RUST_LOG", "warn")
                .stdout(Stdio::piped()),
        )?;
        let mut stdout = BufReader::new(process.child().stdout.take().context("standard output is a pipe")?);
        let line = address(&mut stdout, "line protocol on ")?;
        let resp = address(&mut stdout, "RESP on ")?;
        let http = address(&mut stdout, "HTTP on ")?;
        let grpc = address(&mut stdout, "gRPC on ")?;
        Ok(Divvy { process, line, resp, http, grpc, _stdout: stdout })
    }

    /// Starts the server again. Returns the time until it answered `hit`, a line of its protocol.
    pub fn time_to_serve(&self, hit: &str) -> anyhow::Result<(Divvy, Duration)> {
        let started = Instant::now();
        let divvy = self.start()?;
        let reply = ask(&divvy.line, hit, 1)?;
        let elapsed = started.elapsed();
        ensure!(reply.starts_with("OK true"), "after a restart, the answer to {hit:?} was {reply:?}");
        Ok((divvy, elapsed))
    }

    /// Returns the bytes on disk per counter, after compacting the stopped server's database with its own options. Call
    /// [`Divvy::write_back`] before stopping it.
    ///
    /// # Errors
    /// The database contains fewer than `counters` records, so the figure would be meaningless.
    pub fn compacted_bytes_per_counter(&self, counters: u64) -> anyhow::Result<f64> {
        let data = self.data();
        let (options, families) = Options::load_latest(&data, Env::new()?, true, Cache::new_lru_cache(64 << 20))?;
        let names: Vec<String> = families.iter().map(|family| family.name().to_owned()).collect();
        let db = DB::open_cf_descriptors(&options, &data, families)?;
        let mut records = 0;
        for name in &names {
            let family = db.cf_handle(name).with_context(|| format!("no column family {name}"))?;
            db.flush_cf(family)?;
            db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
            // The estimate is exact once there are no overwritten or deleted records.
            records += db.property_int_value_cf(family, properties::ESTIMATE_NUM_KEYS)?.unwrap_or(0);
        }
        ensure!(records >= counters, "the database holds {records} records, not {counters} counters");
        drop(db);
        Ok(self.disk_bytes()? as f64 / counters as f64)
    }

    pub fn disk_bytes(&self) -> anyhow::Result<u64> {
        bytes_below(&self.data()).context("sizes of the data directory's files")
    }

    /// Returns the names of the tables on disk: flushes and compactions make new ones, compactions delete old ones.
    pub fn tables(&self) -> anyhow::Result<BTreeSet<String>> {
        let names = std::fs::read_dir(self.data())?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| name.ends_with(".sst")).collect())
    }
}

impl Divvy {
    pub fn resp(&self) -> Target {
        Target { addr: self.resp.clone(), pid: self.process.id(), protocol: Protocol::Resp }
    }

    pub fn line(&self) -> Target {
        Target { addr: self.line.clone(), pid: self.process.id(), protocol: Protocol::Line }
    }

    pub fn http(&self) -> Target {
        Target { addr: self.http.clone(), pid: self.process.id(), protocol: Protocol::Http }
    }

    pub fn grpc(&self) -> Target {
        Target { addr: self.grpc.clone(), pid: self.process.id(), protocol: Protocol::Grpc }
    }

    /// Returns the number of hits since the start whose counter was in memory, and of those whose counter was not.
    pub fn lookups(&self) -> anyhow::Result<Lookups> {
        const REQUEST: &str = "GET /metrics HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\n\r\n";
        let metrics = ask(&self.http, REQUEST, usize::MAX)?;
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse().ok()).with_context(|| format!("no {name} in the metrics"))
        };
        Ok(Lookups { hits: value("divvy_hot_table_hits_total")?, misses: value("divvy_hot_table_misses_total")? })
    }

    /// Makes the server write every counter to its own record, as it does before a listing.
    pub fn write_back(&self) -> anyhow::Result<()> {
        const REQUEST: &str =
            "GET /v1/counters?rule=default&count=1 HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\n\r\n";
        let listed = ask(&self.http, REQUEST, usize::MAX)?;
        ensure!(listed.starts_with("HTTP/1.1 200"), "a listing was answered with {listed:?}");
        Ok(())
    }

    /// Stops the server in good order. Dropping it would kill it.
    pub fn stop(self) -> anyhow::Result<()> {
        self.process.terminate()
    }
}

/// Reads up to the line that announces an address.
fn address(stdout: &mut impl BufRead, announcement: &str) -> anyhow::Result<String> {
    for line in stdout.lines() {
        if let Some(address) = line?.strip_prefix(announcement) {
            return Ok(address.to_owned());
        }
    }
    anyhow::bail!("divvy serve ended before it printed {announcement:?}")
}

/// Returns `count` rules (at least 4): one each for hits with five, three and one fields, one per service (every other
/// one with a pattern), and the default.
pub fn rules(count: usize, credit_limit: u64) -> String {
    let mut rules = String::new();
    let mut add = |header: &str, actor: &str| {
        let _ = writeln!(rules, "[{header}]\ncreditLimit = {credit_limit}\nresetSeconds = {RESET_SECONDS}\n{actor}");
    };
    add("method=POST path=/v1/orders* tenant=* plan=free ip=*", "actorField = ip\n");
    add("method=POST path=/v1/search* ip=*", "actorField = ip\n");
    for number in 0..count.saturating_sub(4) {
        let path = if number % 2 == 0 { "/*" } else { "" };
        add(&format!("method=POST path=/service/{number}{path} ip=*"), "actorField = ip\n");
    }
    add("ip=*", "actorField = ip\n");
    add("default", "");
    rules
}
