//! The client libraries in `clients`. Their own tests run on real servers, too.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::clients::{PYTHON, installed, run};
use crate::support::{RedisServer, Server, on_redis};

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/python");

const RULES: &str = "
[api=window key=*] creditLimit=5000 resetSeconds=3600 actorField=key label=window
[api=bucket key=*] creditLimit=5000 resetSeconds=3600 actorField=key label=bucket algorithm=token-bucket
[api=sliding key=*] creditLimit=5000 resetSeconds=3600 actorField=key label=sliding algorithm=sliding-window
[default] creditLimit=0
";

fn python() -> Command {
    Command::new(installed(Path::new(PYTHON).join(".venv/bin/python")))
}

/// Builds the package in this directory, which must give no warning. Returns the wheel.
fn wheel(directory: &TempDir) -> PathBuf {
    let mut command = python();
    command.args(["-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation", "-w"]);
    command.arg(directory.path()).arg(PACKAGE);
    let output = command.output().unwrap();
    let report = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(output.status.success() && !report.to_lowercase().contains("warn"), "{report}");
    let files = directory.path().read_dir().unwrap().map(|file| file.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "whl")).unwrap()
}

/// Runs the tests of the built package that are in these files. A warning is an error.
fn run_python_tests(server: &Server, files: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut command = python();
    command.args(["-B", "-W", "error", "-m", "unittest", "discover", "--pattern", files, "--start-directory"]);
    command.arg(Path::new(PACKAGE).join("tests"));
    command.env("PYTHONPATH", wheel(&directory)).env("DIVVY_URL", format!("http://{}", server.http));
    run(command);
}

#[test]
fn python_package_passes_its_tests() {
    run_python_tests(&Server::serving(RULES, &[]), "test_*.py");
}

#[test]
fn python_package_works_with_counters_in_redis() {
    let redis = RedisServer::start();
    run_python_tests(&Server::serving(RULES, &on_redis(&redis.url())), "test_server.py");
}
