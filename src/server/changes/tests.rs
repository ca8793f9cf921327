//! Rights that change while a change waits for the audit log.

use std::pin::pin;

use futures_util::poll;

use super::*;
use crate::access::{Digest, Given, Users, parse};
use crate::clock::Clock;
use crate::config::{self, Format};
use crate::limiter::CounterNames;
use crate::metrics::Metrics;
use crate::store::{Backend, MemoryStore};

const RULES: &str = "[user=*]\ncreditLimit = 9\nper = 1h\nactorField = user\nlabel = users\n\n\
    [default]\ncreditLimit = 0\nresetSeconds = 0\n";

fn users(words: &str) -> Users {
    let file = format!("user ops on {} {words}\n", Digest::of(b"secret").to_word());
    Users::new(parse(&file, "users.acl", None).unwrap().users).unwrap()
}

/// Makes each kind of change with a user whose words become these while the change waits. Returns the errors.
async fn errors_after(words: &str) -> Vec<Option<String>> {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let rules = config::parse(RULES, Format::Ini, "rules.ini").unwrap().rules;
    let policy = Policy::new(rules, &metrics, CounterNames::Usual);
    let store = Backend::Memory(MemoryStore::default());
    let limiter = Arc::new(Limiter::new(Some(policy), store, Clock::system(), Arc::clone(&metrics)));
    let path = dir.path().join("audit.log");
    let audit = AuditLog::in_file(path.clone(), true, Clock::system(), Arc::clone(&metrics)).unwrap();
    let changes = Changes::new(Arc::clone(&limiter), Arc::clone(&audit));
    let operation: Operation = [("user", "ann")].into_iter().collect();
    let of = CountersOf { rule: RuleName::Name("users"), actor: None, cursor: None, count: 10 };
    let mut errors = Vec::new();
    for kind in 0..5 {
        let authority = Arc::new(Authority::new(users("+@all ~*"), metrics.access.password_hashes.clone()));
        let given = Given::User { name: b"ops", password: b"secret" };
        let identity = authority.log_in(&given, None, || {}, std::future::pending()).await.unwrap();
        let category = [Category::Limits, Category::Limits, Category::Forget, Category::Forget, Category::Backup][kind];
        let admission = Admission { authority: Arc::clone(&authority), identity, category };
        let caller = Caller::client("resp", None, Some("ops".into()));
        let operator = Operator { caller, scope: Scope::EVERYTHING, admission: Some(admission) };
        let hold = audit.hold_up();
        let mut change = pin!(async {
            match kind {
                0 => changes.set_limit(&operator, "users", "ann", 3, None).await.err(),
                1 => changes.remove_limit(&operator, "users", "ann").await.err(),
                2 => changes.forget_counters(&operator, of).await.err(),
                3 => changes.reset_counters(&operator, &operation, None).await.err(),
                _ => changes.back_up(&operator, "x").await.err(),
            }
        });
        assert!(poll!(change.as_mut()).is_pending(), "it waits for its line");
        authority.replace(users(words));
        drop(hold);
        errors.push(change.await.map(|error| error.to_string()));
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
