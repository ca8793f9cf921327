//! The bytes on the wire. tests/wire/ has conversations with servers, on every front and with every operation; each reply is
//! compared with the recorded one.
//!
//! A request begins with its client and `> `, and the reply follows, indented. All other lines are comments. `make docs` (or
//! `DIVVY_TEST_WRITE_DOCS=1`) writes the replies anew, so that a change of them is read line by line.
//!
//! | client | request |
//! |---|---|
//! | `serve` | the flags of a new server of the rules at the beginning of the file, or else of rules.ini |
//! | `serve without rules` | the flags of a new server |
//! | `login` | the password of the following requests over HTTP and on the command line |
//! | `http` | a method and a path, then headers in brackets, then a body, which is JSON unless a header says otherwise |
//! | `resp` | a command; the reply is on one line |
//! | `bytes` | a command; the reply is as it arrives |
//! | `line` | a line of the line protocol |
//! | `divvy` | arguments of `divvy` |
//! | `grpc` | a method and its message as JSON |
//! | `metrics` | the beginning of samples |
//! | `audit` | the number of lines that the audit log `DIR/audit.log` has by then; the reply is the new ones |
//!
//! A word after the name stands for another connection. Lines with `user` before the first request are in `DIR/users.acl`. In
//! requests, `$ID` is the client's latest reservation. In replies, `DAY`, `HOUR` and `TTL` stand for seconds that differ from run to
//! run, because reservations may last somewhat longer than requested. `ID` stands for a reservation, `SEQUENCE` for a position among
//! the changes of blocks, `DIR` for the directory, `ADDRESS` for the server's. Dates and lengths of bodies are left out.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use divvy_api::ENDPOINTS;

#[cfg(feature = "full")]
use crate::support::Caller;
use crate::support::http::{self, HttpClient, encode};
use crate::support::{Place, Server, audit, connect, run};

const CLIENTS: [&str; 10] = ["serve", "login", "http", "resp", "bytes", "line", "divvy", "grpc", "metrics", "audit"];

/// Returns the request in a line: the client, its kind, and the text.
fn request(line: &str) -> Option<(&str, &str, &str)> {
    let (client, text) = line.split_once('>')?;
    let kind = client.split(' ').next()?;
    CLIENTS.contains(&kind).then_some((client, kind, text.trim()))
}

/// Sends a request. Returns the reply.
type Client = Box<dyn FnMut(&str) -> String>;

/// A server and its clients.
struct Conversation {
    place: Place,
    server: Option<Server>,
    clients: HashMap<String, Client>,
    password: String,
    /// The latest reservation of each client.
    ids: HashMap<String, String>,
}

impl Conversation {
    /// Begins a conversation about the rules before the first request, or else about those in rules.ini.
    fn new(text: &str) -> Self {
        let own = text.lines().take_while(|line| request(line).is_none()).filter(|line| !line.starts_with('#'));
        let (users, own): (Vec<_>, Vec<_>) = own.partition(|line| line.starts_with("user "));
        let own = own.join("\n");
        let rules = if own.is_empty() { include_str!("wire/rules.ini") } else { &own };
        let place = Place::with(rules, &[("users.acl", &users.join("\n"))]);
        let (clients, ids) = (HashMap::new(), HashMap::new());
        Self { place, server: None, clients, password: String::new(), ids }
    }

    /// Returns the lines of the reply.
    fn answer(&mut self, (client, kind, text): (&str, &str, &str)) -> Vec<String> {
        let directory = self.place.dir().to_str().unwrap().to_owned();
        let text = text.replace("DIR/", &format!("{directory}/"));
        match kind {
            "serve" => {
                self.clients.clear();
                (self.server, self.password) = (None, String::new());
                let flags = shlex::split(&text).unwrap();
                let flags: Vec<_> = flags.iter().map(String::as_str).collect();
                let store: &[&str] = if text.contains("--data-dir") { &[] } else { &["--store", "memory"] };
                let rules = self.place.path("rules.ini");
                let rules: &[&str] = if client == "serve" { &[&rules] } else { &[] };
                self.server = Some(Server::start(&[rules, &flags, store].concat()));
                Vec::new()
            }
            "login" => {
                self.clients.clear();
                text.clone_into(&mut self.password);
                Vec::new()
            }
            _ => {
                let server = self.server.as_ref().expect("a server");
                let id = self.ids.entry(client.to_owned()).or_default();
                let new = || connected(kind, server, &self.place, &self.password);
                let send = self.clients.entry(client.to_owned()).or_insert_with(new);
                let reply = comparable(&send(&text.replace("$ID", id)).replace(&directory, "DIR"), id);
                reply.lines().filter(|line| !line.is_empty()).map(|line| line.trim_end().to_owned()).collect()
            }
        }
    }
}

fn connected(kind: &str, server: &Server, place: &Place, password: &str) -> Client {
    let (address, bearer) = (server.http, format!("Bearer {password}"));
    let login = if password.is_empty() { String::new() } else { format!(" --password {password}") };
    match kind {
        "http" => {
            let mut client = server.http();
            Box::new(move |request| ask_over_http(&mut client, (!login.is_empty()).then_some(&bearer), request))
        }
        "resp" => {
            let mut client = server.resp();
            Box::new(move |command| client.pipeline([command]).concat())
        }
        "bytes" => {
            let mut stream = BufReader::new(connect(server.resp));
            Box::new(move |command| {
                stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
                let mut reply = String::new();
                read_resp(&mut stream, &mut reply);
                reply
            })
        }
        "line" => {
            let mut client = server.line();
            Box::new(move |line| {
                client.send(format!("{line}\n").as_bytes());
                client.read_line()
            })
        }
        "divvy" => Box::new(move |arguments| {
            let (code, out, error) = run(&format!("{arguments} --server {address}{login}"));
            format!("{out}{error}exit {code}").replace(&address.to_string(), "ADDRESS")
        }),
        "metrics" => Box::new(move |samples| {
            let body = http::get(address, "/metrics").body;
            body.lines().filter(|line| line.starts_with(samples)).map(|line| format!("{line}\n")).collect()
        }),
        "audit" => {
            let (path, mut shown) = (place.path("audit.log"), 0);
            Box::new(move |count| {
                let mut lines = audit::lines(&path, count.parse().unwrap()).split_off(shown);
                shown += lines.len();
                for line in &mut lines {
                    line.as_object_mut().unwrap().retain(|key, _| !["time", "address"].contains(&key.as_str()));
                }
                lines.into_iter().map(|line| format!("{line}\n")).collect()
            })
        }
        #[cfg(feature = "full")]
        "grpc" => {
            let mut caller = Caller::new(server);
            Box::new(move |call| caller.line(call))
        }
        _ => panic!("no client {kind}"),
    }
}

fn ask_over_http(client: &mut HttpClient, bearer: Option<&String>, request: &str) -> String {
    let (method, rest) = request.split_once(' ').unwrap();
    let (path, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (headers, body) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((headers, body)) => {
            (headers.split("; ").filter_map(|header| header.split_once(": ")).collect(), body.trim())
        }
        None => (Vec::new(), rest),
    };
    let has_type = body.is_empty() || headers.iter().any(|(name, _)| *name == "content-type");
    let json = (!has_type).then_some(("content-type", "application/json"));
    let headers: Vec<_> =
        headers.into_iter().chain(json).chain(bearer.map(|it| ("authorization", it.as_str()))).collect();
    client.send(&encode(method, path, &headers, body.as_bytes()));
    let reply = client.read_response();
    let reply = format!("{}\n{}", reply.head, reply.body);
    let is_kept = |line: &&str| !["date: ", "content-length: "].iter().any(|name| line.starts_with(name));
    reply.lines().filter(is_kept).collect::<Vec<_>>().join("\n").trim_start_matches("HTTP/1.1 ").to_owned()
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

/// Replaces what differs from run to run. Sets `id` to the last reservation.
fn comparable(reply: &str, id: &mut String) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut text = String::new();
    for piece in reply.split_inclusive(|c| !is_word(c)) {
        // gRPC has a unit after the number.
        let word = piece.trim_end_matches(|c| !is_word(c));
        let word = word.strip_suffix('s').filter(|number| number.parse::<u64>().is_ok()).unwrap_or(word);
        let replaced = match word.parse::<u64>() {
            Ok(86_300..=86_400) => "DAY",
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

/// Returns the files with conversations that this build can have.
fn files() -> Vec<(PathBuf, String)> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire");
    let paths = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    let texts = paths.filter(|path| path.extension().is_some_and(|it| it == "txt"));
    let texts = texts.map(|path| (fs::read_to_string(&path).unwrap(), path)).map(|(text, path)| (path, text));
    let needs_all = |text: &str| text.contains("\ngrpc> ") || text.contains("--data-dir");
    texts.filter(|(_, text)| cfg!(feature = "full") || !needs_all(text)).collect()
}

/// Returns the file as it should be now.
fn replayed(recorded: &str) -> String {
    let mut conversation = Conversation::new(recorded);
    let mut replayed = String::new();
    for line in recorded.lines().filter(|line| !line.starts_with("    ")) {
        replayed.push_str(&format!("{line}\n"));
        let reply = request(line).map(|request| conversation.answer(request)).unwrap_or_default();
        replayed.extend(reply.iter().map(|line| format!("    {line}\n")));
    }
    replayed
}

fn first_difference(recorded: &str, replayed: &str) -> String {
    let differs = recorded.lines().zip(replayed.lines()).position(|(recorded, replayed)| recorded != replayed);
    let place = differs.unwrap_or_else(|| recorded.lines().count().min(replayed.lines().count()));
    let asked = recorded.lines().take(place + 1).filter(|line| request(line).is_some()).last();
    let [recorded, replayed] = [recorded, replayed].map(|text| text.lines().nth(place).unwrap_or_default());
    format!("{}\nrecorded: {recorded}\nnow:      {replayed}", asked.unwrap_or_default())
}

#[test]
fn every_reply_is_as_recorded() {
    let conversations = files().into_iter().map(|(path, recorded)| {
        thread::spawn(move || {
            let replayed = replayed(&recorded);
            if env::var_os("DIVVY_TEST_WRITE_DOCS").is_some() {
                fs::write(&path, replayed).unwrap();
            } else {
                let differs = first_difference(&recorded, &replayed);
                assert!(recorded == replayed, "{}, if this is right, run `make docs`:\n{differs}", path.display());
            }
        })
    });
    let conversations: Vec<_> = conversations.collect();
    let failed = conversations.into_iter().filter_map(|conversation| conversation.join().err()).count();
    assert_eq!(failed, 0, "conversations differ, as shown above");
}

#[test]
fn every_operation_is_on_every_front() {
    let texts: Vec<_> = files().into_iter().map(|(_, text)| text).collect();
    let requests: Vec<_> = texts.iter().flat_map(|text| text.lines()).filter_map(request).collect();
    let is_there = |kind: &str, begin: &str| {
        requests.iter().filter(|(_, own, _)| *own == kind).any(|(.., text)| {
            text.strip_prefix(begin).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '?']))
        })
    };
    let words = |(command, subcommand): (&str, &str)| format!("{command} {subcommand}").trim().to_owned();
    for row in ENDPOINTS.iter() {
        let command = words(row.command).to_uppercase();
        let http = row.http.map(|(method, path)| ("http", format!("{method} {path}")));
        let line = row.line().map(|line| ("divvy", words(line)));
        let resp = (!command.is_empty()).then_some(("bytes", command));
        for (kind, begin) in [http, line, resp].into_iter().flatten() {
            assert!(!cfg!(feature = "full") || is_there(kind, &begin), "no request {kind}> {begin}");
        }
    }
}
