//! The command line, as people and scripts use it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use crate::support::{COMPAT_RULES, Killed, RulesFile, SERVE, Server, divvy, done, refused, run, run_at, until};

#[test]
fn converting_there_and_back_keeps_the_rules() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, ini) = (path("rules.json"), path("rules.ini"));
    assert_eq!(run(&["convert", COMPAT_RULES, &json]).0, 0);
    assert_eq!(run(&["convert", &json, &ini]).0, 0);
    let summary = |file: &str| {
        let lines = done(&["check", file]);
        lines.lines().skip(1).filter_map(|line| Some(format!("{}\n", line.split_once(": ")?.1))).collect::<String>()
    };
    assert_eq!(summary(COMPAT_RULES).lines().count(), 5);
    assert_eq!(summary(&ini), summary(COMPAT_RULES));
    assert_eq!(summary(&ini), summary(&json));
    assert_eq!(run(&["convert", &json, &ini]).0, 1, "an existing file is not overwritten");
}

#[test]
fn inconvertible_parts_are_listed_and_set_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (yaml, other, ini) = (path("edge.yaml"), path("other.yml"), path("rules.ini"));
    let limit = "rate_limit: {unit: second, requests_per_unit: 1}";
    std::fs::write(
        &yaml,
        format!("domain: edge\ndescriptors:\n  - key: a\n    {limit}\n  - key: b\n    descriptors:\n      - key: b\n        {limit}\n"),
    )
    .unwrap();
    std::fs::write(&other, "domain: other\n").unwrap();

    let (code, out, err) = run(&["convert", "--strict", &yaml, &ini]);
    assert_eq!((code, out.as_str(), Path::new(&ini).exists()), (1, "", false), "{err}");
    let (code, _, err) = run(&["convert", &yaml, &other, &ini]);
    assert_eq!(code, 1);
    let listed = format!("not converted: {yaml}:7: [domain=edge b=*] the entry on line 5 has the key \"b\", too");
    assert!(err.starts_with(&listed) && err.lines().count() == 1, "{err}");
    assert!(run(&["check", &ini]).1.contains("[domain=edge a=*] allows 1 in 1 s, by a"));

    let (code, _, err) = run(&["convert", &path("none.yaml"), &path("new.ini")]);
    assert!(code == 1 && err.starts_with("error: ") && !Path::new(&path("new.ini")).exists(), "{err}");
    let (code, _, err) = run(&["check", &yaml]);
    assert!(code == 1 && err.contains("divvy convert"), "{err}");
}

#[test]
fn serve_announces_its_fronts_store_and_rules_and_stops_with_0() {
    let dir = tempfile::tempdir().unwrap();
    for signal in ["-TERM", "-INT"] {
        let server = Server::on_disk(COMPAT_RULES, dir.path(), "wal");
        assert_ne!((server.line.port(), server.resp.port()), (0, 0));
        let announced = server.announced.join("\n");
        assert!(announced.contains("store: rocksdb in ") && announced.contains("rules: 5 from "), "{announced}");
        if signal == "-INT" {
            server.signal(signal);
        }
        assert_eq!(server.terminate().code(), Some(0), "{signal}");
    }
}

#[test]
fn fronts_can_be_off_and_port_sets_the_line_protocols_port() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--resp-listen", "none"]);
    assert_eq!(server.resp.port(), 0);
    server.line().hit("a=b");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = divvy();
    command.args(["serve", COMPAT_RULES, "--store", "memory", "--resp-listen", "none", "--http-listen", "none"]);
    command.args(["--grpc-listen", "none"]).env("PORT", free.to_string()).stdout(Stdio::piped());
    let mut child = Killed(command.spawn().unwrap());
    let mut first = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, format!("line protocol on 127.0.0.1:{free}\n"));
}

fn refused_data_dir(path: &Path) -> String {
    refused(&[&SERVE[..], &[COMPAT_RULES, "--data-dir", path.to_str().unwrap()]].concat())
}

#[test]
fn damaged_database_is_rejected_and_left_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    Server::on_disk(COMPAT_RULES, dir.path(), "wal").terminate();
    let mut files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let manifest = files.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("MANIFEST")).unwrap();
    let mut bytes = std::fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(&manifest, &bytes).unwrap();
    let error = refused_data_dir(dir.path());
    assert!(error.contains("damaged") && error.contains("backup"), "{error}");
    assert_eq!(std::fs::read(&manifest).unwrap(), bytes);
}

/// Without a check, RocksDB silently drops the records after a damaged one, which are acknowledged hits.
#[test]
fn damaged_log_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on_disk(COMPAT_RULES, dir.path(), "wal");
    let mut client = server.line();
    for _ in 0..100 {
        client.hit("method=GET path=/status");
    }
    // The shutdown ends with an fsync. Missing records are then damage, not the tail that a power cut removes.
    server.terminate();
    let is_log = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let logs = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let log = logs.filter(is_log).max().unwrap();
    let intact = std::fs::read(&log).unwrap();
    let mut bytes = intact.clone();
    let third = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 3;
    bytes[third..third + 64].fill(0xa5);
    std::fs::write(&log, &bytes).unwrap();
    for _ in 0..2 {
        let error = refused_data_dir(dir.path());
        assert!(error.contains("damaged") && error.contains("backup"), "{error}");
    }
    std::fs::write(&log, &intact).unwrap();
    let again = Server::on_disk(COMPAT_RULES, dir.path(), "wal");
    assert_eq!(again.line().hit("method=GET path=/status").1, 899, "nothing was overwritten");
}

/// An edited number gives everyone a fresh quota unless the rule names its counter.
#[test]
fn check_against_other_rules_says_what_starts_afresh() {
    const OLD: &str = "
[plan=free user=*] creditLimit=1000 window=month actorField=user label=free
[plan=pro user=*] creditLimit=5000 window=month actorField=user counter=pro label=pro
[default] creditLimit=1 per=1m
";
    let [old, new, kept] = [OLD, &OLD.replace("=1000", "=1200"), &OLD.replace("=5000", "=6000")].map(RulesFile::ini);
    let server = Server::in_memory(old.path());
    let check = |new: &str, against: &str| {
        let (code, out, error) = run_at(&server, &["check", new, "--against", against]);
        (code, out + &error)
    };
    for against in [old.path(), "server"] {
        let (code, text) = check(new.path(), against);
        assert_eq!(code, 3, "{text}");
        for expected in [
            "2 unchanged, 1 changed, 0 added, 0 removed; counters of 1 rule abandoned",
            "; `counter = free` in the rule keeps what actors used",
        ] {
            assert!(text.contains(expected), "{against}: {expected} in {text}");
        }
        let (code, text) = check(kept.path(), against);
        assert!(code == 0 && text.contains("counters of 0 rules abandoned"), "{text}");
    }
    assert_eq!(check(new.path(), "missing.ini").0, 1);
}

#[test]
fn reload_that_abandons_counters_in_use_is_a_warning_with_their_number() {
    let rules =
        "[user=*]\ncreditLimit = 1000\nwindow = month\nactorField = user\nlabel = usage\n[default]\ncreditLimit = 0\n";
    let file = RulesFile::ini(rules);
    let (server, log) = Server::logged(&[file.path(), "--store", "memory"]);
    let mut client = server.line();
    for user in 0..7 {
        assert!(client.hit(&format!("user=u{user}")).0);
    }
    std::fs::write(file.path(), rules.replace("= 1000", "= 1200")).unwrap();
    log.await_line(&["WARN", "the usage under [user=*] is abandoned", "`counter = usage`", "counters=7"]);
    assert_eq!(client.hit("user=u1").1, 1199);
    // Without usage, and with a name, nothing is lost.
    std::fs::write(file.path(), rules.replace("label", "counter = usage\nlabel")).unwrap();
    log.await_count(2, "is abandoned");
    assert_eq!(client.hit("user=u1").1, 999);
    std::fs::write(file.path(), rules.replace("label", "counter = usage\nlabel").replace("= 1000", "= 1200")).unwrap();
    until(|| client.hit("user=u2").1 > 1_000);
    assert_eq!(client.hit("user=u1").1, 1198);
    assert_eq!(log.count("is abandoned"), 2);
}
