//! Random users send random requests over every front: no sequence escapes its user's categories and scope. A model of
//! the rules that each user may use has the same counters as the server at the end of each round.

mod model;

use divvy::access::Category;
use divvy::server::grpc::Rpc;
use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use self::model::{APIS, Access, Action, Model, Operation, USERS, User};
use super::scopes::{LABELS, REFUSED, RULES};
use super::{Guarded, basic, line, password};
use crate::support::http::encode as encode_http;
use crate::support::http2::{Http2Client, descriptor, json, request};
use crate::support::{encode, seed};

const CREDITS: i64 = 1_000_000_000;
const ROUNDS: usize = 60;
const ACTIONS: [Action; 5] = [Action::Hit, Action::Peek, Action::Charge, Action::Refund, Action::Reset];

fn choose<'a, T>(random: &mut Rng, items: &'a [T]) -> &'a T {
    &items[random.random_range(0..items.len())]
}

fn operation(random: &mut Rng) -> Operation {
    let (api, user) = (*choose(random, &APIS), *choose(random, &USERS));
    Operation { api, user }
}

fn random_users(random: &mut Rng) -> Vec<User> {
    let categories = [Category::Hit, Category::Forget, Category::Read];
    (0..12)
        .map(|number| User {
            name: format!("user-{number}"),
            categories: categories.into_iter().filter(|_| random.random_bool(0.75)).collect(),
            covers_everything: number % 4 == 0,
            labels: ["a-*", "b-*", "c-*", "*"].into_iter().filter(|_| random.random_bool(0.4)).collect(),
            actor: random.random_bool(0.3).then(|| *choose(random, &USERS)),
        })
        .collect()
}

/// A reply to a command that the model predicts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expected {
    Served,
    Queued,
    Aborted,
    NoAuth,
    /// The user lacks the category, or the rules are out of scope.
    Access(Access),
    Executed(Vec<Access>),
}

fn is_access(reply: &str, access: Access) -> bool {
    match access {
        Access::Granted => !reply.starts_with('-'),
        Access::NoCategory => reply.starts_with("-NOPERM User "),
        Access::OutOfScope => reply == format!("-NOPERM {REFUSED}"),
    }
}

fn is(reply: &str, expected: &Expected) -> bool {
    match expected {
        Expected::Served => !reply.starts_with("-NO"),
        Expected::Queued => reply == "QUEUED",
        Expected::Aborted => reply.starts_with("-EXECABORT"),
        Expected::NoAuth => reply.starts_with("-NOAUTH"),
        Expected::Access(access) => is_access(reply, *access),
        // Whether each of them was served shows in the counters, too.
        Expected::Executed(all) => {
            let refused = all.iter().filter(|access| **access == Access::OutOfScope).count();
            reply.starts_with('[') && reply.matches(REFUSED).count() == refused
        }
    }
}

/// Returns a pipeline of commands with logins and transactions, and the expected replies. Applies it to the model.
fn pipeline(random: &mut Rng, users: &[User], model: &mut Model) -> Vec<(Vec<u8>, Expected)> {
    let words = |line: &str| encode(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    let (mut user, mut queued) = (None::<&User>, None::<Vec<(Action, Operation)>>);
    let mut is_aborted = false;
    let mut requests = Vec::new();
    for _ in 0..random.random_range(5..60) {
        match random.random_range(0..12) {
            0 | 1 if queued.is_none() => {
                let chosen = choose(random, users);
                let is_right = random.random_bool(0.9);
                let password = if is_right { password(&chosen.name) } else { "wrong".to_owned() };
                requests.push((encode(&[b"AUTH", chosen.name.as_bytes(), password.as_bytes()]), Expected::Served));
                if is_right {
                    user = Some(chosen);
                }
            }
            2 if user.is_some() && queued.is_none() => {
                requests.push((words("MULTI"), Expected::Served));
                (queued, is_aborted) = (Some(Vec::new()), false);
            }
            3 | 4 if queued.is_some() => {
                let (operations, user) = (queued.take().unwrap(), user.unwrap());
                let expected = match is_aborted {
                    true => Expected::Aborted,
                    false => Expected::Executed(
                        operations
                            .into_iter()
                            .map(|(action, operation)| model.apply(user, action, operation))
                            .collect(),
                    ),
                };
                requests.push((words("EXEC"), expected));
            }
            5 if random.random_bool(0.3) => {
                requests.push((words("RESET"), Expected::Served));
                (user, queued) = (None, None);
            }
            _ => {
                let (action, operation) = (*choose(random, &ACTIONS), operation(random));
                let expected = match (user, &mut queued) {
                    (None, _) => Expected::NoAuth,
                    (Some(user), _) if !user.has(action.category()) => {
                        is_aborted = true;
                        Expected::Access(Access::NoCategory)
                    }
                    (Some(_), Some(queued)) => {
                        queued.push((action, operation));
                        Expected::Queued
                    }
                    (Some(user), None) => Expected::Access(model.apply(user, action, operation)),
                };
                requests.push((words(&format!("{} {operation}", action.command())), expected));
            }
        }
    }
    requests
}

fn send_pipeline(random: &mut Rng, guarded: &Guarded, users: &[User], model: &mut Model) {
    let requests = pipeline(random, users, model);
    let mut client = guarded.server.resp();
    client.send(&requests.iter().flat_map(|(bytes, _)| bytes.clone()).collect::<Vec<u8>>());
    for (index, (bytes, expected)) in requests.iter().enumerate() {
        let reply = client.read_reply();
        let request = bytes.escape_ascii().to_string();
        assert!(is(&reply, expected), "request {index} {request}: {expected:?}, but {reply}");
    }
}

/// A request over HTTP: its path, its body, and its hits.
struct Batch {
    path: &'static str,
    body: String,
    hits: Vec<Operation>,
    is_atomic: bool,
}

fn batch(random: &mut Rng) -> Batch {
    let json = |operation: &Operation| {
        format!("{{\"operation\":{{\"api\":\"{}\",\"user\":\"{}\"}}}}", operation.api, operation.user)
    };
    if random.random_bool(0.4) {
        let hit = operation(random);
        return Batch { path: "/v1/hit", body: json(&hit), hits: vec![hit], is_atomic: true };
    }
    let hits: Vec<_> = (0..random.random_range(1..8)).map(|_| operation(random)).collect();
    let is_atomic = random.random_bool(0.5);
    let body = hits.iter().map(json).collect::<Vec<_>>().join(",");
    Batch { path: "/v1/hits", body: format!("{{\"atomic\":{is_atomic},\"hits\":[{body}]}}"), hits, is_atomic }
}

/// Applies a request to the model, and checks its response.
fn check_batch(user: &User, batch: &Batch, status: u16, body: &str, model: &mut Model) {
    let what = format!("{user:?} {} {}: {status} {body}", batch.path, batch.body);
    if !user.has(Category::Hit) {
        assert!(status == 403 && body.contains("category hit"), "{what}");
        return;
    }
    let is_covered: Vec<_> = batch.hits.iter().map(|hit| user.covers(*hit)).collect();
    if batch.is_atomic && is_covered.contains(&false) {
        assert!(status == 403 && body.contains(REFUSED), "{what}");
        return;
    }
    assert_eq!(status, 200, "{what}");
    assert_eq!(body.matches(REFUSED).count(), is_covered.iter().filter(|covered| !**covered).count(), "{what}");
    for hit in &batch.hits {
        model.apply(user, Action::Hit, *hit);
    }
}

fn send_batches(random: &mut Rng, guarded: &Guarded, users: &[User], model: &mut Model) {
    let mut client = guarded.server.http();
    for _ in 0..random.random_range(1..8) {
        let (user, batch) = (choose(random, users), batch(random));
        let authorization = basic(&user.name);
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        client.send(&encode_http("POST", batch.path, &headers, batch.body.as_bytes()));
        let response = client.read_response();
        check_batch(user, &batch, response.status, &response.body, model);
    }
}

/// Streams of several users are answered at the same time. Hits commute, so the model needs no order.
fn send_streams(random: &mut Rng, guarded: &Guarded, users: &[User], model: &mut Model) {
    let batches: Vec<_> = (0..random.random_range(2..24)).map(|_| (choose(random, users), batch(random))).collect();
    let requests = batches.iter().map(|(user, batch)| json("POST", batch.path, &basic(&user.name), &batch.body));
    let responses = Http2Client::connect(guarded.server.http).send_all(requests.collect());
    for ((user, batch), response) in batches.iter().zip(responses) {
        check_batch(user, batch, response.status, &String::from_utf8(response.body).unwrap(), model);
    }
}

/// A call is refused if one of its descriptors is out of scope.
fn send_calls(random: &mut Rng, guarded: &Guarded, users: &[User], model: &mut Model) {
    let calls: Vec<_> = (0..random.random_range(2..16))
        .map(|_| (choose(random, users), (0..random.random_range(1..5)).map(|_| operation(random)).collect::<Vec<_>>()))
        .collect();
    let requests = calls.iter().map(|(user, hits)| {
        let descriptors = hits.iter().map(|hit| descriptor(&format!("api={} user={}", hit.api, hit.user)));
        request(Rpc::EnvoyShouldRateLimit, &basic(&user.name), descriptors.collect(), "")
    });
    let responses = Http2Client::connect(guarded.server.grpc).send_all(requests.collect());
    for ((user, hits), response) in calls.iter().zip(responses) {
        let is_granted = user.has(Category::Hit) && hits.iter().all(|hit| user.covers(*hit));
        let expected = if is_granted { "0" } else { "7" };
        assert_eq!(response.grpc_status.as_deref(), Some(expected), "{user:?} {hits:?} {response:?}");
        if is_granted {
            hits.iter().for_each(|hit| _ = model.apply(user, Action::Hit, *hit));
        }
    }
}

/// Returns the used credits of each counter, as an unrestricted user sees them.
fn used(guarded: &Guarded) -> Vec<(String, String, i64)> {
    let mut found = Vec::new();
    for rule in LABELS.into_iter().chain(["rule-8", "default"]) {
        let listed = guarded.http("GET", &format!("/v1/counters?rule={rule}"), Some("all")).json();
        for counter in listed["counters"].as_array().unwrap_or_else(|| panic!("{rule}: {listed}")) {
            let (actor, balance) = (counter["actor"].as_str().unwrap(), counter["balance"].as_i64().unwrap());
            let limit = if ["b-second", "c-canary"].contains(&rule) { 2 * CREDITS } else { CREDITS };
            found.push((rule.to_owned(), actor.to_owned(), limit - balance));
        }
    }
    found.sort();
    found
}

#[test]
fn no_sequence_escapes_its_users_categories_and_scope() {
    let mut random = Rng::seed_from_u64(seed());
    let users = random_users(&mut random);
    let file = users.iter().map(User::line).collect::<String>() + &line("all", "+@all ~*");
    let guarded = Guarded::with_rules(&RULES.replace("000 ", "000000000 "), &file, &["--open", "none"]);
    let mut model = Model::default();
    for round in 0..ROUNDS {
        match random.random_range(0..4) {
            0 => send_batches(&mut random, &guarded, &users, &mut model),
            1 => send_streams(&mut random, &guarded, &users, &mut model),
            2 => send_calls(&mut random, &guarded, &users, &mut model),
            _ => send_pipeline(&mut random, &guarded, &users, &mut model),
        }
        assert_eq!(used(&guarded), model.used(), "round {round}");
    }
    assert!(model.served > 100 && model.refused > 50, "{} {}", model.served, model.refused);
}
