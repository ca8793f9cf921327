use super::*;
use crate::protocol::resp::write_request;
use proptest::prelude::*;
use redis_protocol::resp2::decode::{decode as reference, decode_range};
use redis_protocol::resp2::types::OwnedFrame;

const SMALL: Limits = Limits { max_arguments: 4, max_argument_bytes: 20, max_request_bytes: 60, max_inline_bytes: 30 };

type Requests = Vec<Vec<Vec<u8>>>;

/// Decodes `bytes`, which arrive in pieces of `step`. Returns the requests, and the error that ended them.
fn requests(bytes: &[u8], limits: Limits, step: usize) -> (Requests, Option<ProtocolError>) {
    let (mut decoder, mut requests) = (Decoder::new(limits), Vec::new());
    let (mut start, mut received) = (0, 0);
    while received < bytes.len() {
        received = (received + step).min(bytes.len());
        while start < received {
            let rest = &bytes[start..received];
            match decoder.decode(rest) {
                Ok(None) => break,
                Ok(Some(consumed)) => {
                    requests.push(decoder.arguments(rest).iter().map(<[u8]>::to_vec).collect());
                    start += consumed;
                }
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

/// Returns the error at the end of `bytes`, which must be the same for all sizes of pieces.
fn error(bytes: &[u8]) -> Option<String> {
    let (whole, one_by_one) = (requests(bytes, SMALL, bytes.len()), requests(bytes, SMALL, 1));
    assert_eq!(whole, one_by_one, "{}", bytes.escape_ascii());
    whole.1.map(|error| error.to_string())
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn arrays_and_inline_commands_mix() {
    let bytes = b"*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\nPING\r\n*0\r\n\r\n*-1\r\nECHO \"a b\"\n*1\r\n$0\r\n\r\n";
    let expected =
        vec![words(&["ECHO", "\r\n"]), words(&["PING"]), vec![], vec![], vec![], words(&["ECHO", "a b"]), words(&[""])];
    for step in [1, 2, 7, bytes.len()] {
        assert_eq!(requests(bytes, Limits::default(), step), (expected.clone(), None));
    }
}

#[test]
fn errors_have_the_wording_of_redis_and_limits_are_inclusive() {
    let rows: [(&[u8], &str); 17] = [
        (b"*abc\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*-\r\n", "invalid multibulk length"),
        (b"*5\r\n", "invalid multibulk length"),
        (b"*99999999999999999999999999", "invalid multibulk length"),
        (b"*1\n", "invalid multibulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$21\r\n", "invalid bulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n*1\r\n", "expected '$', got '*'"),
        (b"*1\r\n\r\n", "expected '$', got '\\r'"),
        (b"*1\r\n$1\r\nabc", "expected CRLF after a bulk string"),
        (b"*4\r\n$20\r\n01234567890123456789\r\n$20\r\n01234567890123456789\r\n$20\r\n", "too big request"),
        (b"0123456789012345678901234567890", "too big inline request"),
        (b"a b c d e\r\n", "too big inline request"),
        (b"PING \"a\r\n", "unbalanced quotes in request"),
    ];
    let largest: [&[u8]; 3] = [
        b"*4\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n",
        b"*1\r\n$20\r\n01234567890123456789\r\n",
        b"012345678901234567890123456789\r\n",
    ];
    assert_eq!(largest.map(error), [None, None, None]);
    for (bytes, message) in rows {
        let expected = format!("ERR Protocol error: {message}");
        assert_eq!(error(bytes), Some(expected), "{}", bytes.escape_ascii());
    }
}

#[test]
fn http_is_refused() {
    assert_eq!(requests(b"POST /x HTTP/1.1\r\n", Limits::default(), 5).1, Some(ProtocolError::Http));
    let (answered, error) = requests(b"GET / HTTP/1.1\r\nHost: a\r\nDIVVY.HIT a=b\r\n", Limits::default(), 99);
    assert_eq!((answered, error), (vec![words(&["GET", "/", "HTTP/1.1"])], Some(ProtocolError::Http)));
}

#[test]
fn deep_nesting_is_refused_at_the_first_level() {
    let nested = b"*1\r\n".repeat(200_000);
    assert_eq!(requests(&nested, Limits::default(), nested.len()).1, Some(ProtocolError::ExpectedBulk(b'*')));
}

#[test]
fn array_of_a_million_is_refused_at_its_count() {
    let announced = b"*1000000\r\n$1\r\na\r\n";
    let mut decoder = Decoder::new(Limits::default());
    for end in 0..10 {
        assert_eq!(decoder.decode(&announced[..end]), Ok(None));
    }
    assert_eq!(decoder.decode(&announced[..10]), Err(ProtocolError::ArrayLength));
}

#[test]
fn unfinished_request_is_not_read_again() {
    // 100,000 arguments, byte by byte, take 700,000 calls, which would take minutes if each started from the beginning.
    let arguments = vec!["a"; 100_000];
    let mut bytes = Vec::new();
    write_request(&mut bytes, &arguments);
    let limits = Limits { max_arguments: arguments.len(), ..Limits::default() };
    let (found, error) = requests(&bytes, limits, 1);
    assert_eq!((found.len(), found[0].len(), error), (1, arguments.len(), None));

    let line = [vec![b'x'; limits.max_inline_bytes], b"\r\n".to_vec()].concat();
    assert_eq!(requests(&line, limits, 1).0.len(), 1);
}

fn any_argument() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'$'), any::<u8>()], 0..12)
}

/// Generates bytes that are nearly a request.
fn any_noise() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        Just(b"\r\n".to_vec()),
        Just(b"*2\r\n".to_vec()),
        Just(b"$3\r\nabc\r\n".to_vec()),
        Just(b"\"".to_vec()),
        Just(b" ".to_vec()),
        "[*$:+-][0-9-]{0,3}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(token, 0..12).prop_map(|tokens| tokens.concat())
}

#[test]
fn unauthenticated_clients_may_send_only_what_auth_needs() {
    let bounds = Limits::default().before_login();
    assert_eq!(Decoder::new(bounds).decode(b"*10\r\n$16384\r\n"), Ok(None));
    for (bytes, error) in [
        (&b"*11\r\n"[..], ProtocolError::ArrayLength),
        (b"*1\r\n$16385\r\n", ProtocolError::BulkLength),
        (&[b'x'; 16_387], ProtocolError::InlineTooBig),
    ] {
        assert_eq!(Decoder::new(bounds).decode(bytes), Err(error));
        assert_eq!(Decoder::new(Limits::default()).decode(bytes), Ok(None));
    }
}

proptest! {
    #[test]
    fn requests_do_not_depend_on_how_the_bytes_arrive(
        expected in prop::collection::vec(prop::collection::vec(any_argument(), 1..5), 1..4),
        step in 1usize..9,
    ) {
        let mut bytes = Vec::new();
        expected.iter().for_each(|request| write_request(&mut bytes, request));
        prop_assert_eq!(requests(&bytes, Limits::default(), bytes.len()), (expected.clone(), None));
        prop_assert_eq!(requests(&bytes, Limits::default(), step), (expected, None));
    }

    #[test]
    fn request_split_in_two_equals_the_whole_one(request in prop::collection::vec(any_argument(), 1..5)) {
        let mut bytes = Vec::new();
        write_request(&mut bytes, &request);
        for end in 0..bytes.len() {
            let mut decoder = Decoder::new(Limits::default());
            prop_assert_eq!(decoder.decode(&bytes[..end]), Ok(None));
            prop_assert_eq!(decoder.decode(&bytes), Ok(Some(bytes.len())));
            let found = decoder.arguments(&bytes);
            prop_assert!(found.iter().eq(request.iter().map(Vec::as_slice)));
            prop_assert!(QueuedRequest::new(found).arguments().iter().eq(found.iter()));
        }
    }

    #[test]
    fn reference_decoder_finds_the_same(request in prop::collection::vec(any_argument(), 1..5)) {
        let mut bytes = Vec::new();
        write_request(&mut bytes, &request);
        let frames = request.into_iter().map(OwnedFrame::BulkString).collect();
        prop_assert_eq!(reference(&bytes).unwrap(), Some((OwnedFrame::Array(frames), bytes.len())));
    }

    #[test]
    fn errors_do_not_depend_on_how_the_bytes_arrive(bytes in any_noise(), step in 1usize..5) {
        let whole = requests(&bytes, SMALL, bytes.len().max(1));
        prop_assert_eq!(&requests(&bytes, SMALL, step), &whole);
        for request in &whole.0 {
            prop_assert!(request.len() <= SMALL.max_arguments);
            prop_assert!(request.iter().map(Vec::len).sum::<usize>() <= SMALL.max_request_bytes);
        }
    }

    #[test]
    fn reference_accepts_every_accepted_array(bytes in any_noise()) {
        let mut decoder = Decoder::new(SMALL);
        let found = decoder.decode(&bytes);
        if let (Some(b'*'), Ok(Some(consumed))) = (bytes.first(), found) {
            // Redis treats a count below -1 as an empty array, and the reference as an error.
            if !decoder.arguments(&bytes).is_empty() {
                prop_assert_eq!(decode_range(&bytes).unwrap().map(|(_, consumed)| consumed), Some(consumed));
            }
        }
    }
}

fn inline_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut text, mut words) = Default::default();
    split_words(line, &mut text, &mut words)?;
    Some(words.into_iter().map(|range| text[range].to_vec()).collect())
}

#[test]
fn words_are_split_and_unquoted_like_in_redis() {
    let rows: [(&[u8], &[&[u8]]); 7] = [
        (b" \t ", &[]),
        (b"PING", &[b"PING"]),
        (b"  a\tb  c ", &[b"a", b"b", b"c"]),
        (br#"a "" '' b"#, &[b"a", b"", b"", b"b"]),
        (br#"a"b c""#, &[b"ab c"]),
        (br#""\n\r\t\b\a\x41\xfF\"\\\q\xZ1""#, &[b"\n\r\t\x08\x07A\xff\"\\qxZ1"]),
        (br"'it\'s \n'", &[br"it's \n"]),
    ];
    for (line, expected) in rows {
        let expected = expected.iter().map(|word| word.to_vec()).collect();
        assert_eq!(inline_words(line), Some(expected), "{}", line.escape_ascii());
    }
}

#[test]
fn unbalanced_quotes_are_refused() {
    for line in [&br#"""#[..], b"'", br#"a "b"#, br#""a"b"#, b"'a'b", br#""a\"#, br#""a\""#, br"'a\'", br#""a"'b'"#] {
        assert_eq!(inline_words(line), None, "{}", line.escape_ascii());
    }
}

proptest! {
    #[test]
    fn any_words_can_be_quoted(expected in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6)) {
        let quote = |word: &Vec<u8>| -> String {
            let hex: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("\"{hex}\"")
        };
        let line = expected.iter().map(quote).collect::<Vec<_>>().join(" ");
        prop_assert_eq!(inline_words(line.as_bytes()), Some(expected));
    }

    #[test]
    fn words_never_grow(line in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Some(words) = inline_words(&line) {
            prop_assert!(words.iter().map(Vec::len).sum::<usize>() <= line.len());
        }
    }
}
