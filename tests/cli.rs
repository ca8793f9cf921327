//! The command line, as people and scripts use it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use crate::support::{COMPAT_RULES, Killed, Place, RulesFile, Server, divvy_with, done, refused, run, run_at, until};

#[test]
fn converting_there_and_back_keeps_the_rules() {
    let dir = tempfile::tempdir().unwrap();
    let [json, ini] = ["rules.json", "rules.ini"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    done(&format!("convert {COMPAT_RULES} {json}"));
    done(&format!("convert {json} {ini}"));
    let summary = |file: &str| {
        let lines = done(&format!("check {file}"));
        lines.lines().skip(1).filter_map(|line| Some(format!("{}\n", line.split_once(": ")?.1))).collect::<String>()
    };
    assert_eq!(summary(COMPAT_RULES).lines().count(), 5);
    assert_eq!([summary(&ini), summary(&json)], [summary(COMPAT_RULES), summary(COMPAT_RULES)]);
    assert_eq!(run(&format!("convert {json} {ini}")).0, 1, "an existing file is not overwritten");
}

#[test]
fn inconvertible_parts_are_listed_and_set_the_exit_code() {
    let limit = "rate_limit: {unit: second, requests_per_unit: 1}";
    let edge = format!(
        "domain: edge\ndescriptors:\n  - key: a\n    {limit}\n  - key: b\n    descriptors:\n      - key: b\n        {limit}\n"
    );
    let place = Place::with("", &[("edge.yaml", &edge), ("other.yml", "domain: other\n")]);
    let [yaml, other, ini, none, new] =
        ["edge.yaml", "other.yml", "made.ini", "none.yaml", "new.ini"].map(|name| place.path(name));
    let (code, out, error) = run(&format!("convert --strict {yaml} {ini}"));
    assert_eq!((code, out.as_str(), Path::new(&ini).exists()), (1, "", false), "{error}");
    let error = refused(&format!("convert {yaml} {other} {ini}"));
    let listed = format!("not converted: {yaml}:7: [domain=edge b=*] the entry on line 5 has the key \"b\", too");
    assert!(error.starts_with(&listed) && error.lines().count() == 1, "{error}");
    assert!(
        done(&format!("check {ini}"))
            .contains("[domain=edge a=*] allows 1 a second by the clock, UTC, by a, counting denied hits")
    );
    let error = refused(&format!("convert {none} {new}"));
    assert!(error.starts_with("error: ") && !Path::new(&new).exists(), "{error}");
    let checked = done(&format!("check {yaml}"));
    assert!(checked.contains("edge.yaml:7: [domain=edge b=* b=*] allows 1 a second"), "{checked}");
}

#[test]
fn serve_announces_its_fronts_store_and_rules_and_stops_with_0() {
    let place = Place::compat();
    for signal in ["-TERM", "-INT"] {
        let server = place.on_disk(&[]);
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
    let flags = "--store memory --resp-listen none --http-listen none --grpc-listen none";
    let mut command = divvy_with(&format!("serve {COMPAT_RULES} {flags}"));
    let mut child = Killed(command.env("PORT", free.to_string()).stdout(Stdio::piped()).spawn().unwrap());
    let mut first = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, format!("line protocol on 127.0.0.1:{free}\n"));
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
        let (code, out, error) = run_at(&server, &format!("check {new} --against {against}"));
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
