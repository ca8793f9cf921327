//! Directories with the files of servers, and a server whose files change.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{COMPAT_RULES, Log, Server, divvy, expanded};

/// Flags of a server whose data and backups are in its [`Place`].
const ON_DISK: [&str; 4] = ["--data-dir", "DIR/data", "--backup-dir", "DIR/backups"];

/// A directory with the files of servers, which use it one after the other.
pub struct Place(tempfile::TempDir);

impl Place {
    /// Creates a directory with these rules in `rules.ini`. A rule may be in one line: see [`expanded`].
    pub fn new(rules: &str) -> Self {
        Self::within(tempfile::tempdir().unwrap(), rules)
    }

    /// Creates `rules.ini` in this directory.
    pub fn within(directory: tempfile::TempDir, rules: &str) -> Self {
        let place = Self(directory);
        place.write("rules.ini", rules);
        place
    }

    /// Creates a directory with `rules.ini` and these files.
    pub fn with(rules: &str, files: &[(&str, &str)]) -> Self {
        let place = Self::new(rules);
        files.iter().for_each(|(name, text)| place.write(name, text));
        place
    }

    /// Creates a directory with [`COMPAT_RULES`].
    pub fn compat() -> Self {
        Self::new(&fs::read_to_string(COMPAT_RULES).unwrap())
    }

    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file. Rules in `*.ini` may be in one line.
    pub fn write(&self, name: &str, text: &str) {
        let text = if name.ends_with(".ini") { &expanded(text) } else { text };
        fs::write(self.path(name), text).unwrap();
    }

    /// Starts a server of `rules.ini`. In its flags, `DIR` stands for this directory.
    pub fn serve(&self, flags: &[&str]) -> Server {
        self.serve_as(&mut divvy(), flags)
    }

    pub fn serve_as(&self, command: &mut Command, flags: &[&str]) -> Server {
        Server::start_as(command, &self.args(flags).iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn args(&self, flags: &[&str]) -> Vec<String> {
        let flags = flags.iter().map(|flag| flag.replace("DIR", self.0.path().to_str().unwrap()));
        std::iter::once(self.path("rules.ini")).chain(flags).collect()
    }

    /// Returns the arguments of a server that [`Place::on_disk`] starts.
    pub fn disk_args(&self, flags: &[&str]) -> Vec<String> {
        self.args(&[&ON_DISK, flags].concat())
    }

    /// Starts a server that counts in the directory `data`, and writes backups to `backups`.
    pub fn on_disk(&self, flags: &[&str]) -> Server {
        self.on_disk_as(&mut divvy(), flags)
    }

    pub fn on_disk_as(&self, command: &mut Command, flags: &[&str]) -> Server {
        self.serve_as(command, &[&ON_DISK, flags].concat())
    }

    /// Starts a server as [`Place::on_disk`] does, with a log.
    pub fn logged_on_disk(&self, flags: &[&str]) -> (Server, Log) {
        let mut command = divvy();
        let log = Log::of(&mut command);
        (self.on_disk_as(&mut command, flags), log)
    }

    /// Replaces the data with the data of a backup.
    pub fn restore(&self, backup: &str) {
        let _ = fs::remove_dir_all(self.path("data"));
        super::restore(Path::new(&self.path("backups")).join(backup), self.path("data"));
    }
}

/// A server with a log. It loads its files again on SIGHUP only.
pub struct Site {
    pub place: Place,
    pub log: Log,
    pub server: Server,
}

impl Site {
    /// Serves these rules from the store in the flags.
    pub fn serving(rules: &str, flags: &[&str]) -> Self {
        Self::start(Place::new(rules), flags)
    }

    pub fn start(place: Place, flags: &[&str]) -> Self {
        Self::start_as(&mut divvy(), place, flags)
    }

    pub fn start_as(command: &mut Command, place: Place, flags: &[&str]) -> Self {
        let log = Log::of(command);
        let server = place.serve_as(command, &[&["--reload-interval", "0"], flags].concat());
        Self { place, log, server }
    }

    pub fn path(&self, name: &str) -> String {
        self.place.path(name)
    }

    /// Replaces the rules, and waits until they are in force.
    pub fn reload(&self, rules: &str) {
        self.replace("rules.ini", rules, "the new rules are in force");
    }

    /// Replaces a file, and waits until this outcome has been logged once more.
    pub fn replace(&self, name: &str, text: &str, outcome: &str) {
        let count = self.log.count(outcome);
        self.place.write(name, text);
        self.server.signal("-HUP");
        self.log.await_count(count + 1, outcome);
    }
}
