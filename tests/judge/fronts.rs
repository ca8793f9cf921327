//! A client of all fronts of several servers. It survives their deaths.

use std::net::SocketAddr;
use std::sync::Mutex;

use divvy::server::grpc::Rpc;
use divvy::server::grpc::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use prost::Message;
use serde_json::{Value, json};

use super::history::{Reply, Request, ReservationId, Status};
use crate::support::http2::{Http2Client, call, descriptor};
use crate::support::{HttpClient, LineClient, RespClient, encode, parse_verdict, try_connect};

/// The addresses of a server. They are the same after a restart.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub line: SocketAddr,
    pub resp: SocketAddr,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    Line,
    Resp,
    Http,
    Grpc,
}

/// The commands that reach a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commands {
    /// The commands on rules.
    Rules,
    /// Hits by `CL.THROTTLE`.
    Throttle,
    /// Hits and refunds by `INCREX`.
    Increx,
    /// `RL.REDUCE`, with a bucket that gets `tokens` back each `every` seconds.
    Reduce { every: u64, tokens: u64 },
}

/// A counter, as clients name it.
#[derive(Debug, Clone)]
pub struct Counter {
    pub commands: Commands,
    /// Fields of an operation, or the key of a bucket.
    pub name: String,
    pub limit: u64,
    /// Whether reservations have a time of their own.
    pub has_ttl: bool,
}

impl Counter {
    /// Returns a counter without a history.
    pub fn probe(actor: usize) -> Self {
        Self { commands: Commands::Rules, name: format!("kind=fixed user=probe{actor}"), limit: 0, has_ttl: true }
    }
}

/// The reservations that clients of a history know.
#[derive(Debug, Default)]
pub struct Known(Mutex<Vec<String>>);

impl Known {
    fn learn(&self, id: &str) -> ReservationId {
        let mut ids = self.0.lock().unwrap();
        let place = ids.iter().position(|known| known == id);
        place.unwrap_or_else(|| {
            ids.push(id.to_owned());
            ids.len() - 1
        })
    }

    fn text(&self, id: ReservationId) -> String {
        self.0.lock().unwrap()[id].clone()
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// The result of sending a request.
#[derive(Debug)]
pub enum Sent {
    Answered(Reply),
    /// It may have taken effect. The text says what came instead of an answer.
    Unknown(String),
    /// It had no effect.
    Never,
}

/// Connections to one server.
pub struct Client {
    addresses: Addresses,
    line: Option<LineClient>,
    resp: Option<RespClient>,
    http: Option<HttpClient>,
    grpc: Option<Http2Client>,
}

impl Client {
    pub fn new(addresses: Addresses) -> Self {
        Self { addresses, line: None, resp: None, http: None, grpc: None }
    }

    /// Sends a request that this front has, and waits for its answer. A failed connection is replaced at the next one.
    pub fn send(&mut self, front: Front, counter: &Counter, request: Request, known: &Known) -> Sent {
        let connected = match front {
            Front::Line => connect(&mut self.line, self.addresses.line, |stream| Some(LineClient::over(stream))),
            Front::Resp => connect(&mut self.resp, self.addresses.resp, |stream| Some(RespClient::over(stream))),
            Front::Http => connect(&mut self.http, self.addresses.http, |stream| Some(HttpClient::over(stream))),
            Front::Grpc => {
                self.grpc = self.grpc.take().or_else(|| Http2Client::try_connect(self.addresses.grpc));
                self.grpc.is_some()
            }
        };
        if !connected {
            return Sent::Never;
        }
        let sent = match front {
            Front::Line => self.line.as_mut().and_then(|client| over_line(client, counter)),
            Front::Resp => self.resp.as_mut().and_then(|client| over_resp(client, counter, request, known)),
            Front::Http => self.http.as_mut().and_then(|client| over_http(client, counter, request, known)),
            Front::Grpc => self.grpc.as_ref().and_then(|client| over_grpc(client, counter, request)),
        };
        sent.unwrap_or_else(|| {
            match front {
                Front::Line => self.line = None,
                Front::Resp => self.resp = None,
                Front::Http => self.http = None,
                Front::Grpc => self.grpc = None,
            }
            Sent::Unknown("the connection failed".to_owned())
        })
    }
}

fn connect<T>(client: &mut Option<T>, address: SocketAddr, over: impl Fn(std::net::TcpStream) -> Option<T>) -> bool {
    *client = client.take().or_else(|| over(try_connect(address).ok()?));
    client.is_some()
}

/// Returns whether clients can send this request over this front.
pub fn has(front: Front, commands: Commands, request: Request) -> bool {
    match front {
        Front::Resp => true,
        Front::Http => commands == Commands::Rules && request != Request::Reset,
        Front::Line => commands == Commands::Rules && request == Request::Hit { cost: 1, key: None },
        Front::Grpc => commands == Commands::Rules && matches!(request, Request::Hit { cost: 1.., key: None }),
    }
}

fn over_line(client: &mut LineClient, counter: &Counter) -> Option<Sent> {
    let text = client.ask(&format!("HIT {}\n", counter.name))?;
    Some(match parse_verdict(&text) {
        Some((allowed, left, _)) => Sent::Answered(Reply::Verdict { allowed, left }),
        None => Sent::Unknown(text),
    })
}

fn over_resp(client: &mut RespClient, counter: &Counter, request: Request, known: &Known) -> Option<Sent> {
    let command = command(counter, request, known);
    client.try_send(&encode(&command.split(' ').map(str::as_bytes).collect::<Vec<_>>()))?;
    let reply = client.try_read_reply()?;
    Some(parse(counter, request, &reply, known).map_or(Sent::Unknown(reply), Sent::Answered))
}

fn command(counter: &Counter, request: Request, known: &Known) -> String {
    let Counter { name, limit, .. } = counter;
    match (counter.commands, request) {
        (Commands::Throttle, Request::Hit { cost, .. }) => format!("CL.THROTTLE {name} {} 1 360000 {cost}", limit - 1),
        (Commands::Increx, Request::Hit { cost, .. }) => {
            format!("INCREX {name} BYINT {cost} UBOUND {limit} EX 36000 ENX")
        }
        (Commands::Increx, Request::Refund { cost, .. }) => {
            format!("INCREX {name} BYINT -{cost} LBOUND 0 SATURATE EX 36000 ENX")
        }
        (Commands::Reduce { every, tokens }, Request::Reduce { take, at }) => {
            format!("RL.REDUCE {name} {limit} {every} REFILL {tokens} TAKE {take} AT {at}")
        }
        (_, Request::Hit { cost, key }) => format!("DIVVY.HIT {name} COST {cost}{}", id_option('k', key)),
        (_, Request::Peek { cost }) => format!("DIVVY.PEEK {name} COST {cost}"),
        (_, Request::Charge { cost, key }) => format!("DIVVY.CHARGE {name} COST {cost}{}", id_option('k', key)),
        (_, Request::Refund { cost, key }) => format!("DIVVY.REFUND {name} COST {cost}{}", id_option('k', key)),
        (_, Request::Reserve { amount, name: own }) => {
            let ttl = if counter.has_ttl { " TTL 600" } else { "" };
            format!("DIVVY.RESERVE {name} AMOUNT {amount}{ttl}{}", id_option('n', own))
        }
        (_, Request::Commit { id, cost }) => format!("DIVVY.COMMIT {} COST {cost}", known.text(id)),
        (_, Request::Release { id }) => format!("DIVVY.RELEASE {}", known.text(id)),
        (_, Request::Renew { id }) => format!("DIVVY.RENEW {}", known.text(id)),
        (_, Request::Reset) => format!("DIVVY.RESET {name}"),
        (_, Request::Reduce { .. } | Request::Failover) => unreachable!("no request on a rule"),
    }
}

fn id_option(kind: char, number: Option<u8>) -> String {
    number.map(|number| format!(" ID {kind}{number}")).unwrap_or_default()
}

/// Reads a reply of RESP; `None` for an error.
fn parse(counter: &Counter, request: Request, reply: &str, known: &Known) -> Option<Reply> {
    if reply.starts_with('-') {
        return None;
    }
    let words: Vec<_> = reply.trim_matches(['[', ']']).split(' ').collect();
    let number = |place: usize| words.get(place)?.parse::<i64>().ok();
    let unsigned = |place: usize| u64::try_from(number(place)?).ok();
    Some(match (counter.commands, request) {
        (Commands::Throttle, _) => Reply::Verdict { allowed: number(0)? == 0, left: unsigned(2)? },
        (Commands::Increx, Request::Hit { cost, .. }) => {
            Reply::Verdict { allowed: unsigned(1)? == cost, left: counter.limit - unsigned(0)? }
        }
        (Commands::Increx, _) => Reply::Balance(counter.limit as i64 - number(0)?),
        (Commands::Reduce { .. }, _) => Reply::Tokens(unsigned(0)?),
        (Commands::Rules, Request::Hit { .. } | Request::Peek { .. }) => {
            Reply::Verdict { allowed: number(0)? == 1, left: unsigned(1)? }
        }
        (Commands::Rules, Request::Charge { .. } | Request::Refund { .. }) => Reply::Balance(number(0)?),
        (Commands::Rules, Request::Reserve { .. }) => {
            let id = words.get(3).filter(|id| **id != "nil").map(|id| known.learn(id));
            Reply::Reserved { allowed: number(0)? == 1, left: unsigned(1)?, id }
        }
        (Commands::Rules, Request::Commit { .. }) => {
            Reply::Committed { balance: number(0)?, status: status(words.get(2)?)? }
        }
        (Commands::Rules, Request::Release { .. } | Request::Renew { .. }) => Reply::WasHeld(number(0)? > 0),
        (Commands::Rules, Request::Reset) => number(0).map(|_| Reply::Done)?,
        (Commands::Rules, Request::Reduce { .. } | Request::Failover) => return None,
    })
}

fn status(word: &str) -> Option<Status> {
    Some(match word {
        "settled" => Status::Settled,
        "late" => Status::Late,
        "repeated" => Status::Repeated,
        _ => return None,
    })
}

fn over_http(client: &mut HttpClient, counter: &Counter, request: Request, known: &Known) -> Option<Sent> {
    let pairs = counter.name.split(' ').filter_map(|pair| pair.split_once('='));
    let operation: Value =
        pairs.map(|(field, value)| (field.to_owned(), json!(value))).collect::<serde_json::Map<_, _>>().into();
    let costing = |cost: u64| json!({ "operation": operation, "cost": cost });
    let reservation = |id, action: &str| format!("/v1/reservations/{}{action}", known.text(id));
    let (path, body) = match request {
        Request::Hit { cost, .. } => ("/v1/hit".to_owned(), costing(cost)),
        Request::Peek { cost } => ("/v1/peek".to_owned(), costing(cost)),
        Request::Charge { cost, .. } => ("/v1/charge".to_owned(), costing(cost)),
        Request::Refund { cost, .. } => ("/v1/refund".to_owned(), costing(cost)),
        Request::Reserve { amount, name } => {
            let mut body = json!({ "operation": operation, "amount": amount });
            if counter.has_ttl {
                body["ttl"] = json!(600);
            }
            if let Some(name) = name {
                body["id"] = json!(format!("n{name}"));
            }
            ("/v1/reservations".to_owned(), body)
        }
        Request::Commit { id, cost } => (reservation(id, "/commit"), json!({ "cost": cost })),
        Request::Renew { id } => (reservation(id, "/renew"), json!({})),
        Request::Release { id } => (reservation(id, ""), Value::Null),
        Request::Reset | Request::Reduce { .. } | Request::Failover => unreachable!("not over HTTP"),
    };
    let key = match request {
        Request::Hit { key: Some(key), .. }
        | Request::Charge { key: Some(key), .. }
        | Request::Refund { key: Some(key), .. } => {
            format!("\"k{key}\"")
        }
        _ => String::new(),
    };
    let headers = [("idempotency-key", key.as_str())];
    let headers = if key.is_empty() { &[][..] } else { &headers };
    let response = match request {
        Request::Release { .. } => client.try_ask("DELETE", &path, &[], "")?,
        _ => client.try_ask("POST", &path, &[&[("content-type", "application/json")], headers].concat(), body)?,
    };
    Some(match response.status {
        200 | 201 | 429 => match parse_json(request, &response.json(), known) {
            Some(reply) => Sent::Answered(reply),
            None => Sent::Unknown(response.body),
        },
        // The first request under this key is still being decided.
        404 if matches!(request, Request::Renew { .. }) => Sent::Answered(Reply::WasHeld(false)),
        409 if !key.is_empty() => Sent::Never,
        _ => Sent::Unknown(response.body),
    })
}

fn parse_json(request: Request, answer: &Value, known: &Known) -> Option<Reply> {
    let (allowed, left, balance) =
        (answer["allowed"].as_bool(), answer["remaining"].as_u64(), answer["balance"].as_i64());
    Some(match request {
        Request::Hit { .. } | Request::Peek { .. } => Reply::Verdict { allowed: allowed?, left: left? },
        Request::Charge { .. } | Request::Refund { .. } => Reply::Balance(balance?),
        Request::Reserve { .. } => {
            let id = answer["id"].as_str().map(|id| known.learn(id));
            Reply::Reserved { allowed: allowed?, left: left?, id }
        }
        Request::Commit { .. } => Reply::Committed { balance: balance?, status: status(answer["status"].as_str()?)? },
        Request::Release { .. } => Reply::WasHeld(answer["released"].as_bool()?),
        Request::Renew { .. } => Reply::WasHeld(answer["expiresIn"].as_u64()? > 0),
        Request::Reset | Request::Reduce { .. } | Request::Failover => return None,
    })
}

fn over_grpc(client: &Http2Client, counter: &Counter, request: Request) -> Option<Sent> {
    let Request::Hit { cost, .. } = request else { unreachable!("only hits over gRPC") };
    let message = RateLimitRequest {
        domain: "judge".into(),
        descriptors: vec![descriptor(&counter.name)],
        hits_addend: cost as u32,
    };
    let response = client.try_send(call(Rpc::EnvoyShouldRateLimit.name(), "", &message))?;
    let answer = response.body.get(5..).and_then(|body| RateLimitResponse::decode(body).ok());
    Some(match answer.as_ref().map(|answer| &answer.statuses[..]) {
        // 1 is OK, and 2 is OVER_LIMIT.
        Some([status]) if response.grpc_status.as_deref() == Some("0") => {
            Sent::Answered(Reply::Verdict { allowed: status.code == 1, left: u64::from(status.limit_remaining) })
        }
        _ => Sent::Unknown(response.grpc_message.unwrap_or_default()),
    })
}
