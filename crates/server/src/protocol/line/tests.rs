use super::*;
use proptest::prelude::*;

/// Returns the reply to a line that is not a request; `None` if it is one.
fn error_reply(line: &[u8]) -> Option<String> {
    let error = parse_request(line, &mut Operation::new(), 3).err()?;
    let mut out = Vec::new();
    write_error(&mut out, error.kind(), error);
    Some(String::from_utf8(out).unwrap())
}

/// Decodes `bytes`, which arrive in pieces of `step`. Returns the lines, and the error that ended them.
fn lines(bytes: &[u8], max_line: usize, step: usize) -> (Vec<Vec<u8>>, Option<LineTooLong>) {
    let (mut decoder, mut lines) = (LineDecoder::new(max_line), Vec::new());
    let (mut start, mut received) = (0, 0);
    while received < bytes.len() {
        received = (received + step).min(bytes.len());
        loop {
            match decoder.next_line(&bytes[start..received]) {
                Ok(None) => break,
                Ok(Some(line)) => {
                    lines.push(line.text.to_vec());
                    start += line.consumed;
                }
                Err(error) => return (lines, Some(error)),
            }
        }
    }
    (lines, None)
}

#[test]
fn errors_have_a_code_and_the_echo_is_escaped_and_truncated() {
    assert_eq!(error_reply(b"HIT a=1 b=2 c=3"), None);
    assert_eq!(error_reply(b"HIT a=1 b=2 c=3 a=4").unwrap(), "ERR unknown \"The request has more than 3 pairs.\"\n");
    assert_eq!(
        error_reply("a\u{1b}[2Jß\"\u{7f}".as_bytes()).unwrap(),
        "ERR unknown-command \"Unrecognized command: A?[2JSS'?\"\n"
    );
    assert_eq!(
        error_reply(&[b'x'; 10_000]).unwrap().len(),
        "ERR unknown-command \"Unrecognized command: \"\n".len() + 64
    );
}

#[test]
fn limit_counts_the_line_without_its_terminator() {
    for step in [1, 3, 100] {
        assert_eq!(lines(b"abcd\r\nabcd\n\n", 4, step), (vec![b"abcd".to_vec(), b"abcd".to_vec(), vec![]], None));
        assert_eq!(lines(b"abc\nabcde", 4, step), (vec![b"abc".to_vec()], Some(LineTooLong { max_line: 4 })));
        assert_eq!(lines(b"abcde\n", 4, step), (vec![], Some(LineTooLong { max_line: 4 })));
        assert_eq!(lines(b"abcd\rx\n", 4, step), (vec![], Some(LineTooLong { max_line: 4 })));
    }
}

#[test]
fn foreign_replies_are_refused() {
    for line in ["", "OK", "OK true 1", "OK yes 1 2", "OK true -1 2", "OK true 1 2 3", "ERR x", "ERR x y", "+OK"] {
        assert_eq!(parse_reply(line), Err(BadReply(line.to_owned())));
    }
}

#[test]
fn password_is_the_text_after_auth_and_a_space() {
    assert_eq!(parse_auth(b"AUTH secret"), Some(&b"secret"[..]));
    assert_eq!(parse_auth(b"auth a b=\"c\" "), Some(&b"a b=\"c\" "[..]));
    assert_eq!(parse_auth(b"AUTH "), Some(&b""[..]));
    for line in [&b"AUTH"[..], b"AUTHx", b" AUTH x", b"HIT a=b", b""] {
        assert_eq!(parse_auth(line), None, "{}", line.escape_ascii());
    }
    let password = "any \u{e9}=\" text";
    assert_eq!(parse_auth(format_auth(password).trim_end().as_bytes()), Some(password.as_bytes()));
    let mut out = Vec::new();
    write_welcome(&mut out);
    assert!(is_welcome(std::str::from_utf8(&out).unwrap()) && !is_welcome("OK true 1 60\n"));
}

proptest! {
    #[test]
    fn written_hit_reads_back(pairs in prop::collection::vec((".*", ".*"), 0..6)) {
        let expected: Operation = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        if let Ok(line) = format_hit(expected.iter()) {
            let mut decoder = LineDecoder::new(DEFAULT_MAX_LINE);
            let found = decoder.next_line(line.as_bytes()).unwrap().unwrap();
            prop_assert_eq!(found.consumed, line.len());
            let mut operation = Operation::new();
            parse_request(found.text, &mut operation, 6).unwrap();
            prop_assert!(operation.iter().eq(expected.iter()));
        }
    }

    #[test]
    fn written_verdict_reads_back(allowed: bool, credit: u64, reset_seconds: u64) {
        let mut out = Vec::new();
        write_verdict(&mut out, allowed, credit, reset_seconds);
        let reply = parse_reply(std::str::from_utf8(&out).unwrap());
        prop_assert_eq!(reply, Ok(Reply::Verdict { allowed, credit, reset_seconds }));
    }

    #[test]
    fn error_is_one_line_for_any_reason(reason in "(?s).*") {
        let mut out = Vec::new();
        write_error(&mut out, ErrorKind::Unknown, &reason);
        let line = String::from_utf8(out).unwrap();
        prop_assert_eq!(line.chars().filter(|c| c.is_control()).collect::<String>(), "\n");
        match parse_reply(&line) {
            Ok(Reply::Error { code, reason: read }) => {
                prop_assert_eq!(code, "unknown");
                prop_assert_eq!(read.chars().count(), reason.chars().count());
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_arrive(
        bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..60),
        step in 1usize..20,
    ) {
        let whole = lines(&bytes, 8, bytes.len().max(1));
        prop_assert_eq!(&lines(&bytes, 8, step), &whole);
        prop_assert!(whole.0.iter().all(|line| line.len() <= 8));
        for line in &whole.0 {
            // It is read or refused, and never panics.
            let _ = parse_request(line, &mut Operation::new(), 2);
        }
    }
}
