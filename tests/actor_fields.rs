//! Counters by several fields: on every store, in listings, forgotten, and never mixed up.

use crate::support::redis::RedisServer;
use crate::support::{LineClient, RespClient, RulesFile, Server};

const RULES: &str = "
[api=x user=* path=*]
creditLimit = 10
per = 1h
actorField = user, path
label = calls

[default]
creditLimit = 0
";

#[test]
fn each_combination_has_a_counter_on_every_store() {
    let data = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    let url = redis.url();
    let stores: [&[&str]; 3] = [
        &["--store", "memory"],
        &["--store", "rocksdb", "--data-dir", data.path().to_str().unwrap()],
        &["--store", "redis", "--redis-url", &url],
    ];
    let rules = RulesFile::ini(RULES);
    for store in stores {
        let server = Server::start(&[&[rules.path()], store].concat());
        let (mut line, mut resp) = (LineClient::connect(server.line), RespClient::connect(server.resp));
        assert_eq!(line.hit("api=x user=a path=/b").1, 9, "{store:?}");
        assert_eq!(line.hit("path=/b user=a api=x").1, 8, "{store:?}: the order of a request's fields is nothing");
        assert_eq!(line.hit("api=x user=a path=/c").1, 9, "{store:?}");
        assert_eq!(line.hit("api=x user=b path=/b").1, 9, "{store:?}");
        // These values would look the same without quotes.
        assert_eq!(line.hit(r#"api=x user="a path=/b" path="""#).1, 9, "{store:?}");
        assert_eq!(line.hit(r#"api=x user=a path="/b path=""#).1, 9, "{store:?}");
        let listed = resp.command("DIVVY.COUNTERS calls");
        for actor in ["user=a path=/b", "user=a path=/c", "user=b path=/b", r#"user="a path=/b" path="#] {
            assert!(listed.contains(actor), "{store:?}: {actor} is not in {listed}");
        }
        let one = resp.command_of(&[b"DIVVY.COUNTERS", b"calls", b"ACTOR", b"user=a path=/b"]);
        assert!(one.contains("user=a path=/b") && !one.contains("/c"), "{store:?}: {one}");
        let forgotten = resp.command_of(&[b"DIVVY.FORGET", b"calls", b"ACTOR", b"user=a path=/b"]);
        assert!(forgotten.contains('1'), "{store:?}: {forgotten}");
        assert_eq!(line.hit("api=x user=a path=/b").1, 9, "{store:?}");
        assert_eq!(line.hit("api=x user=a path=/c").1, 8, "{store:?}: of another path");
    }
}
