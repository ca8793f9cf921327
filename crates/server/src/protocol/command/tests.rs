use super::hit_commands::{not_a_pair, not_utf8, repeated};
use super::*;
use crate::protocol::resp::{Decoder, Limits, QueuedRequest, ReplyWriter, write_request};
use divvy_core::rules::Operation;
use proptest::prelude::*;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame as Frame;

/// Returns the result of `check` for the command in `arguments`.
pub(super) fn with_command<A: AsRef<[u8]>, R>(
    arguments: &[A],
    check: impl FnOnce(Result<Command, CommandError>) -> R,
) -> R {
    with_request(arguments, |request| check(Command::parse(request)))
}

/// Calls `check` with a request of these arguments.
fn with_request<A: AsRef<[u8]>, R>(arguments: &[A], check: impl FnOnce(Arguments) -> R) -> R {
    let mut bytes = Vec::new();
    write_request(&mut bytes, arguments);
    let mut decoder = Decoder::new(Limits::default());
    decoder.decode(&bytes).unwrap().unwrap();
    check(decoder.arguments(&bytes))
}

fn words(request: &str) -> Vec<&str> {
    request.split(' ').collect()
}

fn error(request: &str) -> String {
    with_command(&words(request), |command| command.unwrap_err().to_string())
}

/// Returns the elements of the array that answers a question about commands. A map has its names and values in turn.
fn described(request: &str) -> Vec<Frame> {
    with_command(&words(request), |command| {
        let Ok(Command::Describe(question)) = command else { panic!("{command:?}") };
        let mut out = Vec::new();
        describe::write(&mut ReplyWriter::new(&mut out, Version::Resp2), question);
        let (frame, consumed) = decode(&out).unwrap().unwrap();
        assert_eq!(consumed, out.len());
        elements(&frame)
    })
}

fn elements(frame: &Frame) -> Vec<Frame> {
    let Frame::Array(elements) = frame else { panic!("{frame:?}") };
    elements.clone()
}

fn text(frame: &Frame) -> String {
    let Frame::BulkString(text) = frame else { panic!("{frame:?}") };
    String::from_utf8(text.clone()).unwrap()
}

#[test]
fn errors_have_the_wording_of_redis() {
    let long = "x".repeat(1000);
    for (request, expected) in [
        ("FOO a b", "ERR unknown command 'FOO'"),
        (&long, &format!("ERR unknown command '{}'", &long[..MAX_ECHOED])),
        ("DIVVY.RULES x", "ERR wrong number of arguments for 'divvy.rules' command"),
        ("PING a b", "ERR wrong number of arguments for 'ping' command"),
        ("RL.GET k 5", "ERR wrong number of arguments for 'rl.get' command"),
        ("CL.THROTTLE k 5 1 60 1 1", "ERR wrong number of arguments for 'cl.throttle' command"),
        ("CLIENT", "ERR wrong number of arguments for 'client' command"),
        ("CLIENT foo", "ERR unknown subcommand 'foo' of CLIENT"),
        ("client ID x", "ERR wrong number of arguments for 'client|id' command"),
        ("COMMAND LIST a", "ERR wrong number of arguments for 'command|list' command"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO x", "ERR Protocol version is not an integer or out of range"),
        ("HELLO 2 FOO", "ERR Syntax error in HELLO option 'FOO'"),
        ("HELLO 2 AUTH a", "ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 2 SETNAME \u{1}", "ERR Client names cannot contain spaces, newlines or special characters."),
        ("AUTH a b c", "ERR syntax error"),
        ("SELECT x", "ERR value is not an integer or out of range"),
        ("SELECT 1", "ERR DB index is out of range"),
        ("CLIENT SETINFO foo bar", "ERR Unrecognized option 'foo'"),
        ("CLIENT SETINFO lib-ver 1\n", "ERR lib-ver cannot contain spaces, newlines or special characters."),
    ] {
        assert_eq!(error(request), expected, "{request}");
    }
}

#[test]
fn names_and_options_ignore_case() {
    with_command(&words("hello 2 auth ann secret SetName me"), |command| {
        let Ok(Command::Hello(hello)) = command else { panic!("{command:?}") };
        let credentials = Some(Credentials { user: Some(b"ann"), password: b"secret" });
        assert_eq!(hello, Hello { version: Some(Version::Resp2), credentials, name: Some(b"me") });
        assert!(!format!("{hello:?}").contains("secret"));
    });
    with_command(&words("Client SetInfo LIB-NAME redis-py"), |command| {
        assert!(matches!(command, Ok(Command::ClientSetInfo(LibraryInfo::Name(b"redis-py")))), "{command:?}");
    });
}

#[test]
fn pairs_of_every_command_are_counted_before_it_is_queued() {
    let mut counted = Vec::new();
    for row in command_rows::commands() {
        for options in [&[][..], &["AMOUNT", "1", "TTL", "1"]] {
            let name = row.full_name();
            let request = [&[&*name, "a=1", "b=2", "c=3"][..], options].concat();
            let has_pairs = with_command(&request, |command| {
                let Ok(command) = command else { return false };
                let has_pairs = match command {
                    Command::Operate(endpoint, _) => {
                        endpoint.fields.iter().any(|field| matches!(field.kind, Kind::Pairs | Kind::Rule))
                    }
                    other => format!("{other:?}").contains("Pairs("),
                };
                assert_eq!(command.check_count(2).is_err(), has_pairs, "{command:?}");
                has_pairs
            });
            counted.extend(has_pairs.then_some(name));
        }
    }
    for name in ["divvy.hit", "divvy.reserve", "divvy.explain"] {
        assert!(counted.iter().any(|counted| counted == name), "{name} of {counted:?}");
    }
}

#[test]
fn table_describes_every_command() {
    let all = described("COMMAND");
    let names: Vec<_> = all.iter().map(|info| text(&elements(info)[0])).collect();
    assert_eq!(names, described("COMMAND LIST").iter().map(text).collect::<Vec<_>>());
    assert!(all.iter().all(|info| elements(info).len() == 10));
    let docs = described("COMMAND DOCS");
    assert_eq!(docs.iter().step_by(2).map(text).collect::<Vec<_>>(), names);

    let infos = described("COMMAND INFO PING nope config|GET");
    assert_eq!([text(&elements(&infos[0])[0]), text(&elements(&infos[2])[0])], ["ping", "config|get"]);
    assert_eq!(infos[1], Frame::Null);
    let docs = described("COMMAND DOCS nope client");
    assert_eq!(text(&docs[0]), "client");
    let fields: Vec<_> = elements(&docs[1]).iter().step_by(2).map(text).collect();
    assert_eq!(fields, ["summary", "since", "group", "subcommands"]);
}

#[test]
fn optional_commands_of_redis_are_unknown_and_not_listed() {
    for (request, expected) in [
        ("CLIENT Maint_Notifications ON", "ERR unknown subcommand 'Maint_Notifications' of CLIENT"),
        ("client tracking on", "ERR unknown subcommand 'tracking' of CLIENT"),
        ("READONLY", "ERR unknown command 'READONLY'"),
        ("cluster NODES", "ERR unknown command 'cluster'"),
        ("CLIENT SETINFO x y", "ERR Unrecognized option 'x'"),
    ] {
        assert_eq!(error(request), expected);
        with_request(&words(request), |request| assert!(command_rows::is_optional(request), "{expected}"));
    }
    for request in ["NONSENSE", "CLIENT NONSENSE", "CLIENT", "PING a b", "DIVVY.HIT a"] {
        with_request(&words(request), |request| assert!(!command_rows::is_optional(request)));
    }
    let listed = format!("{:?}", (described("COMMAND LIST"), described("COMMAND DOCS client")));
    let names = command_rows::commands().map(|row| row.full_name()).collect::<Vec<_>>();
    assert!(names.iter().all(|name| name != "readonly") && !listed.contains("maint_notifications"), "{listed}");
    assert_eq!(described("COMMAND INFO readonly"), [Frame::Null]);
}

#[test]
fn table_is_well_formed() {
    for row in command_rows::rows() {
        let name = row.full_name();
        assert_eq!(name, name.to_lowercase());
        let is_declined = row.support == command_rows::Support::Declined;
        assert_eq!(command_rows::find_full(name.to_uppercase().as_bytes()).is_none(), is_declined, "{name}");
        assert!(row.arity != 0 && row.summary.is_empty() == is_declined, "{name}");
        assert_eq!(command_rows::rows().filter(|other| other.full_name() == name).count(), 1, "{name}");
        // Too few arguments never reach a parser, and enough of them always give a command or an error.
        let names: Vec<_> = name.split('|').collect();
        let enough = vec!["0"; usize::try_from(row.arity.unsigned_abs()).unwrap().saturating_sub(names.len())];
        let request = [names, enough].concat();
        with_command(&request, |command| {
            assert!(!command.is_err_and(|error| error.mistake == Mistake::WrongArity), "{request:?}");
        });
    }
}

proptest! {
    #[test]
    fn any_arguments_are_a_command_or_an_error(
        index in 0..command_rows::commands().count(),
        rest in prop::collection::vec(prop_oneof![
            prop::sample::select(vec!["info", "get", "docs", "setinfo", "AUTH", "3", "a=b"]).prop_map(|word| word.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..6),
        ], 0..5),
    ) {
        let name = command_rows::commands().nth(index).unwrap().full_name();
        let arguments = [vec![name.as_bytes().to_vec()], rest].concat();
        with_command(&arguments, |command| {
            let message = command.err().map(|error| error.to_string()).unwrap_or_else(|| "ERR".to_owned());
            assert!(message.starts_with("ERR") || message.starts_with("NOPROTO"), "{message}");
        });
    }

    /// Each argument must be UTF-8, is split at its first `=`, and has a new field. The first invalid argument is the error.
    #[test]
    fn pairs_follow_the_definition(arguments in prop::collection::vec(
        prop_oneof![
            4 => "[ab]{0,2}=[ab=ü]{0,3}".prop_map(String::into_bytes),
            1 => prop::collection::vec(prop::sample::select(vec![b'=', b'a', 0xc3, 0xbc, 0xff]), 0..4),
        ],
        1..6,
    )) {
        let mut fields = std::collections::HashSet::new();
        let defined: Result<Vec<_>, CommandError> = arguments.iter().map(|argument| {
            let text = str::from_utf8(argument).map_err(|_| not_utf8(argument))?;
            let (field, value) = text.split_once('=').ok_or_else(|| not_a_pair(argument))?;
            if !fields.insert(field) {
                return Err(repeated(field.as_bytes()));
            }
            Ok((field.to_owned(), value.to_owned()))
        }).collect();

        let read = |request: Arguments| {
            let Ok(Command::Ask(Intent::Hit, PricedOperation { pairs, .. })) = Command::parse(request) else { panic!("a hit") };
            let mut operation = Operation::new();
            pairs.read_into(&mut operation, 6)?;
            Ok(operation.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
        };
        // Arguments may be apart, as in an array, or adjacent, as in a queue.
        let request = [vec![b"DIVVY.HIT".to_vec()], arguments].concat();
        with_request(&request, |request| {
            assert_eq!(read(request), defined);
            assert_eq!(read(QueuedRequest::new(request).arguments()), defined);
        });
    }
}

/// Returns the number of pairs and the options of a request, or the error.
fn options(request: &str) -> String {
    let length = |pairs: Pairs| {
        let mut operation = Operation::new();
        pairs.read_into(&mut operation, 8).map(|()| operation.iter().len())
    };
    let read = with_command(&words(request), |command| {
        Ok::<_, CommandError>(match command? {
            Command::Ask(Intent::Hit | Intent::Peek, PricedOperation { pairs, cost, .. }) => {
                format!("{} {cost:?}", length(pairs)?)
            }
            Command::Reserve(pairs, Reserve { credits, ttl_seconds, id }) => {
                let id = id.map(|id| id.escape_ascii().to_string());
                format!("{} {credits} {ttl_seconds:?} {id:?}", length(pairs)?)
            }
            Command::Settle(id, Settlement::Commit { cost }) => format!("{} {cost}", id.escape_ascii()),
            Command::Settle(id, Settlement::Release) => id.escape_ascii().to_string(),
            Command::Settle(id, Settlement::Renew { ttl_seconds }) => format!("{} {ttl_seconds:?}", id.escape_ascii()),
            other => panic!("{other:?}"),
        })
    });
    read.unwrap_or_else(|error| error.to_string())
}

#[test]
fn options_follow_the_pairs() {
    let largest = i64::MAX;
    for (request, expected) in [
        ("DIVVY.HIT a=b COST 5", "1 Some(5)"),
        ("DIVVY.PEEK a=b c=d cost 0", "2 Some(0)"),
        (&format!("DIVVY.HIT COST {largest}"), &format!("0 Some({largest})")),
        ("DIVVY.HIT COST=5", "1 None"),
        ("DIVVY.HIT COST=1 COST 2", "1 Some(2)"),
        ("DIVVY.RESERVE a=b c=d AMOUNT 5 TTL 30", "2 5 Some(30) None"),
        ("divvy.reserve AMOUNT=1 ID=x ttl 30 id a=b amount 5", "2 5 Some(30) Some(\"a=b\")"),
        ("DIVVY.RESERVE a=b AMOUNT 1 TTL 1 ID ID", "1 1 Some(1) Some(\"ID\")"),
        (&format!("DIVVY.RESERVE a=b AMOUNT {largest} TTL {largest}"), &format!("1 {largest} Some({}) None", u32::MAX)),
        ("DIVVY.RESERVE AMOUNT 1 ID x", "0 1 None Some(\"x\")"),
        ("divvy.commit x cost 7", "x 7"),
        ("DIVVY.RELEASE x", "x"),
        ("DIVVY.RENEW x ttl 9", "x Some(9)"),
        ("DIVVY.RENEW x", "x None"),
    ] {
        assert_eq!(options(request), expected, "{request}");
    }
}

#[test]
fn every_mistake_in_options_is_reported() {
    for (request, error) in [
        ("DIVVY.HIT a=b COST", "got 'COST'; an option comes once, after all pairs and with its value"),
        ("DIVVY.HIT COST 1 a=b", "got 'COST'; an option comes once"),
        ("DIVVY.PEEK a=b COST 1 COST 2", "got 'COST'; an option comes once"),
        ("DIVVY.HIT a=b COST COST 2", "got 'COST'; an option comes once"),
        ("DIVVY.PEEK a=b ID x", "ERR DIVVY.PEEK takes no ID"),
        ("DIVVY.HIT a=b REPLY XML", "ERR REPLY must be JSON"),
        ("DIVVY.HIT a=b COST c=d", "COST is 'c=d', but must be a whole number"),
        ("DIVVY.HIT a=b COST 9223372036854775808", "COST is '9223372036854775808', but must be a whole number"),
        ("DIVVY.HIT a=b COST +1", "COST is '+1', but must be a whole number"),
        ("DIVVY.COMMIT x", "wrong number of arguments"),
        ("DIVVY.RELEASE x y", "wrong number of arguments"),
        ("DIVVY.RESERVE a=b c=d TTL 5", "ERR DIVVY.RESERVE needs AMOUNT n after all pairs"),
        ("DIVVY.RESERVE a=b c=d e=f g=h", "ERR DIVVY.RESERVE needs AMOUNT n after all pairs"),
        (
            "DIVVY.RESERVE a=b AMOUNT 5 TTL 1 COST 2",
            "ERR 'COST' is not an option here; the command is DIVVY.RESERVE key",
        ),
        ("DIVVY.RESERVE a=b AMOUNT 5 TTL 1 ID", "ERR 'ID' is not an option here"),
        ("DIVVY.RESERVE a=b AMOUNT 5 TTL 1 TTL 2", "ERR 'TTL' is not an option here"),
        ("DIVVY.RESERVE AMOUNT 5 TTL 1 a=b c", "ERR 'a=b' is not an option here"),
        ("DIVVY.RESERVE a=b AMOUNT 0 TTL 1", "AMOUNT is '0', but must be a whole number from 1 to 9223372036854775807"),
        ("DIVVY.RESERVE a=b AMOUNT 5 TTL -1", "ERR TTL is '-1', but must be a whole number from 1"),
        ("DIVVY.COMMIT x COST -1", "ERR COST is '-1', but must be a whole number from 0"),
        ("DIVVY.COMMIT x AMOUNT 1", "ERR 'AMOUNT' is not an option here; the command is DIVVY.COMMIT id COST n"),
        ("DIVVY.RENEW x 5 TTL", "ERR '5' is not an option here; the command is DIVVY.RENEW id [TTL seconds]"),
    ] {
        assert!(options(request).contains(error), "{request}: {}", options(request));
    }
}
