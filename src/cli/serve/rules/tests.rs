use std::fs;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use super::*;
use divvy_core::clock::Clock;
use divvy_limiter::store::{Backend, MemoryStore};
use divvy_telemetry::metrics::Metrics;

/// Returns rules that allow this many hits.
fn rules(credits: u64) -> String {
    format!("[default]\ncreditLimit = {credits}\nresetSeconds = 60\n")
}

/// A limiter with rules from a file.
struct Fixture {
    dir: tempfile::TempDir,
    file: RulesFile,
    in_force: RulesInForce,
    _runtime: Runtime,
    limiter: Arc<Limiter>,
    audit: Arc<AuditLog>,
}

impl Fixture {
    /// Creates a limiter whose audit log cannot be written. It is optional, so it refuses no load.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.ini"), rules(1)).unwrap();
        let (file, rules) =
            RulesFile::load(&dir.path().join("rules.ini"), CounterNames::Usual, Spellings::default()).unwrap();
        let (metrics, clock) = (Metrics::new(), Clock::system());
        let runtime = Builder::new_current_thread().build().unwrap();
        let (names, domains) = (CounterNames::Usual, Domains::default());
        let in_force = RulesInForce::new(names, Arc::default(), domains, None, runtime.handle().clone());
        let policy = in_force.first(rules, &metrics, clock.now()).unwrap();
        let store = Backend::Memory(MemoryStore::default());
        let audit = AuditLog::new(Some(dir.path().join("audit/log")), false, clock, Arc::clone(&metrics)).unwrap();
        Self {
            dir,
            file,
            in_force,
            _runtime: runtime,
            audit,
            limiter: Arc::new(Limiter::new(Some(policy), store, clock, metrics)),
        }
    }

    /// Replaces the file with another one, so that the change is visible regardless of the clock's resolution.
    fn write(&self, text: &str) {
        let other = self.dir.path().join("other");
        fs::write(&other, text).unwrap();
        fs::rename(other, &self.file.watch.path).unwrap();
    }

    fn reload_if_changed(&mut self) {
        self.file.reload(Reason::Changed, &self.in_force, &Arc::downgrade(&self.limiter), &self.audit);
    }

    fn reload(&mut self) {
        self.file.reload(Reason::Asked, &self.in_force, &Arc::downgrade(&self.limiter), &self.audit);
    }

    /// Returns the credits that the rules in force allow.
    fn credits(&self) -> u64 {
        self.limiter.active_rules().unwrap().rules().rules()[0].settings.credit_limit
    }

    /// Returns the value of a metric as text.
    fn metric(&self, name: &str) -> String {
        let text = self.limiter.metrics().render(Vec::new()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in:\n{text}")).to_owned()
    }
}

#[test]
fn file_is_loaded_once_it_stops_changing() {
    let mut fixture = Fixture::new();
    fixture.reload_if_changed();
    assert_eq!(fixture.metric("divvy_config_version"), "1");
    for credits in [2, 3, 4] {
        fixture.write(&rules(credits));
        fixture.reload_if_changed();
        assert_eq!(fixture.credits(), 1, "the file is being written");
    }
    fixture.reload_if_changed();
    assert_eq!(fixture.credits(), 4);
    assert_eq!(fixture.metric("divvy_config_version"), "2");
}

#[test]
fn requested_load_is_the_only_one() {
    let mut fixture = Fixture::new();
    fixture.write(&rules(2));
    fixture.reload();
    assert_eq!(fixture.credits(), 2);
    fixture.reload_if_changed();
    fixture.reload_if_changed();
    assert_eq!(fixture.metric("divvy_config_version"), "2", "it has not changed since");
}

#[test]
fn metrics_report_failed_and_successful_loads() {
    let mut fixture = Fixture::new();
    let state = |fixture: &Fixture| {
        let names = ["divvy_config_last_load_successful", "divvy_config_failures_total", "divvy_config_version"];
        names.map(|name| fixture.metric(name)).join(" ")
    };
    assert_eq!(state(&fixture), "1 0 1");
    assert_eq!(fixture.metric("divvy_config_last_failure_timestamp_seconds"), "0");
    fixture.write("[default]\n");
    fixture.reload();
    assert_eq!((state(&fixture).as_str(), fixture.credits()), ("0 1 1", 1));
    assert_ne!(fixture.metric("divvy_config_last_failure_timestamp_seconds"), "0");

    let loaded_at = fixture.metric("divvy_config_last_success_timestamp_seconds");
    fixture.write(&rules(1));
    fixture.reload();
    assert_eq!(state(&fixture), "1 1 1", "the rules in force agree with the file again");
    assert_ne!(fixture.metric("divvy_config_last_success_timestamp_seconds"), loaded_at);
}

#[test]
fn change_of_a_list_is_put_in_force_once_it_stops_changing() {
    let fixture = Fixture::new();
    let list = fixture.dir.path().join("office.txt");
    let write_list = |text: &str| {
        fs::write(fixture.dir.path().join("list"), text).unwrap();
        fs::rename(fixture.dir.path().join("list"), &list).unwrap();
    };
    let rules_with_list = format!("[ip=*]\nlist = ip: office.txt\ncreditLimit = 5\nper = 1m\n\n{}", rules(1));
    write_list("10.0.0.0/8\n");
    fixture.write(&rules_with_list);
    let limiter = Arc::clone(&fixture.limiter);
    let matches = |ip: &str| {
        let policy = limiter.active_rules().unwrap();
        let operation = [("ip", ip)].into_iter().collect();
        policy.rules().matches(&operation, &mut Default::default()).next().is_some_and(|(index, _)| index == 0)
    };
    let looks = |file: &mut RulesFile, audit: &Arc<AuditLog>, number: usize| {
        (0..number).for_each(|_| file.reload(Reason::Changed, &fixture.in_force, &Arc::downgrade(&limiter), audit));
    };
    let (mut file, audit) = (fixture.file, fixture.audit);
    looks(&mut file, &audit, 3);
    assert_eq!((matches("10.1.2.3"), matches("11.1.2.3")), (true, false));
    write_list("11.0.0.0/8\n");
    looks(&mut file, &audit, 1);
    assert!(!matches("11.1.2.3"), "the list is being written");
    looks(&mut file, &audit, 1);
    assert_eq!((matches("10.1.2.3"), matches("11.1.2.3")), (false, true));
    write_list("12.0.0.0/33\n");
    looks(&mut file, &audit, 2);
    assert!(matches("11.1.2.3"), "a wrong list changes nothing");
    fs::remove_file(&list).unwrap();
    looks(&mut file, &audit, 2);
    assert!(matches("11.1.2.3"), "nor does a missing one");
    write_list("12.0.0.0/8\n");
    file.reload(Reason::Asked, &fixture.in_force, &Arc::downgrade(&limiter), &audit);
    assert_eq!((matches("11.1.2.3"), matches("12.1.2.3")), (false, true), "on request");
}

#[test]
fn file_and_domains_are_loaded_apart() {
    let fixture = Fixture::new();
    let (limiter, path) = (Arc::clone(&fixture.limiter), fixture.dir.path().join("domains"));
    fs::create_dir(&path).unwrap();
    let write = |name: &str, text: &str| {
        fs::write(fixture.dir.path().join("other"), text).unwrap();
        fs::rename(fixture.dir.path().join("other"), path.join(name)).unwrap();
    };
    let domain = |name: &str, requests: u32| {
        let limit = format!("rate_limit: {{unit: hour, requests_per_unit: {requests}}}");
        format!("domain: {name}\ndescriptors:\n- key: k\n  {limit}\n")
    };
    write("a.yaml", &domain("a", 5));
    let (mut domains, _) = RatelimitFiles::load(&path, false).unwrap();
    let mut reload = |reason| domains.reload(reason, &fixture.in_force, &Arc::downgrade(&limiter), &fixture.audit);
    let credits = |pairs: &[(&str, &str)]| {
        let policy = limiter.active_rules().unwrap();
        let operation = pairs.iter().copied().collect();
        policy
            .rules()
            .matches(&operation, &mut Default::default())
            .map(|(_, rule)| rule.settings.credit_limit)
            .collect::<Vec<_>>()
    };
    let (of_a, of_b): ([_; 2], [_; 2]) = ([("domain", "a"), ("k", "1")], [("domain", "b"), ("k", "1")]);
    reload(Reason::Asked);
    assert_eq!([credits(&of_a), credits(&of_b)], [vec![5], vec![1]]);
    write("b.yaml", &domain("b", 7));
    reload(Reason::Changed);
    reload(Reason::Changed);
    reload(Reason::Changed);
    assert_eq!([credits(&of_a), credits(&of_b)], [vec![5], vec![7]], "a new file is noticed");
    write("a.yaml", &(domain("a", 5) + "- key: k\n  value: \"1\"\n"));
    reload(Reason::Asked);
    assert_ne!(credits(&of_a), [5], "an entry without a limit changes no rule, and exempts its value");
    write("a.yaml", &domain("a", 5));
    write("b.yaml", &domain("a", 7));
    reload(Reason::Asked);
    assert_eq!(credits(&of_b), [7], "a domain twice is refused as a whole");
    write("b.yaml", "domain: a\n");
    fs::remove_file(path.join("a.yaml")).unwrap();
    reload(Reason::Asked);
    assert_eq!([credits(&of_a).len(), credits(&of_b).len()], [1, 1]);
    assert_eq!(credits(&of_b), [1], "the domain is gone");
    let (mut file, dir) = (fixture.file, fixture.dir);
    fs::write(dir.path().join("other"), rules(9)).unwrap();
    fs::rename(dir.path().join("other"), dir.path().join("rules.ini")).unwrap();
    file.reload(Reason::Asked, &fixture.in_force, &Arc::downgrade(&limiter), &fixture.audit);
    assert_eq!(credits(&of_b), [9]);
    assert_ne!(credits(&of_a), [9], "the domains stay when the rules file changes");
}
