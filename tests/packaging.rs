//! The Kubernetes manifests and the container image, to the extent that one machine can test them.

use std::path::Path;
use std::process::Command;

use crate::clients::{PYTHON, installed, run};
use crate::support::DIVVY;

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

fn check(script: &str) -> String {
    let mut command = Command::new(installed(Path::new(PYTHON).join(".venv/bin/python")));
    command.arg(Path::new(PACKAGING).join(script)).arg(DIVVY);
    run(command)
}

#[test]
fn manifests_match_kubernetes_schemas_and_divvy() {
    let checked = check("kubernetes/check.py");
    assert!(checked.contains("StatefulSet") && checked.contains("Deployment"), "{checked}");
}

#[test]
fn container_command_serves_and_is_healthy() {
    let checked = check("container_check.py");
    assert!(checked.contains("its health check passes"), "{checked}");
}
