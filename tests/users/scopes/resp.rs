//! Scopes of commands.

use divvy::access::Category;
use divvy::protocol::command::table::{COMMANDS, offered};

use super::{Ids, KNOWN, LABELS, REFUSED, UNKNOWN, fill, guarded, state, users};
use crate::support::{LineClient, RespClient};
use crate::users::password;

/// Returns requests of a command about the actor that are out of scope of all users of [`RESTRICTED`]. Empty for a
/// command that lists what is in scope.
fn requests(command: &str, actor: &str, id: &str) -> Vec<String> {
    let operations = ["api=b user=", "api=both user=", "api=watched user=", "api=plain user=", "api=tenants tenant="];
    let about = |command: &str, options: &str| {
        let pairs = operations.map(|pairs| format!("{command} {pairs}{actor}{options}"));
        pairs.into_iter().chain([format!("{command} other={actor}{options}")]).collect()
    };
    match command {
        "divvy.hit" | "divvy.charge" | "divvy.refund" => {
            let mut requests: Vec<_> = about(command, " COST 3");
            requests.extend(about(command, " ID x"));
            requests
        }
        "divvy.peek" | "divvy.reset" | "divvy.explain" => about(command, ""),
        "divvy.reserve" => about(command, " AMOUNT 1 TTL 5"),
        "divvy.commit" => vec![format!("{command} {id} COST 1")],
        "divvy.release" | "divvy.renew" => vec![format!("{command} {id}")],
        "divvy.counters" | "divvy.forget" => {
            let rules = ["b-user", "b-second", "c-canary", "rule-8", "default", "api=b user=*", "no-such"];
            rules.iter().map(|rule| format!("{command} {rule} ACTOR {actor}")).collect()
        }
        "divvy.top" => ["b-tenant", "default", "no-such", "api=tenants tenant=*"]
            .map(|rule| format!("{command} {rule} TAKEN"))
            .to_vec(),
        "divvy.status" => vec![format!("{command} tenant={actor}"), format!("{command} user={actor} tenant={actor}")],
        "divvy.limit|set" => {
            vec![format!("DIVVY.LIMIT SET b-user {actor} 5"), format!("DIVVY.LIMIT SET no-such {actor} 5")]
        }
        "divvy.limit|get" => vec![format!("DIVVY.LIMIT GET b-user {actor}")],
        "divvy.limit|del" => vec![format!("DIVVY.LIMIT DEL b-user {actor}")],
        "divvy.block|set" | "divvy.allow|set" | "divvy.block|get" | "divvy.allow|get" | "divvy.block|del"
        | "divvy.allow|del" => {
            let command = command.replace('|', " ");
            vec![format!("{command} b-user {actor}"), format!("{command} * user={actor}")]
        }
        "divvy.limit|list" | "divvy.block|list" | "divvy.allow|list" | "divvy.rules" => Vec::new(),
        "rl.reduce" | "rl.get" | "rl.sessionize" | "rl.preduce" | "rl.pget" | "rl.psessionize" => {
            vec![format!("{command} {actor} 10 60")]
        }
        "cl.throttle" => vec![format!("{command} {actor} 1 1 60")],
        other => panic!("this test has no request of {other}"),
    }
}

/// Users who may use only a part of the rules, or only the actor `ann`.
const RESTRICTED: [&str; 3] = ["a", "ann", "nothing"];

/// Returns the names of the commands that have an effect only on rules in scope.
fn scoped_commands() -> Vec<String> {
    let scoped = [Category::Hit, Category::Read, Category::Status, Category::Limits, Category::Block, Category::Forget];
    let nested = offered(COMMANDS).flat_map(|spec| offered(spec.subcommands).map(move |sub| (Some(spec), sub)));
    let rows = offered(COMMANDS).map(|spec| (None, spec)).chain(nested);
    rows.filter(|(_, spec)| scoped.contains(&spec.category)).map(|(parent, spec)| spec.full_name(parent)).collect()
}

#[test]
fn commands_out_of_scope_are_refused_and_take_nothing() {
    let (_rules, guarded) = guarded(&users());
    let ids = fill(&guarded);
    let before = state(&guarded);
    let (commands, mut sent) = (scoped_commands(), 0);
    assert!(commands.len() > 20, "{commands:?}");
    for user in RESTRICTED {
        let (mut client, mut transactions) = (guarded.resp(user), guarded.resp(user));
        for command in &commands {
            for (actor, id) in [(KNOWN, &ids.open), (UNKNOWN, &ids.released)] {
                let requests = requests(command, actor, id);
                for request in &requests {
                    assert_eq!(client.command(request), format!("-NOPERM {REFUSED}"), "{user}: {request}");
                }
                sent += requests.len();
                assert_eq!(transactions.command("MULTI"), "OK");
                for request in &requests {
                    assert_eq!(transactions.command(request), "QUEUED", "{user}: {request}");
                }
                let replies = vec![format!("-NOPERM {REFUSED}"); requests.len()];
                assert_eq!(transactions.command("EXEC"), format!("[{}]", replies.join(" ")), "{user}: {command}");
            }
        }
    }
    assert!(sent > 400, "{sent}");
    assert_eq!(state(&guarded), before);
}

#[test]
fn commands_in_scope_are_served() {
    let (_rules, guarded) = guarded(&users());
    let ids = fill(&guarded);
    let mut ann = guarded.resp("ann");
    assert_eq!(ann.command("DIVVY.HIT api=a user=ann"), "[1 998 86400]");
    assert_eq!(ann.command("DIVVY.HIT api=b user=ann"), "[1 898 86400]");
    let mut a = guarded.resp("a");
    assert_eq!(a.command("DIVVY.HIT api=a user=bob"), "[1 898 86400]");
    assert_eq!(a.command("DIVVY.RESET api=a user=bob"), "1");
    assert_eq!(guarded.resp("labels").command("DIVVY.HIT other=x"), "[1 999 86400]");
    assert_eq!(guarded.resp("labels").command("CL.THROTTLE x 1 1 60"), format!("-NOPERM {REFUSED}"));
    assert_eq!(guarded.resp("labels").command(&format!("DIVVY.RELEASE {}", ids.open)), "1");
}

/// Returns which labels of the rules occur in a reply.
fn labels_in(reply: &str) -> Vec<&'static str> {
    LABELS.into_iter().filter(|label| reply.contains(label)).collect()
}

#[test]
fn listings_have_what_is_in_scope() {
    let (_rules, guarded) = guarded(&users());
    fill(&guarded);
    let list = |user: &str, command: &str| guarded.resp(user).command(command);
    assert_eq!(labels_in(&list("all", "DIVVY.RULES")), LABELS);
    assert_eq!(labels_in(&list("a", "DIVVY.RULES")), ["a-user", "a-first", "a-watched"]);
    assert_eq!(labels_in(&list("ann", "DIVVY.RULES")), LABELS[..6], "not the rule by tenant");
    assert_eq!(list("nothing", "DIVVY.RULES"), "[]");

    let status = "DIVVY.STATUS user=bob";
    assert_eq!(labels_in(&list("all", status)), LABELS[..6]);
    assert_eq!(labels_in(&list("a", status)), ["a-user", "a-first", "a-watched"]);
    let status = "DIVVY.STATUS user=ann";
    assert_eq!(labels_in(&list("ann", status)), ["a-user", "b-user"]);
    assert_eq!(labels_in(&list("a", status)), ["a-user"]);
    for (user, actor) in [("ann", "user=bob"), ("nothing", "user=ann"), ("a", "tenant=bob"), ("a", "no=such")] {
        assert_eq!(list(user, &format!("DIVVY.STATUS {actor}")), format!("-NOPERM {REFUSED}"), "{user}: {actor}");
    }
    assert!(list("all", "DIVVY.STATUS no=such").starts_with("-ERR no rule counts by exactly no"));

    let limits = "DIVVY.LIMIT LIST";
    assert_eq!(list("all", limits).matches(" 900 ").count(), 3);
    assert_eq!(list("a", limits), "[0 [[a-user bob 900 -1 0]]]");
    assert_eq!(list("ann", limits), "[0 [[b-user ann 900 -1 0]]]");
    assert_eq!(list("nothing", limits), "[0 []]");
    assert_eq!(list("a", "DIVVY.LIMIT LIST RULE b-user"), format!("-NOPERM {REFUSED}"));

    assert!(list("all", "DIVVY.COUNTERS b-user").contains("bob"));
    let counters = list("ann", "DIVVY.COUNTERS b-user");
    assert!(counters.contains("ann") && !counters.contains("bob"), "{counters}");
    let (top, other) = ("DIVVY.TOP b-user TAKEN", "DIVVY.TOP a-user TAKEN");
    assert!(list("all", top).contains("bob"));
    let own = list("ann", top);
    assert!(own.contains("ann") && !own.contains("bob"), "{own}");
    assert!(list("a", other).contains("bob"));
    assert_eq!(list("a", top), format!("-NOPERM {REFUSED}"));
    let explained = list("a", "DIVVY.EXPLAIN api=a user=ann");
    assert_eq!(labels_in(&explained), ["a-user"]);
}

#[test]
fn line_protocol_has_the_scope_of_the_user_default() {
    let (_rules, guarded) = guarded(&users());
    fill(&guarded);
    let before = state(&guarded);
    let mut client = LineClient::connect(guarded.server.line);
    client.send(format!("AUTH {}\n", password("default")).as_bytes());
    assert_eq!(client.read_line(), "OK\n");
    for actor in [KNOWN, UNKNOWN] {
        for pairs in ["api=b user=", "api=both user=", "api=watched user=", "api=plain user=", "other="] {
            client.send(format!("HIT {pairs}{actor}\n").as_bytes());
            assert_eq!(client.read_line(), format!("ERR unknown \"{REFUSED}\"\n"), "{pairs}{actor}");
        }
    }
    assert_eq!(state(&guarded), before);
    client.send(b"HIT api=a user=eve\nHIT api=b user=eve\nHIT api=a user=eve\n");
    let replies: Vec<_> = (0..3).map(|_| client.read_line()).collect();
    assert_eq!(replies[0], "OK true 999 86400\n");
    assert!(replies[1].starts_with("ERR unknown"));
    assert_eq!(replies[2], "OK true 998 86400\n");
}

#[test]
fn users_of_one_pipeline_have_their_own_scopes() {
    let (_rules, guarded) = guarded(&users());
    let login = |name: &str| format!("AUTH {name} \"{}\"\r\n", password(name));
    let hits = "DIVVY.HIT api=a user=ann\r\nDIVVY.HIT api=b user=ann\r\n";
    let mut client = RespClient::connect(guarded.server.resp);
    let users = ["all", "a", "ann", "nothing", "labels"];
    client.send(users.map(|name| login(name) + hits).concat().as_bytes());
    let served = |client: &mut RespClient| client.read_reply().starts_with("[1 ");
    for (name, expected) in users.into_iter().zip([[true; 2], [true, false], [true; 2], [false; 2], [true; 2]]) {
        assert_eq!(client.read_reply(), "OK", "{name}");
        assert_eq!([served(&mut client), served(&mut client)], expected, "{name}");
    }
}

#[test]
fn records_of_other_users_are_refused_by_their_ids() {
    let (_rules, guarded) = guarded(&users());
    let ids = fill(&guarded);
    let Ids { open, released } = &ids;
    for user in RESTRICTED {
        let mut client = guarded.resp(user);
        for id in [open, released] {
            for request in [
                format!("DIVVY.COMMIT {id} COST 900"),
                format!("DIVVY.RENEW {id} TTL 60"),
                format!("DIVVY.RELEASE {id}"),
            ] {
                assert_eq!(client.command(&request), format!("-NOPERM {REFUSED}"), "{user}: {request}");
            }
        }
        let forged = format!("{}x", &open[..open.len() - 1]);
        assert!(client.command(&format!("DIVVY.RELEASE {forged}")).starts_with("-ERR"), "a seal is checked first");
    }
    assert_eq!(guarded.resp("all").command(&format!("DIVVY.COMMIT {open} COST 2")), "[897 86400 settled]");
}
