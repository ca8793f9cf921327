//! Rights that are revoked under load: no request that begins later is served, on any front, and none takes credits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use bytes::Bytes;
use divvy::server::grpc::Rpc;
use hyper::Request;

use super::{Guarded, basic, line, password};
use crate::support::http::encode as encode_http;
use crate::support::http2::{Http2Client, Http2Response, descriptor, json, request};
use crate::support::{encode, until};

const IN_FORCE: &str = "the new users are in force";
const CREDITS: usize = 1_000_000_000;
/// Requests that each client sends at once.
const AT_ONCE: usize = 8;
/// How often each client sends requests after the revocation.
const LATE_ROUNDS: usize = 8;

fn rules() -> String {
    format!("[front=*] creditLimit={CREDITS} resetSeconds=86400 actorField=front label=calls\n[default] creditLimit=0")
}

/// Returns an access file with one user for the line protocol, one for the other fronts, and one for the test.
fn file(words: &str) -> String {
    ["default", "app"].map(|name| line(name, words)).concat() + &line("all", "+@all ~*")
}

/// Access files without the rights of [`file`], each in another way.
fn revocations() -> [(&'static str, String); 6] {
    let granted = file("+@hit ~*");
    let all = line("all", "+@all ~*");
    let with_password_of = |other: &str, name: &str| line(other, "+@hit ~*").replacen(other, name, 1);
    let other_passwords = with_password_of("x", "app") + &with_password_of("y", "default") + &all;
    [
        ("category", file("+@all -@hit ~*")),
        ("scope by label", file("+@hit ~label:other")),
        ("scope by actor", file("+@hit ~actor:front=other")),
        ("off", granted.replace(" on ", " off ").replace("user all off", "user all on")),
        ("password", other_passwords),
        ("gone", all),
    ]
}

/// Sends hits at once over a front. Returns the number of those that were served.
type Sender = Box<dyn FnMut() -> usize + Send>;

/// Returns whether a reply means that the hit was served. It must be that or a refusal.
fn is_served(reply: &str, served: &str, refusals: &[&str]) -> bool {
    assert!(reply.starts_with(served) || refusals.iter().any(|refusal| reply.starts_with(refusal)), "{reply}");
    reply.starts_with(served)
}

/// Counts the replies to a pipeline. Within it, no request after a refused one is served.
fn count_served(replies: Vec<bool>) -> usize {
    let served = replies.iter().filter(|served| **served).count();
    assert!(replies[..served].iter().all(|served| *served), "{replies:?}");
    served
}

fn over_resp(guarded: &Guarded) -> Sender {
    let mut client = guarded.resp("app");
    Box::new(move || {
        client.send(&encode(&[b"DIVVY.HIT", b"front=resp"]).repeat(AT_ONCE));
        count_served((0..AT_ONCE).map(|_| is_served(&client.read_reply(), "[1 ", &["-NOPERM", "-NOAUTH"])).collect())
    })
}

fn over_lines(guarded: &Guarded) -> Sender {
    let mut client = guarded.line();
    Box::new(move || {
        client.send("HIT front=line\n".repeat(AT_ONCE).as_bytes());
        count_served((0..AT_ONCE).map(|_| is_served(&client.read_line(), "OK true", &["ERR un"])).collect())
    })
}

fn body(front: &str) -> String {
    format!("{{\"operation\":{{\"front\":\"{front}\"}}}}")
}

fn over_http(guarded: &Guarded) -> Sender {
    let mut client = guarded.server.http();
    Box::new(move || {
        let (authorization, body) = (basic("app"), body("http"));
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        client.send(&encode_http("POST", "/v1/hit", &headers, body.as_bytes()).repeat(AT_ONCE));
        let replies = (0..AT_ONCE).map(|_| is_served(&client.read_response().status.to_string(), "200", &["40"]));
        count_served(replies.collect())
    })
}

/// Sends requests as streams of one connection.
fn over_streams(address: std::net::SocketAddr, request: impl Fn() -> Request<Bytes> + Send + 'static) -> Sender {
    let client = Http2Client::connect(address);
    Box::new(move || {
        let responses = client.send_all((0..AT_ONCE).map(|_| request()).collect());
        let served = |response: &Http2Response| {
            let grpc = response.grpc_status.as_deref().unwrap_or("0");
            is_served(&format!("{} {grpc}", response.status), "200 0", &["401 ", "403 ", "200 7"])
        };
        responses.iter().filter(|response| served(response)).count()
    })
}

/// Returns a gRPC call with a hit.
fn ask(front: &str) -> Request<Bytes> {
    let descriptors = vec![descriptor(&format!("front={front}"))];
    request(Rpc::EnvoyShouldRateLimit, &format!("Bearer {}", password("app")), descriptors, "")
}

fn fronts(guarded: &Guarded) -> Vec<(&'static str, Sender)> {
    let http_2 = || json("POST", "/v1/hit", &format!("Bearer {}", password("app")), &body("http2"));
    vec![
        ("resp", over_resp(guarded)),
        ("line", over_lines(guarded)),
        ("http", over_http(guarded)),
        ("http2", over_streams(guarded.server.http, http_2)),
        ("grpc", over_streams(guarded.server.grpc, || ask("grpc"))),
    ]
}

#[test]
fn no_request_after_a_revocation_is_served_on_any_front() {
    let rules = rules();
    for (kind, file_after) in revocations() {
        let guarded = Guarded::with_rules(&rules, &file("+@hit ~*"), &["--open", "none"]);
        let (begins, is_revoked) = (AtomicBool::new(false), AtomicBool::new(false));
        let fronts = fronts(&guarded);
        let served: Vec<_> = fronts.iter().map(|(front, _)| (*front, AtomicUsize::new(0))).collect();
        thread::scope(|scope| {
            for ((front, mut send), (_, served)) in fronts.into_iter().zip(&served) {
                let (begins, is_revoked) = (&begins, &is_revoked);
                scope.spawn(move || {
                    let mut late_rounds = 0;
                    while late_rounds < LATE_ROUNDS {
                        let is_late = is_revoked.load(SeqCst);
                        let granted = send();
                        assert!(granted == 0 || !is_late, "{kind}: {front} serves {granted} late requests");
                        assert!(granted == AT_ONCE || begins.load(SeqCst), "{kind}: {front} refuses requests");
                        served.fetch_add(granted, SeqCst);
                        late_rounds += usize::from(is_late);
                    }
                });
            }
            until(|| served.iter().all(|(_, served)| served.load(SeqCst) > 5 * AT_ONCE));
            begins.store(true, SeqCst);
            guarded.reload(&file_after, IN_FORCE);
            is_revoked.store(true, SeqCst);
        });
        for (front, served) in &served {
            let reply = guarded.resp("all").command(&format!("DIVVY.PEEK front={front}"));
            let left = format!("[1 {} ", CREDITS - served.load(SeqCst));
            assert!(reply.starts_with(&left), "{kind}: {front} served {served:?}, and shows {reply}");
        }
    }
}

/// The first half of each body arrives before the revocation, and the second half after it.
#[test]
fn streams_whose_bodies_end_after_a_revocation_are_refused() {
    let rules = rules();
    for (kind, file_after) in revocations() {
        let guarded = Guarded::with_rules(&rules, &file("+@hit +@limits ~*"), &["--open", "none"]);
        let post = |path: &str, body: &str| json("POST", path, &basic("app"), body);
        let hit = body("http2");
        let requests = vec![
            post("/v1/hit", &hit),
            post("/v1/hits", &format!("{{\"hits\":[{hit},{hit}]}}")),
            post("/v1/hits", &format!("{{\"atomic\":true,\"hits\":[{hit},{hit}]}}")),
            post("/v1/charge", &hit),
            post("/v1/reservations", "{\"operation\":{\"front\":\"http2\"},\"amount\":1,\"ttl\":5}"),
        ];
        let put = json("PUT", "/v1/limits?rule=calls&actor=http2", &basic("app"), "{\"credits\":5}");
        let http = Http2Client::connect(guarded.server.http);
        let grpc = Http2Client::connect(guarded.server.grpc);
        let mut over_grpc = Vec::new();
        let over_http = http.send_late([requests, vec![put]].concat(), || {
            over_grpc = grpc.send_late(vec![ask("grpc"), ask("grpc")], || guarded.reload(&file_after, IN_FORCE));
        });
        // Short bodies wait for nothing, so the login is checked when they are complete.
        let has_login = !matches!(kind, "off" | "password" | "gone");
        for (index, response) in over_http.iter().enumerate() {
            // A batch that is not atomic refuses each of its hits.
            let body = String::from_utf8_lossy(&response.body);
            let refused = body.matches("\"status\":403").count();
            let is_refused = response.status == if has_login { 403 } else { 401 }
                || (index == 1 && response.status == 200 && refused == 2);
            // This user may set limits still.
            let may_set = index == 5 && kind == "category" && response.status == 200;
            assert!(is_refused || may_set, "{kind}: request {index}: {response:?}");
        }
        for response in &over_grpc {
            let expected = if has_login { (200, Some("7")) } else { (401, None) };
            assert_eq!((response.status, response.grpc_status.as_deref()), expected, "{kind}: {response:?}");
        }
        let mut all = guarded.resp("all");
        for front in ["http2", "grpc"] {
            let left = if kind == "category" && front == "http2" { 5 } else { CREDITS };
            assert_eq!(all.command(&format!("DIVVY.PEEK front={front}")), format!("[1 {left} 0]"), "{kind}: {front}");
        }
    }
}
