use std::cell::RefCell;
use std::fs;

use super::*;
use crate::access::{Digest, Given};
use crate::clock::Clock;

fn line(name: &str) -> String {
    format!("user {name} on {} +@all ~*\n", Digest::of(name.as_bytes()).to_word())
}

#[tokio::test]
async fn users_lose_their_rights_even_if_the_required_audit_log_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users.acl");
    fs::write(&path, line("ann") + &line("bob")).unwrap();
    let (mut file, users) = AccessFile::load(&path, None).unwrap();
    let metrics = Metrics::new();
    let authority = Authority::new(Users::new(users).unwrap(), metrics.access.password_hashes.clone());
    let lines = dir.path().join("audit.log");
    let audit = AuditLog::in_file(lines.clone(), true, Clock::system(), Arc::clone(&metrics)).unwrap();
    let given = Given::User { name: b"ann", password: b"ann" };
    let mut ann = authority.log_in(&given, None, || {}, std::future::pending()).await.unwrap();

    let hold = audit.hold_up();
    fs::write(&path, line("bob")).unwrap();
    // A change counts once two checks agree.
    (0..2).for_each(|_| file.reload_if_changed(&authority, &audit, &metrics));
    authority.refresh(&mut ann);
    assert!(!ann.is_admitted());
    drop(hold);
    audit.finish().await;
    let text = fs::read_to_string(&lines).unwrap();
    let statuses: Vec<_> = text.lines().map(|line| line.split('"').nth(9).unwrap_or_default()).collect();
    assert_eq!(statuses, ["attempted", "done"], "{text}");

    // The log cannot be written at all.
    fs::remove_file(&lines).unwrap();
    fs::create_dir(&lines).unwrap();
    fs::write(&path, line("carol")).unwrap();
    (0..2).for_each(|_| file.reload_if_changed(&authority, &audit, &metrics));
    assert_eq!(authority.users().sorted().iter().map(|user| &*user.name).collect::<Vec<_>>(), ["carol"]);
    audit.finish().await;
    assert_eq!(metrics.audit.lines_lost.get(), 2);
}

#[test]
fn log_has_the_first_mistakes_and_the_number_of_the_others() {
    let logged = |count: usize| {
        let text: String = (0..count).map(|_| "user ann\n").collect();
        let report = access::parse(&text, "users.acl", None).unwrap_err();
        let lines = RefCell::new(Vec::new());
        log_first(&report.errors[..count], |line| lines.borrow_mut().push(line.to_string()));
        lines.into_inner()
    };
    assert_eq!(logged(MAX_LOGGED_PROBLEMS).len(), MAX_LOGGED_PROBLEMS);
    let lines = logged(MAX_LOGGED_PROBLEMS + 7);
    assert_eq!(lines.len(), MAX_LOGGED_PROBLEMS + 1);
    assert_eq!(lines.last().unwrap(), "users.acl: and 7 more like these; `divvy access check` shows all");
}
