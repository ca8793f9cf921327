//! Calls of Envoy's Rate Limit Service.

use super::*;

/// Returns a body that consists of these frames.
fn body(frames: Vec<Frame<Bytes>>) -> Body {
    let frames = frames.into_iter().map(Ok::<_, std::convert::Infallible>);
    Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames)))
}

/// Returns the status, headers, body and body hints of a response, without times.
async fn describe(response: Response<Reply>) -> (StatusCode, String, Bytes, String) {
    let (head, body) = response.into_parts();
    let hints = (body.is_end_stream(), body.size_hint().exact());
    let collected = body.collect().await.unwrap();
    let rest = format!("{hints:?} {:?}", collected.trailers());
    (head.status, timeless(&format!("{:?}", head.headers)), collected.to_bytes(), rest)
}

fn message(asked: &RateLimitRequest) -> Vec<u8> {
    let encoded = asked.encode_to_vec();
    [&[0][..], &(encoded.len() as u32).to_be_bytes(), &encoded].concat()
}

fn descriptor(pairs: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries =
        pairs.iter().map(|(key, value)| Entry { key: (*key).to_owned().into(), value: (*value).to_owned().into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

fn asked(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

/// Returns messages, each with whether the fast route decodes it.
pub fn messages() -> Vec<(Vec<u8>, bool)> {
    let user = |name: &str| descriptor(&[("user", name)]);
    let minute = Some(RateLimitOverride { requests_per_unit: 1, unit: 2 });
    let no_unit = Some(RateLimitOverride { requests_per_unit: 1, unit: 0 });
    let plain = message(&asked(vec![user("ada")]));
    let mut messages: Vec<(Vec<u8>, bool)> = [
        asked(vec![user("ada")]),
        asked(vec![user("bob"), user("eve"), user("bob"), descriptor(&[("x", "y"), ("x", "z")]), user("cyd")]),
        asked(vec![RateLimitDescriptor { limit: minute, ..user("ada") }]),
        asked(vec![RateLimitDescriptor { limit: no_unit, ..user("ada") }]),
        asked(vec![RateLimitDescriptor { hits_addend: Some(9), ..user("ada") }]),
        asked(vec![RateLimitDescriptor { is_negative_hits: true, ..user("ada") }]),
        asked(vec![descriptor(&[("priced", "many")])]),
        asked(vec![descriptor(&[("", "ada")])]),
        asked(vec![descriptor(&[("a", "1"), ("b", "2"), ("c", "3")])]),
        asked(vec![descriptor(&[])]),
        asked(Vec::new()),
        RateLimitRequest { hits_addend: 2, ..asked(vec![user("dan")]) },
        RateLimitRequest { domain: Bytes::new(), ..asked(vec![user("ada")]) },
    ]
    .iter()
    .map(|asked| (message(asked), true))
    .collect();
    let changed = |place: usize, to: u8| {
        let mut bytes = plain.clone();
        bytes[place] = to;
        (bytes, false)
    };
    let long = asked(vec![user(&"a".repeat(MAX_BODY))]);
    messages.extend([
        changed(0, 1),
        changed(0, 2),
        changed(4, plain[4] + 1),
        changed(4, plain[4] - 1),
        changed(1, 0xff),
        changed(6, 0xff),
        (plain[..3].to_vec(), false),
        (Vec::new(), false),
        ([&plain[..], &plain].concat(), false),
        (message(&long), false),
    ]);
    // An empty message is decoded, too.
    messages.push((vec![0; 5], true));
    messages
}

/// Decodes a message if possible, and removes the remaining seconds.
fn without_time(bytes: &[u8]) -> (usize, Result<RateLimitResponse, Vec<u8>>) {
    let decoded = bytes.get(5..).and_then(|message| RateLimitResponse::decode(message).ok());
    let Some(mut answer) = decoded else { return (bytes.len(), Err(bytes.to_vec())) };
    for duration in answer.statuses.iter_mut().filter_map(|status| status.duration_until_reset.as_mut()) {
        duration.seconds = i64::from(duration.seconds > 0);
    }
    for header in &mut answer.response_headers_to_add {
        header.value = timeless(&header.value);
    }
    (bytes.len(), Ok(answer))
}

#[tokio::test]
async fn calls_get_the_same_answers_as_from_the_router() {
    let calls = |bytes: &[u8]| {
        let (bytes, call) =
            (Bytes::copy_from_slice(bytes), || Request::post(SHOULD_RATE_LIMIT).version(axum::http::Version::HTTP_2));
        let (one, two) = (bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..));
        let mut trailers = axum::http::HeaderMap::new();
        trailers.insert("x-trailer", "1".parse().unwrap());
        let password = format!("Bearer {PASSWORD}");
        let whole = || Body::new(Full::new(bytes.clone()));
        vec![
            call().header("content-type", "application/grpc").header("te", "trailers").body(whole()),
            call().header("authorization", &password).body(whole()),
            call().header("authorization", "Bearer wrong").body(whole()),
            call().header("grpc-encoding", "gzip").body(whole()),
            call().header("grpc-encoding", "identity").body(whole()),
            call().method("GET").body(whole()),
            call().uri(SHOULD_RATE_LIMIT.to_lowercase()).body(whole()),
            call().body(body(vec![Frame::data(one), Frame::data(two)])),
            call().body(body(vec![Frame::data(bytes.clone()), Frame::trailers(trailers)])),
        ]
    };
    let peer = "192.0.2.1:5".parse().unwrap();
    for password in [None, Some(PASSWORD)] {
        let (fast, plain) = (Served::new(password).await, Served::new(password).await);
        let (with, without) = (Arc::clone(fast.grpc.routes()), without_fast(plain.grpc.routes()));
        for (bytes, _) in messages() {
            for (request, same) in calls(&bytes).into_iter().zip(calls(&bytes)) {
                let (request, same) = (request.unwrap(), same.unwrap());
                let what = format!("{request:?} {bytes:?}");
                let (status, headers, answer, rest) =
                    describe(with.answer(request, peer, &mut fast.call()).await).await;
                let expected = describe(without.answer(same, peer, &mut plain.call()).await).await;
                assert_eq!((status, headers, rest), (expected.0, expected.1, expected.3), "{what}");
                assert_eq!(without_time(&answer), without_time(&expected.2), "{what}");
                assert_eq!(fast.counts(), plain.counts(), "{what}");
            }
        }
    }
}
