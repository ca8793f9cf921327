//! The bytes on the wire. tests/wire/ has a conversation with each front, with every operation: requests begin with `> `, and
//! the reply follows.
//!
//! `make docs` (or `DIVVY_TEST_WRITE_DOCS=1`) writes the replies anew, so that a change of them is read line by line.
//! `HOUR` and `TTL` stand for seconds that differ from run to run, because reservations may last somewhat longer than requested.
//! `ID` stands for the latest reservation, `SEQUENCE` for a position among the changes of blocks, `DIR` for the directory, and
//! `ADDRESS` for the server's address.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::{env, fs};

use divvy_api::ENDPOINTS;

use crate::support::http::{HttpClient, encode};
use crate::support::{Caller, Server, connect, run};

const PASSWORD: &str = "horse";

/// Compares a front's replies with those in the file, or writes them. `ask` answers one request.
fn compare(front: &str, flags: &[&str], ask: impl FnOnce(&Server) -> Box<dyn FnMut(&str) -> String>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire");
    let rules = place.join("rules.ini");
    let (data, backups) = (format!("{dir}/data"), format!("{dir}/backups"));
    let stored = [rules.to_str().unwrap(), "--data-dir", &data, "--backup-dir", &backups];
    let server = Server::start(&[&stored, flags].concat());
    let mut ask = ask(&server);

    let path = place.join(front).with_extension("txt");
    let recorded = fs::read_to_string(&path).unwrap();
    let mut id = String::new();
    let mut replayed = String::new();
    for request in recorded.lines().filter(|line| line.starts_with("> ")) {
        let reply = ask(&request.trim_start_matches("> ").replace("$ID", &id)).replace(dir, "DIR");
        replayed.push_str(&format!("{request}\n{}\n", comparable(&reply, &mut id).trim_end()));
    }
    if env::var_os("DIVVY_TEST_WRITE_DOCS").is_some() {
        fs::write(&path, replayed).unwrap();
    } else {
        assert!(
            recorded == replayed,
            "{front}, if this is right, run `make docs`:\n{}",
            first_difference(&recorded, &replayed)
        );
    }
    recorded
}

/// Replaces what differs from run to run. Sets `id` to the last reservation.
fn comparable(reply: &str, id: &mut String) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut text = String::new();
    for piece in reply.split_inclusive(|c| !is_word(c)) {
        let word = piece.trim_end_matches(|c| !is_word(c));
        let replaced = match word.parse::<u64>() {
            Ok(3_500..=3_800) => "HOUR",
            Ok(590..=640) => "TTL",
            Err(_) if word.len() > 16 && word[..16].bytes().all(|byte| byte.is_ascii_hexdigit()) => "SEQUENCE",
            Err(_) if word.len() > 60 => {
                word.clone_into(id);
                "ID"
            }
            _ => word,
        };
        text.push_str(replaced);
        text.push_str(&piece[word.len()..]);
    }
    text
}

fn first_difference(recorded: &str, replayed: &str) -> String {
    let mut request = "";
    for (expected, found) in recorded.lines().zip(replayed.lines()) {
        if expected.starts_with("> ") {
            request = expected;
        }
        if expected != found {
            return format!("{request}\nrecorded: {expected}\nnow:      {found}");
        }
    }
    "one of them is longer".to_owned()
}

/// Fails if a request of the conversation is missing.
fn assert_complete(conversation: &str, requests: impl Iterator<Item = String>) {
    let is_there = |request: &String| {
        let mut said = conversation.lines().filter_map(|line| line.strip_prefix("> "));
        said.any(|line| {
            line.strip_prefix(request.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '?']))
        })
    };
    let missing: Vec<_> = requests.filter(|request| !is_there(request)).collect();
    assert!(missing.is_empty(), "no request for {missing:?}");
}

#[test]
fn resp_replies_are_as_recorded() {
    let conversation = compare("resp", &["--requirepass", PASSWORD, "--open", "none"], |server| {
        let mut stream = BufReader::new(connect(server.resp));
        Box::new(move |request| {
            stream.get_mut().write_all(format!("{request}\r\n").as_bytes()).unwrap();
            let mut reply = String::new();
            read_resp(&mut stream, &mut reply);
            reply.replace("\r\n", "\n")
        })
    });
    let words = |(command, subcommand): (&str, &str)| format!("{command} {subcommand}").trim().to_uppercase();
    assert_complete(
        &conversation,
        ENDPOINTS.iter().filter(|row| !row.command.0.is_empty()).map(|row| words(row.command)),
    );
}

/// Reads one reply of RESP with everything that it contains, as bytes.
fn read_resp(stream: &mut BufReader<TcpStream>, reply: &mut String) {
    let begin = reply.len();
    stream.read_line(reply).unwrap();
    let (kind, count) = reply[begin..].split_at(1);
    let count = count.trim_end().parse::<u64>().unwrap_or_default();
    match kind {
        "$" if !reply.ends_with("$-1\r\n") => {
            stream.by_ref().take(count + 2).read_to_string(reply).unwrap();
        }
        "*" | "~" => (0..count).for_each(|_| read_resp(stream, reply)),
        "%" => (0..2 * count).for_each(|_| read_resp(stream, reply)),
        _ => {}
    }
}

#[test]
fn replies_of_the_line_protocol_are_as_recorded() {
    compare("line", &["--requirepass", PASSWORD], |server| {
        let mut client = server.line();
        Box::new(move |request| {
            client.send(format!("{request}\n").as_bytes());
            client.read_line()
        })
    });
}

#[test]
fn http_replies_are_as_recorded() {
    let conversation = compare("http", &["--requirepass", PASSWORD], |server| {
        let mut client: HttpClient = server.http();
        let login = format!("Bearer {PASSWORD}");
        Box::new(move |request| {
            let (target, body) = request
                .split_once(" {")
                .map_or((request, String::new()), |(target, body)| (target, format!("{{{body}")));
            let (method, path) = target.split_once(' ').unwrap();
            let headers = [("authorization", login.as_str()), ("content-type", "application/json")];
            client.send(&encode(method, path, &headers, body.as_bytes()));
            let reply = client.read_response();
            let head = reply.head.lines().filter(|line| !line.starts_with("date:")).collect::<Vec<_>>().join("\n");
            format!("{head}\n{}", reply.body)
        })
    });
    assert_complete(
        &conversation,
        ENDPOINTS.iter().filter_map(|row| row.http).map(|(method, path)| format!("{method} {path}")),
    );
}

#[test]
fn output_of_commands_is_as_recorded() {
    let conversation = compare("shell", &["--requirepass", PASSWORD], |server| {
        let address = server.http.to_string();
        Box::new(move |request| {
            let line = request.trim_start_matches("divvy ");
            let (code, out, error) = run(&format!("{line} --server {address} --password {PASSWORD}"));
            format!("{out}{error}exit {code}").replace(&address, "ADDRESS")
        })
    });
    let line = |(command, subcommand): (&str, &str)| format!("divvy {command} {subcommand}").trim_end().to_owned();
    assert_complete(&conversation, ENDPOINTS.iter().filter_map(|row| row.line).map(line));
}

#[test]
fn grpc_replies_are_as_recorded() {
    compare("grpc", &[], |server| {
        let mut caller = Caller::new(server);
        Box::new(move |request| caller.line(request))
    });
}
