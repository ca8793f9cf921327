//! divvy-crowdsec, which is expected next to divvy: plain `cargo test` and `cargo build` make both; Debian's CrowdSec as a Local
//! API, without parsers and without the network; and a stand-in for it that answers badly.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::{fs, thread};

use crate::clients::tool;
use crate::support::{DIVVY, Killed, Log, Server, free_address, memory_of, program, scrape, until};

/// A running divvy-crowdsec, which serves bouncers on a free port.
pub struct Sidecar {
    process: Killed,
    /// The address for bouncers and for the metrics.
    pub address: SocketAddr,
    pub log: Log,
}

impl Sidecar {
    /// Starts it as a client of a server.
    pub fn start(server: &Server, args: &[&str]) -> Self {
        let mut command = program(Path::new(DIVVY).with_file_name("divvy-crowdsec").to_str().unwrap());
        Self::start_as(&mut command, &format!("http://{}", server.http), args)
    }

    fn start_as(command: &mut Command, divvy: &str, args: &[&str]) -> Self {
        let log = Log::of(command);
        command.args(["--divvy-url", divvy, "--listen", "127.0.0.1:0"]).args(args).stdout(Stdio::piped());
        let mut process = command.spawn().expect("divvy-crowdsec next to divvy: build it first");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("bouncers on ").and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("{line:?}, and in the log: {}", log.text()));
        Self { process: Killed(process), address, log }
    }

    /// Returns the number of decisions with this effect.
    pub fn count(&self, effect: &str) -> f64 {
        scrape(self.address).value("divvy_crowdsec_decisions_total", &[("effect", effect)])
    }

    /// Returns whether the last request failed.
    pub fn is_failing(&self) -> bool {
        scrape(self.address).value("divvy_crowdsec_failing", &[]) == 1.0
    }

    /// Returns the memory in use (bytes).
    pub fn resident(&self) -> u64 {
        memory_of(self.process.0.id(), "VmRSS")
    }

    /// Ends it as systemd does. Returns whether it ended well.
    pub fn terminate(&mut self) -> bool {
        let pid = self.process.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.process.0.wait().unwrap().success()
    }
}

/// A server that ends with the test process.
pub struct Fake {
    pub address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Fake {
    /// Answers the request of each connection with `answer`, which gets its first line.
    pub fn start(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let (count, answer) = (Arc::clone(&requests), Arc::new(answer));
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (count, answer) = (Arc::clone(&count), Arc::clone(&answer));
                thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                    let first = lines.next().unwrap_or_default();
                    lines.find(String::is_empty);
                    count.fetch_add(1, SeqCst);
                    // The client may leave at any time.
                    let _ = answer(&first, &mut stream);
                });
            }
        });
        Self { address, requests }
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Writes an answer with this body.
pub fn answer(stream: &mut TcpStream, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

/// Returns a decision to ban an address for an hour.
pub fn ban(address: &str) -> String {
    format!(
        r#"{{"duration":"1h","id":1,"origin":"CAPI","scenario":"ssh:bruteforce","scope":"Ip","type":"ban","value":"{address}"}}"#
    )
}

/// A CrowdSec server that ends when this is dropped.
pub struct Lapi {
    directory: tempfile::TempDir,
    process: Option<Killed>,
    address: std::net::SocketAddr,
}

impl Lapi {
    pub const KEY: &str = "key-of-divvy";

    pub fn start() -> Self {
        let address = free_address();
        let mut lapi = Self { directory: tempfile::tempdir().unwrap(), process: None, address };
        let directory = lapi.directory.path().to_str().unwrap().to_owned();
        fs::create_dir(lapi.directory.path().join("hub")).unwrap();
        let config = format!(
            "common: {{daemonize: false, log_media: stdout, log_level: info}}
config_paths: {{config_dir: {directory}, data_dir: {directory}, hub_dir: {directory}/hub, simulation_path: {directory}/simulation.yaml}}
db_config: {{log_level: info, type: sqlite, db_path: {directory}/crowdsec.db, use_wal: true}}
api:
  client: {{credentials_path: {directory}/credentials.yaml}}
  server: {{log_level: info, listen_uri: {address}, profiles_path: {directory}/profiles.yaml}}
prometheus: {{enabled: false}}
"
        );
        fs::write(lapi.path("config.yaml"), config).unwrap();
        fs::write(lapi.path("simulation.yaml"), "simulation: off\n").unwrap();
        let profile =
            "name: default\nfilters: [\"Alert.Remediation == true\"]\ndecisions: [{type: ban, duration: 4h}]\n";
        fs::write(lapi.path("profiles.yaml"), profile).unwrap();
        fs::write(lapi.path("key"), format!("{}\n", Self::KEY)).unwrap();
        lapi.cscli(&["machines", "add", "-a", "test", "--url", &format!("http://{address}")]);
        lapi.cscli(&["bouncers", "add", "divvy", "-k", Self::KEY, "-o", "raw"]);
        lapi.restart();
        lapi
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs CrowdSec's own tool.
    pub fn cscli(&self, words: &[&str]) {
        let mut command = tool("cscli");
        command.arg("-c").arg(self.path("config.yaml")).args(words);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn restart(&mut self) {
        self.stop();
        let mut command = tool("crowdsec");
        command.arg("-c").arg(self.path("config.yaml")).arg("-no-cs");
        self.process = Some(Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()));
        until(|| std::net::TcpStream::connect(self.address).is_ok());
    }

    pub fn stop(&mut self) {
        self.process = None;
    }
}
