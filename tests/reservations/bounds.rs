//! The maximum number and duration of reservations, and stores that are full or fail.

use super::*;

fn refused(server: &Server) -> f64 {
    metrics::scrape(server.http).value("divvy_reservations_refused_total", &[])
}

/// Starts a server with these flags on each store.
fn servers(rules: &RulesFile, data: &Path, flags: &[&str]) -> Vec<Server> {
    let data = data.to_str().unwrap();
    let stores: [&[&str]; 2] = [&["--store", "memory"], &["--data-dir", data]];
    stores.map(|store| Server::start(&[&[rules.path()], store, flags].concat())).into()
}

#[test]
fn one_reservation_too_many_is_an_error_and_takes_nothing() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    for server in servers(&rules, data.path(), &["--max-reservations", "2"]) {
        let mut client = Client::of(&server);
        let (_, first) = client.reserve("by=fixed user=a", 10, "TTL 60");
        let (_, second) = client.reserve("by=fixed user=a", 10, "TTL 60 ID x");
        for pairs in ["by=fixed user=a", "by=fixed user=b"] {
            let error = client.ask(&format!("DIVVY.RESERVE {pairs} AMOUNT 10 TTL 60"));
            assert!(error.starts_with("-ERR") && error.contains("--max-reservations"), "{error}");
        }
        assert_eq!((client.left("by=fixed user=a"), client.left("by=fixed user=b")), (80, 100));
        assert!(!client.ask("DIVVY.COUNTERS fixed").contains("[b "), "no counter was made");
        assert_eq!(refused(&server), 2.0);
        assert_eq!(client.reserve("by=fixed user=a", 10, "TTL 60 ID x").1, second, "no new one");
        assert_eq!(metrics::scrape(server.http).value("divvy_max_reservations", &[]), 2.0);

        // A commit uses the existing record, which is remembered for a minute.
        assert_eq!(client.commit(&first, 5), commit_answer(85, "settled"));
        assert!(client.ask("DIVVY.RESERVE by=fixed user=a AMOUNT 10 TTL 60").starts_with("-ERR"));
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {second}")), "1");
        let (_, third) = client.reserve("by=fixed user=a", 10, "TTL 60");
        assert!(client.ask(&format!("DIVVY.COMMIT {second} COST 5")).starts_with("-ERR"), "late, and not remembered");
        assert_eq!(client.left("by=fixed user=a"), 85, "so it is not counted");
        assert_eq!(client.ask(&format!("DIVVY.RELEASE {third}")), "1");
        assert_eq!(client.commit(&second, 5), commit_answer(90, "late"), "there is room again");
    }
}
