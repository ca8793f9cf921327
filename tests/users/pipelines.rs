//! Random pipelines of random users: no sequence of requests escapes the check.

use divvy::access::Category;
use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use super::{Guarded, line, password};
use crate::support::seed::seed;
use crate::support::{RespClient, encode};

/// A user: its name, and its categories.
struct Rights {
    name: String,
    categories: Vec<Category>,
}

/// Commands, each with its category.
const COMMANDS: [(&str, Category); 12] = [
    ("DIVVY.HIT method=GET path=/status", Category::Hit),
    ("divvy.PEEK method=GET path=/status", Category::Hit),
    ("CL.THROTTLE key 1 1 1", Category::Hit),
    ("RL.GET key 1 1", Category::Read),
    ("DIVVY.EXPLAIN method=GET", Category::Read),
    ("DIVVY.RULES", Category::Read),
    ("DIVVY.LIMIT SET default x 1", Category::Limits),
    ("DIVVY.RESET method=GET path=/status", Category::Forget),
    ("DIVVY.FORGET default", Category::Forget),
    ("INFO server", Category::Info),
    ("ACL LIST", Category::Admin),
    ("PING", Category::Connection),
];

/// Expected reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Refused,
    Served,
    Queued,
    Aborted,
    /// The replies to a transaction.
    Executed(usize),
    NoAuth,
}

fn is(reply: &str, expected: Expected) -> bool {
    match expected {
        Expected::Refused => reply.starts_with("-NOPERM"),
        Expected::NoAuth => reply.starts_with("-NOAUTH"),
        Expected::Queued => reply == "QUEUED",
        Expected::Aborted => reply.starts_with("-EXECABORT"),
        Expected::Served => !reply.starts_with("-NOPERM") && !reply.starts_with("-NOAUTH"),
        Expected::Executed(_) => reply.starts_with('[') && !reply.contains("-NOPERM"),
    }
}

/// Returns random requests, and the expected reply to each.
fn pipeline(random: &mut Rng, users: &[Rights]) -> Vec<(Vec<u8>, Expected)> {
    let words = |line: &str| encode(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    let (mut user, mut queued): (Option<&Rights>, Option<Option<usize>>) = (None, None);
    let mut requests = Vec::new();
    for _ in 0..random.random_range(1..40) {
        let open = |expected| if user.is_some() { expected } else { Expected::NoAuth };
        match random.random_range(0..10) {
            0 if queued.is_none() => {
                let chosen = &users[random.random_range(0..users.len())];
                let is_right = random.random_bool(0.7);
                let password = if is_right { password(&chosen.name) } else { "wrong".to_owned() };
                requests.push((encode(&[b"AUTH", chosen.name.as_bytes(), password.as_bytes()]), Expected::Served));
                if is_right {
                    user = Some(chosen);
                }
            }
            1 => {
                requests.push((words("MULTI"), open(Expected::Served)));
                if user.is_some() && queued.is_none() {
                    queued = Some(Some(0));
                }
            }
            2 => {
                let expected = match queued.take() {
                    None => Expected::Served,
                    Some(None) => Expected::Aborted,
                    Some(Some(count)) => Expected::Executed(count),
                };
                requests.push((words("EXEC"), open(expected)));
            }
            3 => {
                requests.push((words("RESET"), Expected::Served));
                (user, queued) = (None, None);
            }
            _ => {
                let (command, category) = COMMANDS[random.random_range(0..COMMANDS.len())];
                let is_granted =
                    category == Category::Connection || user.is_some_and(|user| user.categories.contains(&category));
                let expected = match (&mut queued, is_granted) {
                    (_, false) if user.is_some() => {
                        queued = queued.map(|_| None);
                        Expected::Refused
                    }
                    (Some(count), true) => {
                        *count = count.map(|count| count + 1);
                        Expected::Queued
                    }
                    _ => open(Expected::Served),
                };
                requests.push((words(command), expected));
            }
        }
    }
    requests
}

#[test]
fn no_pipeline_escapes_the_check() {
    let mut random = Rng::seed_from_u64(seed());
    let users: Vec<Rights> = (0..12)
        .map(|number| Rights {
            name: format!("user-{number}"),
            categories: Category::ALL.into_iter().filter(|_| random.random_bool(0.4)).collect(),
        })
        .collect();
    let file = users.iter().map(|user| {
        let grants = user.categories.iter().map(|category| format!("+@{category} "));
        line(&user.name, &(grants.collect::<String>() + "~*"))
    });
    let guarded = Guarded::start(&file.collect::<String>(), &[]);
    for _ in 0..150 {
        let requests = pipeline(&mut random, &users);
        let mut client = RespClient::connect(guarded.server.resp);
        client.send(&requests.iter().flat_map(|(bytes, _)| bytes.clone()).collect::<Vec<u8>>());
        for (index, (bytes, expected)) in requests.iter().enumerate() {
            let reply = client.read_reply();
            assert!(
                is(&reply, *expected),
                "request {index} {:?}: {expected:?}, but {reply}",
                bytes.escape_ascii().to_string()
            );
        }
    }
}
