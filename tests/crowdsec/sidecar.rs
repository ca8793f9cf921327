//! divvy-crowdsec, which is expected next to divvy: plain `cargo test` and `cargo build` make both.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{DIVVY, Killed, Log, Server, program, scrape};

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
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap();
        let number = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        number.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Ends it as systemd does. Returns whether it ended well.
    pub fn terminate(&mut self) -> bool {
        let pid = self.process.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.process.0.wait().unwrap().success()
    }
}
