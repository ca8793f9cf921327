//! Tests of the metrics and their text for Prometheus.

use super::*;

fn lines(metrics: &Metrics, name: &str) -> Vec<String> {
    let text = metrics.render(Vec::new()).unwrap();
    let is_of_it = |line: &&str| line.starts_with(name) && !line.starts_with('#');
    text.lines().filter(is_of_it).map(str::to_owned).collect()
}

#[test]
fn histogram_is_shown_in_seconds_and_adds_up() {
    let metrics = Metrics::new();
    metrics.hits.duration.observe(2_000_000, 32);
    metrics.hits.duration.observe(700_000_000, 1);
    let shown = lines(&metrics, "divvy_hit_duration_seconds");
    let value = |prefix: &str| {
        let line = shown.iter().find_map(|line| line.strip_prefix(prefix));
        line.unwrap_or_else(|| panic!("{prefix} in {shown:?}")).trim().to_owned()
    };
    assert_eq!(value("divvy_hit_duration_seconds_bucket{le=\"0.00001\"}"), "0");
    assert_eq!(value("divvy_hit_duration_seconds_bucket{le=\"0.001\"}"), "0");
    assert_eq!(value("divvy_hit_duration_seconds_bucket{le=\"0.002\"}"), "32");
    assert_eq!(value("divvy_hit_duration_seconds_bucket{le=\"0.5\"}"), "32");
    assert_eq!(value("divvy_hit_duration_seconds_bucket{le=\"+Inf\"}"), "33");
    assert_eq!(value("divvy_hit_duration_seconds_count"), "33");
    assert_eq!(value("divvy_hit_duration_seconds_sum"), "0.764");
}

#[test]
fn reloaded_rule_keeps_its_counts() {
    let metrics = Metrics::new();
    metrics.hits.rule("status", false).count(true, 3);
    metrics.hits.rule("status", false).count(true, 4);
    metrics.hits.rule("default", true).count(false, 2);
    let shown = lines(&metrics, "divvy_hits_total");
    assert!(shown.contains(&r#"divvy_hits_total{rule_label="status",status="accepted"} 7"#.to_owned()), "{shown:?}");
    assert!(
        shown.contains(&r#"divvy_hits_total{rule_label="default",status="canary-rejected"} 2"#.to_owned()),
        "{shown:?}"
    );
    assert!(shown.contains(&r#"divvy_hits_total{rule_label="status",status="rejected"} 0"#.to_owned()), "{shown:?}");
    let counted = metrics.hits.counted();
    assert_eq!(counted.iter().map(|counted| counted.hits).sum::<u64>(), 9);
}

#[test]
fn only_fronts_and_kinds_with_requests_are_shown() {
    let metrics = Metrics::new();
    let (line, resp) = (metrics.requests.front("line"), metrics.requests.front("resp"));
    let mut tally = RequestTally::default();
    RequestKind::ALL.iter().chain(&RequestKind::ALL).for_each(|kind| tally.count(*kind));
    resp.take(&mut tally);
    resp.take(&mut tally);
    line.count(RequestKind::Hit);
    assert_eq!((line.total(), resp.total()), (1, 2 * RequestKind::ALL.len() as u64));
    let shown = lines(&metrics, "divvy_requests_total");
    assert_eq!(shown.len(), 1 + RequestKind::ALL.len(), "{shown:?}");
    assert!(shown.contains(&r#"divvy_requests_total{command="hit",front="line"} 1"#.to_owned()), "{shown:?}");
    assert!(shown.contains(&r#"divvy_requests_total{command="bucket",front="resp"} 2"#.to_owned()), "{shown:?}");
}

#[test]
fn only_the_hash_of_the_current_rules_is_shown() {
    let metrics = Metrics::new();
    metrics.config.loaded("aa", 2, 5_000_000_000);
    metrics.config.loaded("bb", 3, 7_500_000_000);
    let shown = lines(&metrics, "divvy_config_info");
    assert_eq!(shown, ["divvy_config_info{hash=\"bb\"} 1"]);
}

#[test]
fn metrics_of_other_modules_are_included() {
    let metrics = Metrics::new();
    let histogram = Histogram::new(1, &[1]);
    histogram.observe(1, 1);
    let text = metrics
        .render(vec![
            Metric::counter("divvy_some_total", "Some.", 3).labelled("store", "memory"),
            Metric::fraction("divvy_other", "Other.", 0.5),
            Metric::histogram("divvy_third", "Third.", &histogram),
        ])
        .unwrap();
    for expected in [
        "# HELP divvy_some_total Some.\n# TYPE divvy_some_total counter\ndivvy_some_total{store=\"memory\"} 3\n",
        "# TYPE divvy_other gauge\ndivvy_other 0.5\n",
        "# TYPE divvy_third histogram\ndivvy_third_bucket{le=\"1\"} 1\n",
        "divvy_build_info{version=",
        "process_resident_memory_bytes ",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
}
