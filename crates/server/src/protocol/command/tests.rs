use super::hit_commands::{not_a_pair, not_utf8, repeated};
use super::*;
use crate::protocol::resp::{Decoder, Limits, Queue, ReplyWriter};
use crate::protocol::resp::{
    tests::{Frame, decode_reply},
    write_request,
};
use divvy_core::rules::Operation;
use proptest::prelude::*;

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

/// Returns the command in `request`, in its debug format.
fn parsed(request: &str) -> String {
    with_command(&request.split(' ').collect::<Vec<_>>(), |command| format!("{:?}", command.unwrap()))
}

fn error(request: &str) -> String {
    with_command(&request.split(' ').collect::<Vec<_>>(), |command| command.unwrap_err().to_string())
}

fn pairs_of<A: AsRef<[u8]>>(arguments: &[A], max_pairs: usize) -> Result<Operation, CommandError> {
    with_command(arguments, |command| match command.unwrap() {
        Command::Hit(PricedOperation { pairs, .. })
        | Command::Peek(PricedOperation { pairs, .. })
        | Command::Explain(pairs) => {
            let mut operation = Operation::new();
            pairs.read_into(&mut operation, max_pairs).map(|()| operation)
        }
        other => panic!("{other:?}"),
    })
}

fn described(request: &[&str], version: Version) -> Frame {
    with_command(request, |command| {
        let Ok(Command::Describe(question)) = command else { panic!("{command:?}") };
        let mut out = Vec::new();
        describe::write(&mut ReplyWriter::new(&mut out, version), question);
        let (frame, consumed) = decode_reply(&out, version);
        assert_eq!(consumed, out.len());
        frame
    })
}

/// Returns the elements of an array, or the keys and values of a map in turn.
fn elements(frame: &Frame) -> Vec<Frame> {
    match frame {
        Frame::Array { data, .. } => data.clone(),
        Frame::Map { data, .. } => data.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect(),
        other => panic!("{other:?}"),
    }
}

fn text(frame: &Frame) -> String {
    match frame {
        Frame::BlobString { data, .. } | Frame::SimpleString { data, .. } => String::from_utf8(data.clone()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_have_the_wording_of_redis() {
    let rows = [
        ("FOO a b", "ERR unknown command 'FOO', with args beginning with: 'a' 'b' "),
        ("DIVVY.RULES x", "ERR wrong number of arguments for 'divvy.rules' command"),
        ("PING a b", "ERR wrong number of arguments for 'ping' command"),
        ("RL.GET k 5", "ERR wrong number of arguments for 'rl.get' command"),
        ("CL.THROTTLE k 5 1 60 1 1", "ERR wrong number of arguments for 'cl.throttle' command"),
        ("CLIENT", "ERR wrong number of arguments for 'client' command"),
        ("CLIENT foo", "ERR unknown subcommand 'foo'. Try CLIENT HELP."),
        ("client ID x", "ERR wrong number of arguments for 'client|id' command"),
        ("CONFIG GET", "ERR wrong number of arguments for 'config|get' command"),
        ("CONFIG foo", "ERR unknown subcommand 'foo'. Try CONFIG HELP."),
        ("COMMAND COUNT a", "ERR wrong number of arguments for 'command|count' command"),
        ("COMMAND foo", "ERR unknown subcommand 'foo'. Try COMMAND HELP."),
        ("COMMAND LIST a", "ERR syntax error"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO x", "ERR Protocol version is not an integer or out of range"),
        ("HELLO 2 FOO", "ERR Syntax error in HELLO option 'FOO'"),
        ("HELLO 2 AUTH a", "ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 2 SETNAME \u{1}", "ERR Client names cannot contain spaces, newlines or special characters."),
        ("AUTH", "ERR wrong number of arguments for 'auth' command"),
        ("AUTH a b c", "ERR syntax error"),
        ("SELECT x", "ERR value is not an integer or out of range"),
        ("SELECT 1", "ERR DB index is out of range"),
        ("CLIENT SETINFO foo bar", "ERR Unrecognized option 'foo'"),
        ("CLIENT SETINFO lib-ver 1\n", "ERR lib-ver cannot contain spaces, newlines or special characters."),
    ];
    for (request, expected) in rows {
        assert_eq!(error(request), expected, "{request}");
    }
}

#[test]
fn error_echoes_no_more_than_a_line() {
    let long = "x".repeat(1000);
    let message = error(&format!("{long} {long} {long}"));
    assert!(message.len() < 350, "{message}");
}

#[test]
fn names_and_options_ignore_case() {
    for (request, expected) in [
        ("ping", "Ping(None)"),
        ("QUIT now", "Quit"),
        ("reset", "ResetConnection"),
        ("Select 0", "Select"),
        ("dbsize", "DbSize"),
        ("time", "Time"),
        ("divvy.Rules", "Rules"),
        ("client id", "ClientId"),
        ("CLIENT Info", "ClientInfo"),
        ("CLIENT GETNAME", "ClientGetName"),
        ("AUTH secret", "Auth(Credentials { user: None, .. })"),
        ("HELLO", "Hello(Hello { version: None, credentials: None, name: None })"),
        ("hello 3", "Hello(Hello { version: Some(Resp3), credentials: None, name: None })"),
    ] {
        assert_eq!(parsed(request), expected);
    }
    let hello = ["HELLO", "2", "auth", "ann", "secret", "SetName", "me"];
    with_command(&hello, |command| match command {
        Ok(Command::Hello(hello)) => {
            let credentials = Some(Credentials { user: Some(b"ann"), password: b"secret" });
            assert_eq!(hello, Hello { version: Some(Version::Resp2), credentials, name: Some(b"me") });
        }
        other => panic!("{other:?}"),
    });
    with_command(&["CLIENT", "SETINFO", "LIB-NAME", "redis-py"], |command| {
        assert!(matches!(command, Ok(Command::ClientSetInfo(LibraryInfo::Name(b"redis-py")))), "{command:?}");
    });
    with_command(&["config", "get", "save", "append*"], |command| match command {
        Ok(Command::ConfigGet(patterns)) => assert!(patterns.iter().eq([&b"save"[..], b"append*"])),
        other => panic!("{other:?}"),
    });
}

#[test]
fn pairs_are_split_at_their_first_equals_sign() {
    let operation = pairs_of(&["DIVVY.HIT", "a=b=c", "=\"x y\"", "ü="], 4).unwrap();
    assert!(operation.iter().eq([("a", "b=c"), ("", "\"x y\""), ("ü", "")]));
    let message = |arguments: &[&[u8]]| pairs_of(arguments, 2).unwrap_err().to_string();
    assert_eq!(message(&[b"DIVVY.PEEK", b"a=1", b"b"]), "ERR expected key=value, got 'b'");
    assert_eq!(message(&[b"DIVVY.EXPLAIN", b"a=\xff"]), "ERR 'a=\u{fffd}' is not valid UTF-8");
    assert_eq!(message(&[b"DIVVY.EXPLAIN", b"a=1", b"b=2", b"a=3"]), "ERR more than 2 pairs");
    assert_eq!(message(&[b"DIVVY.HIT", b"a=1", b"a=1"]), "ERR the field 'a' is given twice");
}

#[test]
fn pairs_of_every_command_are_counted_before_it_is_queued() {
    let mut counted = Vec::new();
    for row in command_rows::all_commands() {
        for options in [&[][..], &["AMOUNT", "1", "TTL", "1"]] {
            let request = [&[row.name(), "a=1", "b=2", "c=3"][..], options].concat();
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
            counted.extend(has_pairs.then_some(row.name()));
        }
    }
    for name in ["divvy.hit", "divvy.reserve", "divvy.explain"] {
        assert!(counted.contains(&name), "{name} of {counted:?}");
    }
}

#[test]
fn table_describes_every_command() {
    for version in [Version::Resp2, Version::Resp3] {
        let all = elements(&described(&["COMMAND"], version));
        assert_eq!(
            described(&["COMMAND", "COUNT"], version),
            Frame::Number { data: all.len() as i64, attributes: None }
        );
        let names: Vec<_> = all.iter().map(|info| text(&elements(info)[0])).collect();
        let listed: Vec<_> = elements(&described(&["COMMAND", "LIST"], version)).iter().map(text).collect();
        assert_eq!(names, listed);
        assert!(all.iter().all(|info| elements(info).len() == 10));

        let docs = elements(&described(&["COMMAND", "DOCS"], version));
        assert_eq!(docs.len(), 2 * names.len());
        assert!(names.iter().all(|name| docs.iter().step_by(2).any(|key| text(key) == *name)));
    }
}

#[test]
fn commands_are_described_by_name() {
    let infos = elements(&described(&["COMMAND", "INFO", "PING", "nope", "config|GET"], Version::Resp2));
    assert_eq!(text(&elements(&infos[0])[0]), "ping");
    assert_eq!(infos[1], Frame::Null);
    assert_eq!(text(&elements(&infos[2])[0]), "config|get");

    let docs = elements(&described(&["COMMAND", "DOCS", "nope", "client"], Version::Resp2));
    assert_eq!(text(&docs[0]), "client");
    let fields: Vec<_> = elements(&docs[1]).iter().step_by(2).map(text).collect();
    assert_eq!(fields, ["summary", "since", "group", "subcommands"]);
}

#[test]
fn commands_with_subcommands_help() {
    let lines: Vec<_> = elements(&described(&["config", "help"], Version::Resp2)).iter().map(text).collect();
    assert_eq!(
        lines,
        [
            "CONFIG <subcommand> [<argument> ...]. Subcommands are:",
            "GET",
            "    Returns the settings whose names match a glob pattern."
        ]
    );
}

#[test]
fn optional_commands_of_redis_are_unknown_and_not_listed() {
    let requests: [(&[&str], &str); 5] = [
        (&["CLIENT", "Maint_Notifications", "ON"], "ERR unknown subcommand 'Maint_Notifications'. Try CLIENT HELP."),
        (&["client", "tracking", "on"], "ERR unknown subcommand 'tracking'. Try CLIENT HELP."),
        (&["READONLY"], "ERR unknown command 'READONLY', with args beginning with: "),
        (&["cluster", "NODES"], "ERR unknown command 'cluster', with args beginning with: 'NODES' "),
        (&["CLIENT", "SETINFO", "x", "y"], "ERR Unrecognized option 'x'"),
    ];
    for (request, expected) in requests {
        with_request(request, |request| {
            assert_eq!(Command::parse(request).unwrap_err().to_string(), expected);
            assert!(command_rows::is_optional(request), "{expected}");
        });
    }
    for request in [&["NONSENSE"][..], &["CLIENT", "NONSENSE"], &["CLIENT"], &["PING", "a", "b"], &["DIVVY.HIT", "a"]] {
        with_request(request, |request| assert!(!command_rows::is_optional(request)));
    }
    let names = elements(&described(&["COMMAND", "LIST"], Version::Resp2)).iter().map(text).collect::<Vec<_>>();
    assert!(names.contains(&"role".to_owned()) && !names.contains(&"readonly".to_owned()), "{names:?}");
    let client = format!("{:?}", described(&["COMMAND", "DOCS", "client"], Version::Resp2));
    let help = format!("{:?}", described(&["CLIENT", "HELP"], Version::Resp2));
    assert_eq!(
        described(&["COMMAND", "INFO", "readonly"], Version::Resp2),
        described(&["COMMAND", "INFO", "x"], Version::Resp2)
    );
    for text in [client, help] {
        assert!(!text.to_lowercase().contains("maint_notifications"), "{text}");
    }
}

#[test]
fn table_is_well_formed() {
    for row in command_rows::all_commands().chain(command_rows::all_subcommands()) {
        let name = row.full_name();
        assert_eq!(name, name.to_lowercase());
        let is_declined = row.support == command_rows::Support::Declined;
        assert_eq!(command_rows::find_full(name.to_uppercase().as_bytes()).is_none(), is_declined, "{name}");
        assert!(row.arity != 0 && row.summary.is_empty() == is_declined, "{name}");
        let all = command_rows::all_commands().chain(command_rows::all_subcommands());
        assert_eq!(all.filter(|other| other.full_name() == name).count(), 1, "{name}");
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
        index in 0..command_rows::all_commands().count(),
        rest in prop::collection::vec(prop_oneof![
            prop::sample::select(vec!["info", "get", "docs", "setinfo", "AUTH", "3", "a=b"]).prop_map(|word| word.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..6),
        ], 0..5),
    ) {
        let arguments = [vec![command_rows::all_commands().nth(index).unwrap().name().as_bytes().to_vec()], rest].concat();
        with_command(&arguments, |command| {
            let message = command.err().map(|error| error.to_string()).unwrap_or_else(|| "ERR".to_owned());
            assert!(message.starts_with("ERR") || message.starts_with("NOPROTO"), "{message}");
        });
    }
}

proptest! {
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

        // Arguments may be apart, as in an array, or adjacent, as in a queue.
        let request = [vec![b"DIVVY.EXPLAIN".to_vec()], arguments].concat();
        prop_assert_eq!(&pairs_of(&request, 6).map(|operation| text_of(&operation)), &defined);
        let (mut bytes, mut decoder, mut queue) = (Vec::new(), Decoder::new(Limits::default()), Queue::default());
        write_request(&mut bytes, &request);
        decoder.decode(&bytes).unwrap().unwrap();
        queue.push(decoder.arguments(&bytes));
        let queued = queue.pop().unwrap();
        let Ok(Command::Explain(pairs)) = Command::parse(queued.arguments()) else { panic!("an EXPLAIN") };
        let mut operation = Operation::new();
        prop_assert_eq!(pairs.read_into(&mut operation, 6).map(|()| text_of(&operation)), defined);
    }
}

fn text_of(operation: &Operation) -> Vec<(String, String)> {
    operation.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn cost_may_follow_the_pairs() {
    let cost = |arguments: &[&str]| {
        with_command(arguments, |command| match command {
            Ok(Command::Hit(request) | Command::Peek(request)) => {
                let mut operation = Operation::new();
                request.pairs.read_into(&mut operation, 8).map_err(|error| error.to_string())?;
                Ok((operation.iter().len(), request.cost))
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        })
    };
    let largest = i64::MAX.to_string();
    for (arguments, pairs, expected) in [
        (&["DIVVY.HIT", "a=b", "COST", "5"][..], 1, Some(5)),
        (&["DIVVY.PEEK", "a=b", "c=d", "cost", "0"], 2, Some(0)),
        (&["DIVVY.HIT", "COST", &largest], 0, Some(i64::MAX as u64)),
        (&["DIVVY.HIT", "COST=5"], 1, None),
        (&["DIVVY.HIT", "COST=1", "COST", "2"], 1, Some(2)),
    ] {
        assert_eq!(cost(arguments), Ok((pairs, expected)), "{arguments:?}");
    }
    for arguments in [
        &["DIVVY.HIT", "a=b", "COST"][..],
        &["DIVVY.HIT", "COST"],
        &["DIVVY.HIT", "COST", "1", "a=b"],
        &["DIVVY.PEEK", "a=b", "COST", "1", "COST", "2"],
        &["DIVVY.HIT", "a=b", "COST", "COST", "2"],
    ] {
        assert!(cost(arguments).unwrap_err().contains("COST comes once, after all pairs"), "{arguments:?}");
    }
    for number in ["-1", "x", "1.5", "", "c=d", "9223372036854775808", "+1"] {
        let error = cost(&["DIVVY.HIT", "a=b", "COST", number]).unwrap_err();
        assert!(error.contains(&format!("COST is '{number}', but must be a whole number")), "{error}");
    }
}

/// Returns the arguments of a request about a reservation, or the error.
fn reservation(request: &str) -> String {
    with_command(&request.split(' ').collect::<Vec<_>>(), |command| match command {
        Ok(Command::Reserve(ReserveAsk { pairs, credits, ttl_seconds, id })) => {
            let (mut operation, id) = (Operation::new(), id.map(|id| id.escape_ascii().to_string()));
            pairs.read_into(&mut operation, 8).unwrap();
            format!("{} {credits} {ttl_seconds:?} {id:?}", operation.iter().len())
        }
        Ok(Command::Commit { id, cost }) => format!("{} {cost}", id.escape_ascii()),
        Ok(Command::Release(id)) => id.escape_ascii().to_string(),
        Ok(Command::Renew { id, ttl_seconds }) => format!("{} {ttl_seconds:?}", id.escape_ascii()),
        Ok(other) => panic!("{other:?}"),
        Err(error) => error.to_string(),
    })
}

#[test]
fn options_of_reservations_follow_the_pairs_in_any_order() {
    let largest = i64::MAX;
    for (request, expected) in [
        ("DIVVY.RESERVE a=b c=d AMOUNT 5 TTL 30", "2 5 Some(30) None"),
        ("divvy.reserve AMOUNT=1 ID=x ttl 30 id a=b amount 5", "2 5 Some(30) Some(\"a=b\")"),
        ("DIVVY.RESERVE AMOUNT 1 TTL 1", "0 1 Some(1) None"),
        ("DIVVY.RESERVE a=b AMOUNT 1 TTL 1 ID ID", "1 1 Some(1) Some(\"ID\")"),
        (&format!("DIVVY.RESERVE a=b AMOUNT {largest} TTL {largest}"), &format!("1 {largest} Some({}) None", u32::MAX)),
        ("DIVVY.COMMIT x COST 0", "x 0"),
        ("divvy.commit x cost 7", "x 7"),
        ("DIVVY.RELEASE x", "x"),
        ("DIVVY.RENEW x ttl 9", "x Some(9)"),
        ("DIVVY.RENEW x", "x None"),
        ("DIVVY.RESERVE a=b AMOUNT 1", "1 1 None None"),
        ("DIVVY.RESERVE AMOUNT 1 ID x", "0 1 None Some(\"x\")"),
    ] {
        assert_eq!(reservation(request), expected, "{request}");
    }
}

#[test]
fn every_mistake_in_a_reservation_is_reported() {
    for (request, error) in [
        ("DIVVY.RESERVE a=b", "wrong number of arguments"),
        ("DIVVY.COMMIT x", "wrong number of arguments"),
        ("DIVVY.RELEASE", "wrong number of arguments"),
        ("DIVVY.RELEASE x y", "wrong number of arguments"),
        ("DIVVY.RENEW", "wrong number of arguments"),
        ("DIVVY.RESERVE a=b c=d TTL 5", "ERR DIVVY.RESERVE needs AMOUNT n after all pairs"),
        ("DIVVY.RESERVE a=b c=d e=f g=h", "ERR DIVVY.RESERVE needs AMOUNT n after all pairs"),
        ("DIVVY.RESERVE a=b AMOUNT 5 TTL 1 COST 2", "ERR 'COST' is not an option here; DIVVY.RESERVE takes key=value"),
        ("DIVVY.RESERVE a=b AMOUNT 5 TTL 1 ID", "ERR 'ID' is not an option here"),
        ("DIVVY.RESERVE a=b AMOUNT 5 TTL 1 TTL 2", "ERR 'TTL' is not an option here"),
        ("DIVVY.RESERVE a AMOUNT 5 TTL 1", "ERR 'a' is not an option here"),
        ("DIVVY.RESERVE AMOUNT 5 TTL 1 a=b c", "ERR 'a=b' is not an option here"),
        (
            "DIVVY.RESERVE a=b AMOUNT 0 TTL 1",
            "ERR AMOUNT is '0', but must be a whole number from 1 to 9223372036854775807",
        ),
        ("DIVVY.RESERVE a=b AMOUNT 5 TTL -1", "ERR TTL is '-1', but must be a whole number from 1"),
        ("DIVVY.COMMIT x COST -1", "ERR COST is '-1', but must be a whole number from 0"),
        ("DIVVY.COMMIT x AMOUNT 1", "ERR 'AMOUNT' is not an option here; the command is DIVVY.COMMIT id COST n"),
        ("DIVVY.RENEW x TTL many", "ERR TTL is 'many'"),
        ("DIVVY.RENEW x 5 TTL", "ERR '5' is not an option here; the command is DIVVY.RENEW id [TTL seconds]"),
    ] {
        assert!(reservation(request).contains(error), "{request}: {}", reservation(request));
    }
}

#[test]
fn own_commands_are_suggested() {
    for (name, meant) in [
        ("HIT", "divvy.hit"),
        ("peek", "divvy.peek"),
        ("DIVVY.HITS", "divvy.hit"),
        ("DIVVY_HIT", "divvy.hit"),
        ("divvy.counter", "divvy.counters"),
        ("DIVVY.RESERV", "divvy.reserve"),
    ] {
        assert_eq!(command_rows::suggest(name.as_bytes()), Some(meant), "{name}");
    }
    for name in ["GETRANGE", "NONSENSE", "", "DIVVY", "DIVVY.XYZ", "INCR", "\u{ff}"] {
        assert_eq!(command_rows::suggest(name.as_bytes()), None, "{name}");
    }
}
