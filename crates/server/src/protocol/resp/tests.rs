use super::*;
/// A reply in either version of the protocol.
pub use redis_protocol::resp3::types::OwnedFrame as Frame;

fn written(version: Version, write: impl FnOnce(&mut ReplyWriter)) -> String {
    let mut out = Vec::new();
    write(&mut ReplyWriter::new(&mut out, version));
    String::from_utf8(out).unwrap()
}

#[test]
fn verdicts_are_three_integers() {
    assert_eq!(written(Version::Resp2, |reply| reply.verdict(true, 57, 60)), "*3\r\n:1\r\n:57\r\n:60\r\n");
    let largest = written(Version::Resp3, |reply| reply.verdict(false, u64::MAX, 0));
    assert_eq!(largest, "*3\r\n:0\r\n:9223372036854775807\r\n:0\r\n");
}

#[test]
fn error_is_one_line() {
    let error = written(Version::Resp2, |reply| reply.error("ERR unknown command 'a\r\nb'"));
    assert_eq!(error, "-ERR unknown command 'a  b'\r\n");
}

#[test]
fn types_missing_in_resp2_are_replaced() {
    let write = |reply: &mut ReplyWriter| {
        reply.map(2);
        reply.simple("flags");
        reply.set(1);
        reply.bulk(b"fast");
        reply.bulk(b"name");
        reply.null();
    };
    let resp2 = written(Version::Resp2, write);
    let resp3 = written(Version::Resp3, write);
    assert_eq!(resp2, "*4\r\n+flags\r\n*1\r\n$4\r\nfast\r\n$4\r\nname\r\n$-1\r\n");
    assert_eq!(resp3, "%2\r\n+flags\r\n~1\r\n$4\r\nfast\r\n$4\r\nname\r\n_\r\n");
    let (frame, consumed) = decode_reply(resp2.as_bytes(), Version::Resp2);
    assert!(consumed == resp2.len() && matches!(&frame, Frame::Array { data, .. } if data.len() == 4), "{frame:?}");
    let (frame, consumed) = decode_reply(resp3.as_bytes(), Version::Resp3);
    assert!(consumed == resp3.len() && matches!(&frame, Frame::Map { data, .. } if data.len() == 2), "{frame:?}");
}

/// Reads the reply at the front of `bytes`, in this version of the protocol. Returns it with its length.
pub fn decode_reply(bytes: &[u8], version: Version) -> (Frame, usize) {
    match version {
        Version::Resp2 => {
            let (frame, consumed) = redis_protocol::resp2::decode::decode(bytes).unwrap().unwrap();
            (frame.into_resp3(), consumed)
        }
        Version::Resp3 => redis_protocol::resp3::decode::complete::decode(bytes).unwrap().unwrap(),
    }
}
