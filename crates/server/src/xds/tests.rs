use super::exchange::call;
use super::*;

pub fn settings(url: &str, server_name: Option<&str>) -> XdsSettings {
    let mut headers = HeaderMap::new();
    headers.insert("te", "gzip".parse().unwrap());
    headers.append("x-key", "a".parse().unwrap());
    headers.append("x-key", "b".parse().unwrap());
    XdsSettings {
        server: url.parse().unwrap(),
        tls: XdsTls { server_name: server_name.map(str::to_owned), ..XdsTls::default() },
        node: "default".to_owned(),
        node_metadata: BTreeMap::new(),
        headers,
        max_message: DEFAULT_MAX_MESSAGE,
        cache: None,
        merges_domains: false,
        pings: Pings::default(),
    }
}

#[test]
fn call_has_the_servers_name_and_the_extra_headers_but_they_replace_none() {
    const PATH: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    for (url, server_name, expected) in [
        ("localhost:18000", None, "http://localhost:18000"),
        ("localhost:18000", Some("gateway"), "http://localhost:18000"),
        ("https://[::1]:18000", None, "https://[::1]:18000"),
        ("https://[::1]:18000", Some("gateway"), "https://gateway"),
    ] {
        let call = call(&settings(url, server_name));
        assert_eq!(call.uri().to_string(), format!("{expected}{PATH}"));
        let values =
            |name: &str| call.headers().get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!((values("te"), values("x-key")), (vec!["trailers"], vec!["a", "b"]));
    }
}

#[test]
fn unusable_caches_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let refuse = || Box::new(|_| Err(Report::default()));
    let start = |max_message, apply: Apply| {
        let settings = XdsSettings { cache: Some(path.clone()), max_message, ..settings("localhost:1", None) };
        let client = XdsClient::new(settings, apply, &Metrics::new());
        client.start_from_cache();
        client.configured().is_cancelled()
    };
    let accept = || Box::new(|loaded: LoadedDomains| loaded.map(drop));
    assert!(!start(100, accept()), "there is no file");
    for message in [&b"\xff"[..], b""] {
        cache::write(&path, message).unwrap();
        assert!(!start(100, accept()), "neither is a response");
    }
    let empty = DiscoveryResponse { type_url: resources::TYPE.to_owned(), ..DiscoveryResponse::default() };
    cache::write(&path, &empty.encode_to_vec()).unwrap();
    assert_eq!([start(100, refuse()), start(10, accept()), start(100, accept())], [false, false, true]);
}
