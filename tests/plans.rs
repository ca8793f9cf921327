//! Customers change plans in the middle of a window: their usage is kept, on every store, with every algorithm that
//! supports named counters.

use crate::support::{RedisCluster, RedisServer, Server, Site, on_redis};

/// Algorithms that count usage, with settings that give nothing back during a test.
pub const RHYTHMS: [(&str, &str); 5] = [
    ("fixed", "resetSeconds = 2592000"),
    ("year", "window = year\ntimezone = Asia/Tokyo"),
    ("sliding", "algorithm = sliding-window\nresetSeconds = 259200000"),
    ("tokens", "algorithm = token-bucket\nresetSeconds = 2592000"),
    ("leaky", "algorithm = leaky-bucket\nresetSeconds = 2592000"),
];

/// Returns plans and their credits, for every algorithm.
fn rules(plans: &[(&str, u64)]) -> String {
    let mut rules = String::new();
    for (algorithm, rhythm) in RHYTHMS {
        for (plan, credits) in plans {
            rules.push_str(&format!(
                "[by={algorithm} plan={plan} customer=*]\ncreditLimit = {credits}\n{rhythm}\nactorField = customer\n\
                 counter = usage-{algorithm}\nlabel = {plan}-{algorithm}\n\n"
            ));
        }
    }
    rules + "[default]\ncreditLimit = 0\n"
}

/// Returns whether a hit of the customer `a` is allowed, and the credits left.
fn hit_by(server: &Server, algorithm: &str, plan: &str, cost: u64) -> (bool, u64) {
    let (allowed, left, _) = server.resp().hit(&format!("by={algorithm} plan={plan} customer=a COST {cost}"));
    (allowed, left)
}

/// Hits as [`hit_by`] does. Every algorithm must return the same.
fn hit(server: &Server, plan: &str, cost: u64) -> (bool, u64) {
    let answers = RHYTHMS.map(|(algorithm, _)| hit_by(server, algorithm, plan, cost));
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{plan}: {answers:?}");
    answers[0]
}

const PLANS: [(&str, u64); 3] = [("free", 1000), ("pro", 2000), ("tiny", 100)];

/// Checks an upgrade, a downgrade, and plans that are resized and renamed in the middle of a window.
fn usage_is_kept(site: &Site) {
    let server = &site.server;
    assert_eq!(hit(server, "free", 900), (true, 100));
    assert_eq!(hit(server, "pro", 0), (true, 1100), "an upgrade does not give the whole quota again");
    assert_eq!(hit(server, "pro", 1), (true, 1099));
    assert_eq!(hit(server, "tiny", 1), (false, 0), "a downgrade below the usage");
    assert_eq!(hit(server, "free", 1), (true, 98));
    // A rule's name and its credits may change.
    site.reload(&rules(&[("basic", 1500), ("pro", 3000)]));
    site.log.await_line(&["added [by=tokens plan=basic customer=*]", "its counters are kept"]);
    let changed = "changed [by=year plan=pro customer=*] creditLimit from 2000 to 3000; its counters are kept";
    site.log.await_line(&[changed]);
    assert_eq!(hit(server, "basic", 1), (true, 597));
    assert_eq!(hit(server, "pro", 1097), (true, 1000));
    assert_eq!(hit(server, "basic", 1), (false, 0), "more was used than this plan has");
}

/// Checks that listings show a counter under each of its rules.
fn check_counters_under_each_rule(server: &Server) {
    let mut client = server.resp();
    for (algorithm, _) in RHYTHMS {
        for (plan, shown) in [("pro", "a 1000 "), ("basic", "a 0 ")] {
            let counters = client.command(&format!("DIVVY.COUNTERS {plan}-{algorithm} ACTOR a"));
            assert!(counters.contains(shown), "{plan}: {counters}");
        }
        assert_eq!(client.command(&format!("DIVVY.FORGET basic-{algorithm} ACTOR a")), "[0 1]");
        assert_eq!(hit_by(server, algorithm, "pro", 1), (true, 2999));
        assert_eq!(client.command(&format!("DIVVY.RESET by={algorithm} plan=pro customer=a")), "1");
        assert_eq!(hit_by(server, algorithm, "basic", 0), (true, 1500));
    }
}

#[test]
fn usage_survives_a_change_of_plan_on_every_store() {
    let (redis, cluster) = (RedisServer::start(), RedisCluster::start());
    let (single, cluster) = (redis.url(), cluster.urls().join(","));
    let stores: [&[&str]; 3] = [&["--store", "memory"], &on_redis(&single), &on_redis(&cluster)];
    for store in stores {
        let site = Site::serving(&rules(&PLANS), store);
        usage_is_kept(&site);
        check_counters_under_each_rule(&site.server);
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn usage_survives_a_change_of_plan_a_sigkill_and_a_restored_backup() {
    // The table is so small that counters are read back from their records.
    let disk = ["--data-dir", "DIR/data", "--backup-dir", "DIR/backups", "--cache-memory", "1Mi"];
    let Site { place, server, .. } = {
        let site = Site::serving(&rules(&PLANS), &disk);
        usage_is_kept(&site);
        site
    };
    server.kill();
    let serve = |pro: u64| {
        place.write("rules.ini", &rules(&[("basic", 1500), ("pro", pro)]));
        place.on_disk(&["--cache-memory", "1Mi"])
    };
    let server = serve(4000);
    assert_eq!(hit(&server, "basic", 1), (false, 0));
    assert_eq!(hit(&server, "pro", 1000), (true, 1000));
    assert!(server.resp().command("DIVVY.BACKUP first").contains("first"));
    server.kill();
    place.restore("first");
    let server = serve(3000);
    assert_eq!(hit(&server, "pro", 0), (false, 0));
    server.kill();
    assert_eq!(hit(&serve(4000), "pro", 0), (true, 1000));
}
