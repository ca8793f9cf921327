//! Changes of the key file while it is in force.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use divvy::access::TokenKeys;

use super::{Guarded, PASSWORD, grant};
use crate::support::until;

const IN_FORCE: &str = "the new keys are in force";

fn new_key() -> String {
    TokenKeys::generate().unwrap()
}

#[test]
fn keys_are_replaced_without_an_interruption() {
    let guarded = Guarded::start(&[]);
    let (old, new) = (std::fs::read_to_string(guarded.path("keys")).unwrap(), new_key());
    let of_old = guarded.token(&[("user", "ann")]);
    let of_new = TokenKeys::parse(&new, "new").unwrap().seal(&grant(&[("user", "ann")], &[])).unwrap();
    let statuses = || [&of_old, &of_new].map(|token| guarded.status("user=ann", token).0);
    assert_eq!(statuses(), [200, 401]);
    guarded.replace("keys", &(old.clone() + &new), IN_FORCE);
    assert_eq!(statuses(), [200, 200]);
    guarded.replace("keys", &(new.clone() + &old), IN_FORCE);
    assert_eq!(statuses(), [200, 200]);
    guarded.replace("keys", &new, IN_FORCE);
    assert_eq!(statuses(), [401, 200]);

    guarded.replace("keys", &(old.clone() + "nonsense\n"), "not loaded; the previous keys stay in force");
    assert_eq!(statuses(), [401, 200]);
    let problem = format!("{}:3: this is not a key", guarded.path("keys"));
    assert!(guarded.log.count(&problem) > 0);
    for secret in [&old, &new].map(|lines| lines.lines().last().unwrap()) {
        assert!(secret.starts_with("k4.local.") && guarded.log.count(secret) == 0, "no key is logged");
    }
    let metrics = guarded.request("GET", "/metrics", PASSWORD).body;
    assert!(metrics.contains("\ndivvy_access_reloads_failed_total 1\n"));
    guarded.replace("keys", &new, "keys: reloaded, unchanged");
    assert_eq!(statuses(), [401, 200]);
    // The audit log, which is a part of the log here.
    guarded.log.await_count(5, "tokens.reload");
    let id = new.split_whitespace().nth(1).unwrap();
    assert!(guarded.log.count(id) > 0, "{id}");
}

/// Customers ask all the time. No request that begins after the key was removed is served.
#[test]
fn removed_key_serves_no_later_request_under_load() {
    const CUSTOMERS: usize = 8;
    let guarded = Guarded::start(&[]);
    let authorization = format!("Bearer {}", guarded.token(&[("user", "ann")]));
    let (served, is_removed) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..CUSTOMERS {
            scope.spawn(|| {
                let mut client = guarded.server.http();
                let mut late = 0;
                while late < 10 {
                    let is_late = is_removed.load(SeqCst);
                    let status = client.get("/v1/status?user=ann", &[("authorization", &authorization)]).status;
                    assert!(status == 401 || (status == 200 && !is_late), "{status}");
                    served.fetch_add(usize::from(status == 200), SeqCst);
                    late += usize::from(is_late);
                }
            });
        }
        until(|| served.load(SeqCst) > 20 * CUSTOMERS);
        guarded.replace("keys", &new_key(), IN_FORCE);
        is_removed.store(true, SeqCst);
    });
}
