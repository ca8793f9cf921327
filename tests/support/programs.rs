//! Programs that tests start: divvy's own commands, and others, which end with the test.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{DIVVY, Server, divvy, program};

/// Runs a command. Returns its exit code, standard output and standard error.
pub fn output(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs a command as [`output`] does, with this text on its standard input.
pub fn output_for(command: &mut Command, input: &str) -> (i32, String, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), input).unwrap();
    output(command.stdin(std::fs::File::open(file.path()).unwrap()))
}

/// Returns `divvy` with the words of this line, which may be quoted as in a shell.
pub fn divvy_with(line: &str) -> Command {
    let mut command = divvy();
    command.args(shlex::split(line).unwrap());
    command
}

/// Runs `divvy` with the words of this line.
pub fn run(line: &str) -> (i32, String, String) {
    output(&mut divvy_with(line))
}

/// Runs `divvy`, which must succeed. Returns its standard output.
pub fn done(line: &str) -> String {
    let (code, out, error) = run(line);
    assert_eq!(code, 0, "{line}: {out}{error}");
    out
}

/// Runs `divvy`, which must fail. Returns its standard error.
pub fn refused(line: &str) -> String {
    let (code, out, error) = run(line);
    assert_ne!(code, 0, "{line}: {out}");
    error
}

/// Runs `divvy` as a client of this server.
pub fn run_at(server: &Server, line: &str) -> (i32, String, String) {
    output(divvy_with(line).env("DIVVY_SERVER", server.http.to_string()))
}

/// Runs `divvy` as a client of this server. It must succeed. Returns its standard output.
pub fn done_at(server: &Server, line: &str) -> String {
    let (code, out, error) = run_at(server, line);
    assert_eq!((code, error.as_str()), (0, ""), "{line}: {out}");
    out
}

/// Restores a backup into a new data directory.
pub fn restore(backup: impl AsRef<Path>, data: impl AsRef<Path>) {
    done(&format!("restore {} --data-dir {}", backup.as_ref().display(), data.as_ref().display()));
}

/// Returns `divvy` with the words of this line on a terminal of its own.
pub fn on_a_terminal(line: &str) -> Command {
    let mut command = program("script");
    command.args(["--quiet", "--return", "--flush", "--command", &format!("{DIVVY} {line}"), "/dev/null"]);
    command
}

/// Returns a number of bytes in the status of a process in /proc, such as `VmRSS`.
pub fn memory_of(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let number = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    number.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Returns the size of all files in a directory.
pub fn disk_usage(dir: impl AsRef<Path>) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().map_or(0, |metadata| metadata.len())).sum()
}

/// A process that is killed when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that answers each line on its standard input with a line.
pub struct Answering {
    _child: Killed,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Answering {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { _child: Killed(child), input, output }
    }

    pub fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "the program ended at {line}");
        answer.trim_end().to_owned()
    }
}
