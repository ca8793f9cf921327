use super::*;

fn written(version: Version, write: impl FnOnce(&mut ReplyWriter)) -> String {
    let mut out = Vec::new();
    write(&mut ReplyWriter::new(&mut out, version));
    String::from_utf8(out).unwrap()
}

#[test]
fn numbers_are_capped_and_errors_are_one_line() {
    let largest = written(Version::Resp3, |reply| reply.verdict(false, u64::MAX, 0));
    assert_eq!(largest, "*3\r\n:0\r\n:9223372036854775807\r\n:0\r\n");
    let error = written(Version::Resp2, |reply| reply.error("ERR unknown command 'a\r\nb'"));
    assert_eq!(error, "-ERR unknown command 'a  b'\r\n");
}

#[test]
fn types_missing_in_resp2_are_replaced() {
    let write = |reply: &mut ReplyWriter| {
        reply.map(1);
        reply.set(1);
        reply.simple("fast");
        reply.null();
    };
    assert_eq!(written(Version::Resp2, write), "*2\r\n*1\r\n+fast\r\n$-1\r\n");
    assert_eq!(written(Version::Resp3, write), "%1\r\n~1\r\n+fast\r\n_\r\n");
}
