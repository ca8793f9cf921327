//! The memory of calls and replies, from both sides: the connection's account and the bodies that count.

use super::*;
use crate::net::memory::BufferMemory;
use divvy_telemetry::metrics::Metrics;

const LIMIT: usize = 1000;

fn memory() -> Arc<BufferMemory> {
    BufferMemory::new(LIMIT, Metrics::new())
}

/// Free memory of a connection for replies, while one call is in flight.
const OWN: usize = FREE - CALL;

fn respond(replies: &Arc<UnsentReplies>, response: Response<Reply>) -> Response<AccountedBody> {
    replies
        .begin()
        .map_or_else(|BudgetExceeded| refuse(AccountedBody::default()), |call| AccountedBody::respond(call, response))
}

fn reply(bytes: usize) -> Response<Reply> {
    Response::new(Reply::Whole(vec![0; bytes].into()))
}

#[test]
fn replies_count_until_they_are_sent_and_a_connection_has_a_free_share() {
    let memory = memory();
    let (one, other) = (UnsentReplies::new(memory.share()), UnsentReplies::new(memory.share()));
    let first = respond(&one, reply(OWN + LIMIT));
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(respond(&one, reply(1)).status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(respond(&other, reply(OWN)).status(), StatusCode::OK);
    drop(first);
    assert_eq!(respond(&one, reply(OWN + LIMIT)).status(), StatusCode::OK);
}

#[test]
fn call_counts_from_its_arrival_until_its_reply_is_handed_over() {
    let memory = BufferMemory::new(10 * CALL, Metrics::new());
    let unsent = UnsentReplies::new(memory.share());
    let calls: Vec<_> = std::iter::from_fn(|| unsent.begin().ok()).collect();
    assert_eq!(calls.len(), (FREE + 10 * CALL) / CALL);
    let refused = unsent
        .begin()
        .map_or_else(|BudgetExceeded| refuse(AccountedBody::default()), |call| AccountedBody::respond(call, reply(1)));
    assert!(refused.status() == StatusCode::SERVICE_UNAVAILABLE && refused.body().is_end_stream());
    let response = AccountedBody::respond(calls.into_iter().next().unwrap(), reply(1));
    assert_eq!((response.status(), unsent.state.lock().used), (StatusCode::OK, CALL));
    drop(response);
    assert_eq!(unsent.state.lock().used, 0);
    assert_eq!(memory.share().resize(10 * CALL), Ok(()), "nothing of it is left");
}

#[test]
fn call_that_has_begun_has_memory_for_a_short_reply() {
    let memory = BufferMemory::new(10 * CALL, Metrics::new());
    let unsent = UnsentReplies::new(memory.share());
    let calls: Vec<_> = std::iter::from_fn(|| unsent.begin().ok()).collect();
    let replies: Vec<_> = calls.into_iter().map(|call| AccountedBody::respond(call, reply(SHORT))).collect();
    assert!(replies.iter().all(|reply| reply.status() == StatusCode::OK));
    drop(replies);
    assert_eq!(unsent.state.lock().used, 0);
    assert_eq!(memory.share().resize(10 * CALL), Ok(()), "nothing of it is left");
}

#[tokio::test]
async fn frames_count_until_they_are_sent_or_dropped() {
    let unsent = UnsentReplies::new(memory().share());
    let mut body = respond(&unsent, reply(OWN + LIMIT)).into_body();
    assert_eq!(body.size_hint().exact(), Some((OWN + LIMIT) as u64));
    let mut bytes = body.frame().await.unwrap().unwrap().into_data().ok().unwrap();
    drop(body);
    assert_eq!(unsent.state.lock().replies, OWN + LIMIT);
    bytes.advance(OWN);
    assert_eq!((unsent.state.lock().replies, bytes.remaining()), (LIMIT, LIMIT));
    drop(bytes);
    assert_eq!(unsent.state.lock().replies, 0);
}
