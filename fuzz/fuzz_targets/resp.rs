//! RESP requests: any bytes yield the same requests if they arrive whole or byte by byte. No request exceeds the
//! limits, and each is either a command or an error of one line.

#![no_main]

use divvy::protocol::command::{Command, describe};
use divvy::protocol::resp::{Arguments, Decoder, Limits, ProtocolError, ReplyWriter, Version};
use divvy::rules::Operation;
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits =
    Limits { max_arguments: 8, max_argument_bytes: 64, max_request_bytes: 256, max_inline_bytes: 128 };

type Request = Vec<Vec<u8>>;

fuzz_target!(|bytes: &[u8]| {
    assert_eq!(requests(bytes, bytes.len().max(1)), requests(bytes, 1));
});

/// Returns all requests in `bytes`, and the error that ended them. The bytes arrive in pieces of `step`.
fn requests(bytes: &[u8], step: usize) -> (Vec<Request>, Option<ProtocolError>) {
    let (mut decoder, mut requests) = (Decoder::new(LIMITS), Vec::new());
    let (mut start, mut received) = (0, 0);
    while received < bytes.len() {
        received = (received + step).min(bytes.len());
        while start < received {
            let rest = &bytes[start..received];
            match decoder.decode(rest) {
                Ok(None) => break,
                Ok(Some(consumed)) => {
                    let arguments = decoder.arguments(rest);
                    answer(arguments);
                    requests.push(arguments.iter().map(<[u8]>::to_vec).collect());
                    start += consumed;
                }
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

fn answer(request: Arguments) {
    assert!(request.len() <= LIMITS.max_arguments);
    assert!(request.iter().all(|argument| argument.len() <= LIMITS.max_argument_bytes.max(LIMITS.max_inline_bytes)));
    if request.is_empty() {
        return;
    }
    let mut out = Vec::new();
    let mut reply = ReplyWriter::new(&mut out, Version::Resp3);
    match Command::parse(request) {
        Ok(Command::Ask(_, priced)) => {
            if let Err(error) = priced.pairs.read_into(&mut Operation::new(), 4) {
                reply.error(error);
            }
        }
        Ok(Command::Describe(question)) => return describe::write(&mut reply, question),
        Ok(_) => {}
        Err(error) => reply.error(error),
    }
    assert!(out.iter().filter(|&&byte| byte == b'\n').count() <= 1);
}
