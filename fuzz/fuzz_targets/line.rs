//! The line protocol: any bytes are lines. Each is either a request or rejected with exactly one line. A request that
//! is written again is the same request.

#![no_main]

use divvy::protocol::line::{LineDecoder, format_hit, parse_reply, parse_request, write_error};
use divvy::rules::Operation;
use libfuzzer_sys::fuzz_target;

const MAX_LINE: usize = 256;
const MAX_PAIRS: usize = 8;

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = LineDecoder::new(MAX_LINE);
    let mut operation = Operation::new();
    let mut rest = bytes;
    while let Ok(Some(line)) = decoder.next_line(rest) {
        assert!(line.text.len() <= MAX_LINE && !line.text.contains(&b'\n'));
        match parse_request(line.text, &mut operation, MAX_PAIRS) {
            Ok(()) => written_again(&operation),
            Err(error) => {
                let mut reply = Vec::new();
                write_error(&mut reply, error.kind(), error);
                assert_eq!(reply.iter().position(|&byte| byte == b'\n'), Some(reply.len() - 1));
                parse_reply(std::str::from_utf8(&reply).unwrap()).unwrap();
            }
        }
        rest = &rest[line.consumed..];
    }
});

fn written_again(operation: &Operation) {
    let Ok(line) = format_hit(operation.iter()) else { return };
    let mut again = Operation::new();
    parse_request(line.trim_end_matches('\n').as_bytes(), &mut again, MAX_PAIRS).unwrap();
    assert!(again.iter().eq(operation.iter()));
}
