//! Tokens that were altered in one byte, as every listener sees them.

use std::collections::BTreeSet;

use axum::http::Request;
use bytes::Bytes;
use divvy::protocol::rpc::Rpc;

use super::Guarded;
use crate::users::http2::Http2Client;

/// Requests at a time on one connection.
const STREAMS: usize = 50;
const STATUS: &str = "/v1/status?user=ann";

/// Returns a request with these values of the header, each in a header of its own.
fn request(method: &str, path: &str, values: &[&str]) -> Request<Bytes> {
    let request = Request::builder().method(method).uri(format!("http://divvy{path}"));
    let request = values.iter().fold(request, |request, value| request.header("authorization", *value));
    request.header("content-type", "application/grpc").header("te", "trailers").body(Bytes::new()).unwrap()
}

#[test]
fn token_altered_in_any_byte_is_refused_on_every_listener() {
    let guarded = Guarded::start(&[]);
    let token = guarded.token(&[("user", "ann")]);
    let flipped = (0..token.len()).map(|index| {
        let mut bytes = token.clone().into_bytes();
        // Another printable character
        bytes[index] ^= 1;
        String::from_utf8(bytes).unwrap()
    });
    let shorter = (0..token.len()).map(|index| format!("{}{}", &token[..index], &token[index + 1..]));
    let altered: Vec<_> = flipped.chain(shorter).map(|token| format!("Bearer {token}")).collect();
    let http = Http2Client::connect(guarded.server.http);
    let grpc = Http2Client::connect(guarded.server.grpc);
    let calls = [(&http, "GET", STATUS), (&grpc, "POST", Rpc::EnvoyShouldRateLimit.path())];
    for (client, method, path) in calls {
        let mut bodies = BTreeSet::new();
        for values in altered.chunks(STREAMS) {
            let answers = client.send_all(values.iter().map(|value| request(method, path, &[value])).collect());
            for (value, answer) in values.iter().zip(answers) {
                assert_eq!(answer.status, 401, "{path} {value}: {answer:?}");
                // A text of another kind is no token, but perhaps a password.
                bodies.insert((value.starts_with("Bearer v4.local."), answer.body));
            }
        }
        assert_eq!(bodies.len(), 2, "{path}: {bodies:?}");
    }
    let authorization = format!("Bearer {token}");
    assert_eq!(http.send(request("GET", STATUS, &[&authorization])).status, 200);
    // The listener of gRPC has no such method: UNIMPLEMENTED.
    assert_eq!(grpc.send(request("GET", STATUS, &[&authorization])).grpc_status.as_deref(), Some("12"));
    for both in [[&*authorization, &authorization], [&authorization, &altered[0]], [&altered[0], &authorization]] {
        assert_eq!(http.send(request("GET", STATUS, &both)).status, 401, "two headers");
    }
}
