//! Customers change plans in the middle of a window: their usage is kept, on every store, with every algorithm that
//! supports named counters.

use std::path::Path;

use crate::support::{RedisCluster, RedisServer, ReloadingServer, RespClient, restore};

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

/// A server of plans, whose credits change.
struct Plans(ReloadingServer);

impl Plans {
    fn serving(plans: &[(&str, u64)], store: &[&str]) -> Self {
        Self(ReloadingServer::serving(&rules(plans), store))
    }

    fn resp(&self) -> RespClient {
        self.0.server.resp()
    }

    /// Returns whether a hit of the customer `a` is allowed, and the credits left. Every algorithm must return the
    /// same.
    fn hit(&self, plan: &str, cost: u64) -> (bool, u64) {
        let answers = RHYTHMS.map(|(algorithm, _)| self.hit_by(algorithm, plan, cost));
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{plan}: {answers:?}");
        answers[0]
    }

    fn hit_by(&self, algorithm: &str, plan: &str, cost: u64) -> (bool, u64) {
        let reply = self.resp().command(&format!("DIVVY.HIT by={algorithm} plan={plan} customer=a COST {cost}"));
        let numbers: Vec<u64> =
            reply.trim_matches(['[', ']']).split(' ').map(|word| word.parse().expect(&reply)).collect();
        (numbers[0] == 1, numbers[1])
    }
}

const PLANS: [(&str, u64); 3] = [("free", 1000), ("pro", 2000), ("tiny", 100)];

/// Checks an upgrade, a downgrade, and plans that are resized and renamed in the middle of a window.
fn usage_is_kept(plans: &Plans) {
    assert_eq!(plans.hit("free", 900), (true, 100));
    assert_eq!(plans.hit("pro", 0), (true, 1100), "an upgrade does not give the whole quota again");
    assert_eq!(plans.hit("pro", 1), (true, 1099));
    assert_eq!(plans.hit("tiny", 1), (false, 0), "a downgrade below the usage");
    assert_eq!(plans.hit("free", 1), (true, 98));
    // A rule's name and its credits may change.
    plans.0.reload(&rules(&[("basic", 1500), ("pro", 3000)]));
    plans.0.log.await_line(&["added [by=tokens plan=basic customer=*]", "its counters are kept"]);
    plans
        .0
        .log
        .await_line(&["changed [by=year plan=pro customer=*] creditLimit from 2000 to 3000; its counters are kept"]);
    assert_eq!(plans.hit("basic", 1), (true, 597));
    assert_eq!(plans.hit("pro", 1097), (true, 1000));
    assert_eq!(plans.hit("basic", 1), (false, 0), "more was used than this plan has");
}

/// Checks that listings show a counter under each of its rules.
fn check_counters_under_each_rule(plans: &Plans) {
    for (algorithm, _) in RHYTHMS {
        let counters = |plan: &str| plans.resp().command(&format!("DIVVY.COUNTERS {plan}-{algorithm} ACTOR a"));
        assert!(counters("pro").contains("a 1000 "), "{}", counters("pro"));
        assert!(counters("basic").contains("a 0 "), "{}", counters("basic"));
        assert_eq!(plans.resp().command(&format!("DIVVY.FORGET basic-{algorithm} ACTOR a")), "[0 1]");
        assert_eq!(plans.hit_by(algorithm, "pro", 1), (true, 2999));
        assert_eq!(plans.resp().command(&format!("DIVVY.RESET by={algorithm} plan=pro customer=a")), "1");
        assert_eq!(plans.hit_by(algorithm, "basic", 0), (true, 1500));
    }
}

#[test]
fn usage_survives_a_change_of_plan_on_every_store() {
    let redis = RedisServer::start();
    let cluster = RedisCluster::start();
    let (single, cluster) = (redis.url(), cluster.urls().join(","));
    let redis = |urls| ["--store", "redis", "--redis-timeout", "20000", "--redis-url", urls];
    let stores: [&[&str]; 3] = [&["--store", "memory"], &redis(&single), &redis(&cluster)];
    for store in stores {
        let plans = Plans::serving(&PLANS, store);
        usage_is_kept(&plans);
        check_counters_under_each_rule(&plans);
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn usage_survives_a_change_of_plan_a_sigkill_and_a_restored_backup() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (data, backups, restored) = (path("data"), path("backups"), path("restored"));
    // The table is so small that counters are read back from their records.
    let disk = ["--data-dir", &data, "--backup-dir", &backups, "--cache-memory", "1Mi"];
    let plans = Plans::serving(&PLANS, &disk);
    usage_is_kept(&plans);
    plans.0.server.kill();

    let plans = Plans::serving(&[("basic", 1500), ("pro", 4000)], &disk);
    assert_eq!(plans.hit("basic", 1), (false, 0));
    assert_eq!(plans.hit("pro", 1000), (true, 1000));
    assert!(plans.resp().command("DIVVY.BACKUP first").contains("first"));
    plans.0.server.kill();
    let backup = Path::new(&backups).join("first");
    restore(backup, &restored);
    let plans = Plans::serving(&[("basic", 1500), ("pro", 3000)], &["--data-dir", &restored]);
    assert_eq!(plans.hit("pro", 0), (false, 0));
    plans.0.server.kill();
    let plans = Plans::serving(&[("basic", 1500), ("pro", 4000)], &["--data-dir", &restored]);
    assert_eq!(plans.hit("pro", 0), (true, 1000));
}
