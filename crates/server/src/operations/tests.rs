//! Rights that change while a change waits for the audit log.

use std::pin::pin;

use futures_util::poll;

use super::*;
use crate::tests::{USER_RULES, authority, limiter, user, users};
use divvy_access::Given;
use divvy_api as api;
use divvy_core::clock::Clock;

/// Makes each kind of change with a user whose rights become these while the change waits. Returns the errors.
async fn errors_after(rights: &str) -> Vec<Option<String>> {
    let (dir, limiter) = (tempfile::tempdir().unwrap(), limiter(USER_RULES));
    let metrics = Arc::clone(limiter.metrics());
    let path = dir.path().join("audit.log");
    let audit = AuditLog::new(Some(path.clone()), true, Clock::system(), Arc::clone(&metrics)).unwrap();
    let operations = Operations::new(Arc::clone(&limiter), Arc::clone(&audit));
    let changes: [(&Endpoint, &[&str]); 5] = [
        (&api::SET_LIMIT, &["users", "ann", "3"]),
        (&api::REMOVE_LIMIT, &["users", "ann"]),
        (&api::FORGET_COUNTERS, &["users"]),
        (&api::RESET_COUNTERS, &["user=ann"]),
        (&api::BACK_UP, &["x"]),
    ];
    let mut errors = Vec::new();
    for (endpoint, words) in changes {
        let arguments = Arguments::from_words(endpoint, words.iter().map(|word| word.as_bytes()), 9).unwrap();
        let authority = Arc::new(authority(&user("ops", "secret", "+@all ~*"), &metrics));
        let given = Given::User { name: b"ops", password: b"secret" };
        let identity = authority.log_in(&given, None, || {}, std::future::pending()).await.unwrap();
        let passed_check = PassedCheck { authority: Arc::clone(&authority), identity, category: endpoint.category };
        let caller = Caller::client("resp", None, Some("ops".into()));
        let operator = Operator { caller, passed_check: Some(passed_check) };
        let hold = audit.hold_up();
        let mut change = pin!(operations.run(&operator, endpoint, &arguments, None));
        assert!(poll!(change.as_mut()).is_pending(), "it waits for its line");
        authority.replace(users(&user("ops", "secret", rights)));
        drop(hold);
        errors.push(change.await.err().map(|error| error.to_string()));
    }
    audit.finish().await;
    let lines = std::fs::read_to_string(path).unwrap();
    let count = |status: &str| lines.matches(&format!("\"status\":\"{status}\"")).count();
    assert_eq!(count("refused") + count("failed"), errors.iter().flatten().count(), "{lines}");
    errors
}

#[tokio::test]
async fn rights_are_those_after_the_wait_for_the_audit_log() {
    let lost = Some(Refusal::OutOfScope.to_string());
    let [kept, .., backup] = <[_; 5]>::try_from(errors_after("+@all ~*").await).unwrap();
    assert_eq!(kept, None);
    assert!(backup.is_some_and(|error| Some(error) != lost), "the store in memory has no backups");
    for words in ["+@hit ~*", "+@all ~label:other"] {
        assert_eq!(errors_after(words).await, vec![lost.clone(); 5], "{words}");
    }
}
