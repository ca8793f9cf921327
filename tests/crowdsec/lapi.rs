//! Debian's CrowdSec as a Local API, without parsers and without the network.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use crate::clients::tool;
use crate::support::{Killed, free_address, until};

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
