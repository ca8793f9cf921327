//! Shared by the tests: a running server, and minimal clients.

#[cfg(feature = "full")]
pub mod ads;
pub mod audit;
#[cfg(feature = "rocksdb")]
pub mod browser;
pub mod certificates;
pub mod gateway;
#[cfg(feature = "full")]
pub mod grpc;
pub mod http;
#[cfg(feature = "full")]
pub mod http2;
pub mod interruption;
pub mod log;
pub mod metrics;
pub mod programs;
pub mod redis;
pub mod replicated;
pub mod seed;
pub mod sentinel;
pub mod site;
pub mod slow_application;
pub mod stores;

pub use self::certificates::Certificates;
pub use self::gateway::{Gateway, application, free_address};
#[cfg(feature = "full")]
pub use self::grpc::Caller;
pub use self::http::{HttpClient, Response};
pub use self::log::Log;
pub use self::metrics::{number, scrape};
pub use self::programs::{
    Answering, Killed, disk_usage, divvy_with, done, done_at, memory_of, on_a_terminal, output, output_for, refused,
    restore, run, run_at,
};
pub use self::redis::{Proxy, RedisCluster, RedisServer, free_port, lasting_port, on_redis};
pub use self::seed::{seed, setting};
pub use self::site::{Place, Site};
pub use self::stores::{on_every_store, on_local_stores};

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub const COMPAT_RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compat/line-protocol.ini");

/// A timeout that is long enough for a busy machine, and short enough to end a hung test.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the program under test.
pub fn divvy() -> Command {
    program(DIVVY)
}

/// The program's path.
pub const DIVVY: &str = env!("CARGO_BIN_EXE_divvy");

/// First arguments of a server, which listens on free ports regardless of what else runs on this machine.
pub const SERVE: [&str; 5] = [
    "serve",
    "--listen=127.0.0.1:0",
    "--resp-listen=127.0.0.1:0",
    "--http-listen=127.0.0.1:0",
    "--grpc-listen=127.0.0.1:0",
];

/// Returns a command that runs the program under test, or is that program.
pub fn program(path: &str) -> Command {
    let mut command = Command::new(path);
    // Variables in the environment of the tests must not affect the program.
    for (name, _) in std::env::vars().filter(|(name, _)| is_setting(name)) {
        command.env_remove(name);
    }
    command.env("RUST_LOG", "warn");
    command
}

fn is_setting(variable: &str) -> bool {
    variable.starts_with("DIVVY_")
        || ["PORT", "HTTP_SERVICE_PORT", "PROMETHEUS_METRICS_PATH", "DEBUG"].contains(&variable)
        || ["REDIS_", "STATSD_"].iter().any(|prefix| variable.starts_with(prefix))
}

/// A `divvy serve` process. It is killed when this is dropped.
pub struct Server {
    child: Child,
    /// `None` if the test has taken it.
    stdout: Option<BufReader<std::process::ChildStdout>>,
    pub line: SocketAddr,
    pub resp: SocketAddr,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    /// Lines printed at the start, except for the addresses.
    pub announced: Vec<String>,
    /// The rules of [`Server::serving`].
    rules: Option<RulesFile>,
}

impl Server {
    /// Serves these rules, from memory unless the flags choose a store. A rule may be in one line: see [`expanded`].
    pub fn serving(rules: &str, flags: &[&str]) -> Self {
        let rules = RulesFile::ini(rules);
        let has_store = flags.iter().any(|flag| ["--store", "--data-dir", "--redis-url"].contains(flag));
        let store: &[&str] = if has_store { &[] } else { &["--store", "memory"] };
        let mut server = Self::start(&[&[rules.path()], store, flags].concat());
        server.rules = Some(rules);
        server
    }

    /// Serves the rules in this file from memory.
    pub fn in_memory(rules: &str) -> Self {
        Self::start(&[rules, "--store", "memory"])
    }

    pub fn start(args: &[&str]) -> Self {
        Self::start_as(&mut divvy(), args)
    }

    /// Starts a server with a log.
    pub fn logged(args: &[&str]) -> (Self, Log) {
        let mut command = divvy();
        let log = Log::of(&mut command);
        (Self::start_as(&mut command, args), log)
    }

    /// Starts a server with `command`, which may have its own environment and log.
    pub fn start_as(command: &mut Command, args: &[&str]) -> Self {
        Self::try_start_as(command, args).unwrap_or_else(|status| panic!("divvy serve ended at start: {status}"))
    }

    /// Starts a server as [`Server::start_as`] does, but returns the exit status if the server does not start.
    pub fn try_start_as(command: &mut Command, args: &[&str]) -> Result<Self, ExitStatus> {
        let mut child = spawn(command.stdout(Stdio::piped()), args);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut announced = Vec::new();
        let (mut line, mut resp, mut http, mut grpc) = (None, None, None, None);
        while !announced.last().is_some_and(|last: &String| last.starts_with("rules:")) {
            let mut text = String::new();
            if stdout.read_line(&mut text).unwrap() == 0 {
                return Err(child.wait().unwrap());
            }
            let text = text.trim_end();
            match text.split_once(" on ") {
                Some(("line protocol", address)) => line = address.parse().ok(),
                Some(("RESP", address)) => resp = address.parse().ok(),
                Some(("HTTP", address)) => http = address.parse().ok(),
                Some(("gRPC", address)) => grpc = address.parse().ok(),
                _ => announced.push(text.to_owned()),
            }
        }
        let nowhere: SocketAddr = ([127, 0, 0, 1], 0).into();
        let [line, resp, http, grpc] = [line, resp, http, grpc].map(|address| address.unwrap_or(nowhere));
        Ok(Self { child, stdout: Some(stdout), line, resp, http, grpc, announced, rules: None })
    }

    /// Starts a server with `command`, which logs to `log`. The log contains the listen addresses, so standard output
    /// stays as it was set.
    pub fn start_logged(command: &mut Command, log: &Log, args: &[&str]) -> Self {
        let mut child = spawn(command, args);
        until(|| log.count("serving") > 0 || child.try_wait().unwrap().is_some());
        let text = log.text();
        let serving = text.lines().find(|line| line.contains("serving"));
        let serving = serving.unwrap_or_else(|| panic!("divvy serve ended at start:\n{text}"));
        let [line, resp, http, grpc] = ["line", "resp", "http", "grpc"].map(|front| address_of(front, serving));
        let stdout = child.stdout.take().map(BufReader::new);
        Self { child, stdout, line, resp, http, grpc, announced: Vec::new(), rules: None }
    }

    pub fn line(&self) -> LineClient {
        LineClient::connect(self.line)
    }

    pub fn resp(&self) -> RespClient {
        RespClient::connect(self.resp)
    }

    pub fn http(&self) -> HttpClient {
        HttpClient::connect(self.http)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL, like a crash of the process.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Sends SIGTERM, and waits for the end.
    pub fn terminate(mut self) -> ExitStatus {
        self.signal("-TERM");
        let status = self.child.wait().unwrap();
        let mut rest = String::new();
        self.stdout.take().map(|mut stdout| stdout.read_to_string(&mut rest).unwrap());
        assert_eq!(rest, "", "nothing more is printed on standard output");
        status
    }

    /// Returns the peak resident memory in bytes.
    pub fn peak_resident(&self) -> u64 {
        memory_of(self.pid(), "VmHWM")
    }

    /// Returns the resident memory in bytes.
    pub fn resident(&self) -> u64 {
        memory_of(self.pid(), "VmRSS")
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &mut Command, args: &[&str]) -> Child {
    command.args(SERVE).args(args).spawn().expect("divvy serve starts")
}

/// Returns the address of `front` in the log line, which is text or JSON.
fn address_of(front: &str, serving: &str) -> SocketAddr {
    let keys = [format!(" {front}="), format!("\"{front}\":\"")];
    let answer = keys.iter().find_map(|key| Some(serving.split_once(key.as_str())?.1));
    let answer = answer.unwrap_or_else(|| panic!("no {front} in {serving}"));
    let end = answer.find([' ', '"']).unwrap_or(answer.len());
    answer[..end].parse().unwrap()
}

/// A client of the line protocol.
pub struct LineClient {
    stream: BufReader<TcpStream>,
}

impl LineClient {
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(connect(address))
    }

    pub fn over(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Returns the next line with its terminator; empty if the connection was closed.
    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line
    }

    /// Sends a HIT. Returns `(allowed, credit, reset)`, or `None` if the server is gone.
    pub fn try_hit(&mut self, pairs: &str) -> Option<(bool, u64, u64)> {
        self.stream.get_mut().write_all(format!("HIT {pairs}\n").as_bytes()).ok()?;
        self.try_read_verdict()
    }

    /// Returns the next verdict; `None` if the server is gone.
    pub fn try_read_verdict(&mut self) -> Option<(bool, u64, u64)> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        parse_verdict(&line)
    }

    /// Sends a line, and returns the next one; `None` if the server is gone.
    pub fn ask(&mut self, line: &str) -> Option<String> {
        self.stream.get_mut().write_all(line.as_bytes()).ok()?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).ok()?;
        answer.ends_with('\n').then_some(answer)
    }

    pub fn hit(&mut self, pairs: &str) -> (bool, u64, u64) {
        self.send(format!("HIT {pairs}\n").as_bytes());
        let line = self.read_line();
        parse_verdict(&line).unwrap_or_else(|| panic!("HIT {pairs}: {line:?}"))
    }

    pub fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }
}

/// Parses `OK true 57 60`; `None` for anything else, including an unfinished line.
pub fn parse_verdict(line: &str) -> Option<(bool, u64, u64)> {
    let mut words = line.strip_suffix('\n')?.strip_prefix("OK ")?.split(' ');
    let verdict = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some(verdict)
}

/// Returns the words of a reply that is a list, such as `[1 9 60]`.
pub fn words(reply: &str) -> Vec<&str> {
    reply.trim_matches(['[', ']']).split(' ').collect()
}

/// Waits until `condition` holds.
pub fn until(condition: impl FnMut() -> bool) {
    assert!(eventually(condition), "waited in vain");
}

/// Waits until `condition` holds. Returns false if that takes too long.
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() >= PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Sends a command over RESP on a new connection. Returns its reply.
pub fn resp(server: &Server, command: &str) -> String {
    server.resp().command(command)
}

pub fn connect(address: SocketAddr) -> TcpStream {
    try_connect(address).unwrap()
}

/// Connects; an error if there is no server.
pub fn try_connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A RESP client on raw sockets. Sends arrays of bulk strings, and returns whole replies as text.
pub struct RespClient {
    stream: BufReader<TcpStream>,
}

impl RespClient {
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(connect(address))
    }

    pub fn over(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Sends the commands at once, each in one line. Returns the replies.
    pub fn pipeline<T: AsRef<str>>(&mut self, commands: impl IntoIterator<Item = T>) -> Vec<String> {
        let commands: Vec<_> = commands.into_iter().collect();
        self.send(commands.iter().map(|command| format!("{}\r\n", command.as_ref())).collect::<String>().as_bytes());
        commands.iter().map(|_| self.read_reply()).collect()
    }

    /// Sends a hit over RESP. Returns `(allowed, credit, reset)`.
    pub fn hit(&mut self, pairs: &str) -> (bool, u64, u64) {
        let reply = self.command(&format!("DIVVY.HIT {pairs}"));
        let numbers: Vec<u64> = words(&reply).iter().map(|word| word.parse().expect(&reply)).collect();
        (numbers[0] == 1, numbers[1], numbers[2])
    }

    /// Returns the credits left for an operation.
    pub fn left(&mut self, pairs: &str) -> u64 {
        let reply = self.command(&format!("DIVVY.PEEK {pairs}"));
        words(&reply)[1].parse().expect(&reply)
    }

    /// Returns the balance for an operation, which is negative if more than the limit was used.
    pub fn balance(&mut self, pairs: &str) -> i64 {
        let reply = self.command(&format!("DIVVY.CHARGE {pairs} COST 0"));
        words(&reply)[0].parse().expect(&reply)
    }

    /// Makes a reservation, which must be allowed. Returns the credits left, and its id.
    pub fn reserve(&mut self, pairs_and_options: &str) -> (u64, String) {
        let reply = self.command(&format!("DIVVY.RESERVE {pairs_and_options}"));
        let ["1", left, _, id] = words(&reply)[..] else { panic!("{pairs_and_options}: {reply}") };
        (left.parse().unwrap(), id.to_owned())
    }

    /// Sends a command with its words separated by spaces. Returns its reply as redis-cli would show it on one line.
    pub fn command(&mut self, words: &str) -> String {
        self.command_of(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    pub fn command_of(&mut self, words: &[&[u8]]) -> String {
        self.send(&encode(words));
        self.read_reply()
    }

    /// Sends bytes; `None` if the server is gone.
    pub fn try_send(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.get_mut().write_all(bytes).ok()
    }

    /// Returns the next reply: integers and strings unchanged, arrays in brackets, errors with their dash; empty if the
    /// connection was closed.
    pub fn read_reply(&mut self) -> String {
        self.try_read_reply().unwrap_or_default()
    }

    /// Returns the next reply as [`RespClient::read_reply`] does, or `None` if the server is gone before its end.
    pub fn try_read_reply(&mut self) -> Option<String> {
        let mut header = String::new();
        self.stream.read_line(&mut header).ok()?;
        let header = header.strip_suffix("\r\n")?;
        let (kind, rest) = header.split_at(1);
        match kind {
            ":" | "+" => Some(rest.to_owned()),
            "-" => Some(header.to_owned()),
            "_" => Some("nil".to_owned()),
            "$" if rest == "-1" => Some("nil".to_owned()),
            "$" => {
                let mut content = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut content).ok()?;
                content.truncate(content.len() - 2);
                Some(String::from_utf8_lossy(&content).into_owned())
            }
            "*" | "~" | "%" => {
                let count = rest.parse::<usize>().unwrap() * if kind == "%" { 2 } else { 1 };
                let items: Option<Vec<_>> = (0..count).map(|_| self.try_read_reply()).collect();
                Some(format!("[{}]", items?.join(" ")))
            }
            _ => panic!("not a reply: {header:?}"),
        }
    }
}

/// Encodes a request as an array of bulk strings.
pub fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Returns rules as INI, with a line for each setting of a rule in one line, such as `[user=*] creditLimit=5 per=1m`.
pub fn expanded(rules: &str) -> String {
    let expand = |line: &str| match line.split_once("] ") {
        Some((header, settings)) if header.starts_with('[') && !settings.starts_with([';', '#']) => {
            let settings = settings.split(' ').map(|setting| setting.replacen('=', " = ", 1) + "\n");
            format!("{header}]\n{}", settings.collect::<String>())
        }
        _ => format!("{line}\n"),
    };
    rules.lines().map(expand).collect()
}

/// A rules file in a directory that exists as long as this.
pub struct RulesFile {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl RulesFile {
    pub fn new(name: &str, content: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        Self { _dir: dir, path }
    }

    /// Writes rules as INI. A rule may be in one line: see [`expanded`].
    pub fn ini(content: &str) -> Self {
        Self::new("rules.ini", &expanded(content))
    }

    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}
