//! Programs that tests start: divvy's own commands, and others, which end with the test.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{Server, divvy};

/// Runs a command. Returns its exit code, standard output and standard error.
pub fn output(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs `divvy` with these arguments.
pub fn run(args: &[&str]) -> (i32, String, String) {
    output(divvy().args(args))
}

/// Runs `divvy`, which must succeed. Returns its standard output.
pub fn done(args: &[&str]) -> String {
    let (code, out, error) = run(args);
    assert_eq!(code, 0, "{args:?}: {out}{error}");
    out
}

/// Runs `divvy`, which must fail. Returns its standard error.
pub fn refused(args: &[&str]) -> String {
    let (code, out, error) = run(args);
    assert_ne!(code, 0, "{args:?}: {out}");
    error
}

/// Runs `divvy` with these arguments as a client of this server.
pub fn run_at(server: &Server, args: &[&str]) -> (i32, String, String) {
    output(divvy().args(args).env("DIVVY_SERVER", server.http.to_string()))
}

/// Restores a backup into a new data directory.
pub fn restore(backup: impl AsRef<Path>, data: impl AsRef<Path>) {
    let (code, out, error) = output(divvy().arg("restore").arg(backup.as_ref()).arg("--data-dir").arg(data.as_ref()));
    assert_eq!(code, 0, "{out}{error}");
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
