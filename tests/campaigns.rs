//! The Makefile's long campaigns name tests by a part of their path. A renamed test must not leave a campaign empty.

use std::fs;
use std::process::Command;

#[test]
fn every_campaign_names_a_test() {
    let makefile = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Makefile")).unwrap();
    let campaigns = makefile.lines().filter(|line| line.starts_with('\t') && line.contains("$(CAMPAIGN)"));
    let filters: Vec<_> = campaigns.filter_map(|line| line.split_whitespace().last()).collect();
    assert!(filters.len() >= 10, "{filters:?}");
    for filter in filters {
        let listed = Command::new(std::env::current_exe().unwrap()).args(["--list", filter]).output().unwrap();
        let tests = String::from_utf8_lossy(&listed.stdout).lines().filter(|line| line.ends_with(": test")).count();
        assert!(tests > 0, "no test is called {filter}");
    }
}
