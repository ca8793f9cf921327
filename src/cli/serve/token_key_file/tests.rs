use std::fs;
use std::time::Duration;

use super::*;
use crate::access::{TokenGrant, Users};
use crate::clock::Clock;

#[tokio::test]
async fn key_that_is_removed_is_invalid_even_if_the_required_audit_log_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    fs::write(&path, TokenKeys::generate().unwrap()).unwrap();
    let mut file = TokenKeyFile::load(&path).unwrap();
    let (metrics, clock) = (Metrics::new(), Clock::system());
    let authority = Authority::new(Users::new([]).unwrap(), metrics.access.password_hashes.clone());
    let authority = authority.with_token_keys(Some(file.keys().clone()));
    let lines = dir.path().join("audit.log");
    let audit = AuditLog::in_file(lines.clone(), true, clock, Arc::clone(&metrics)).unwrap();
    let actor = [("user".to_owned(), "ann".to_owned())].into();
    let grant = TokenGrant::new(actor, Vec::new(), clock.now(), Duration::from_hours(1)).unwrap();
    let token = file.keys().seal(&grant).unwrap();
    let is_valid = async || authority.verify_actor_token(token.as_bytes(), clock.now(), |_| ()).await.is_some();
    assert!(is_valid().await);

    let hold = audit.hold_up();
    fs::write(&path, format!("# another\n{}", TokenKeys::generate().unwrap())).unwrap();
    // A change counts once two checks agree.
    (0..2).for_each(|_| file.reload_if_changed(&authority, &audit, &metrics));
    assert!(!is_valid().await);
    drop(hold);
    audit.finish().await;
    assert_eq!(fs::read_to_string(&lines).unwrap().matches("\"what\":\"tokens.reload\"").count(), 2);
}
