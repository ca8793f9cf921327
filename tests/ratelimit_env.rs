//! divvy in place of envoyproxy/ratelimit: with its program's name, its environment and its ports.

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::unix::fs::symlink;

use crate::support::ads::{ManagementServer, resource};
use crate::support::redis::RedisServer;
use crate::support::{
    COMPAT_RULES, Certificates, DIVVY, Killed, Place, Server, divvy, free_address, http, output, program, until,
};

const LIMITS: &str = "domain: edge
descriptors:
- key: user
  value: ann
  rate_limit: {unit: hour, requests_per_unit: 1}
- key: user
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 7}
  descriptors:
  - key: api
    quota_mode: true
    rate_limit: {unlimited: true}
";
const CALL: &str = r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;

#[test]
fn program_called_ratelimit_needs_only_ratelimits_environment() {
    let place = Place::with("", &[("config.yaml", LIMITS)]);
    let called = place.path("ratelimit");
    symlink(DIVVY, &called).unwrap();
    let [http, debug, prometheus, grpc] = [(); 4].map(|()| free_address());
    let mut command = program(&called);
    let variables: HashMap<_, _> = [
        ("HOST", "127.0.0.1".to_owned()),
        ("PORT", http.port().to_string()),
        ("DEBUG_HOST", "127.0.0.1".to_owned()),
        ("DEBUG_PORT", debug.port().to_string()),
        ("GRPC_HOST", "127.0.0.1".to_owned()),
        ("GRPC_PORT", grpc.port().to_string()),
        ("USE_PROMETHEUS", "true".to_owned()),
        ("PROMETHEUS_ADDR", prometheus.to_string()),
        ("USE_STATSD", "false".to_owned()),
        ("RUNTIME_ROOT", place.dir().display().to_string()),
        ("RUNTIME_APPDIRECTORY", "config.yaml".to_owned()),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true".to_owned()),
        ("LIMIT_LIMIT_HEADER", "X-Limit".to_owned()),
        // An image may set these for divvy.
        ("DIVVY_CONFIG", "/nosuch.ini".to_owned()),
        ("DIVVY_HTTP_LISTEN", "0.0.0.0:8322".to_owned()),
        ("DIVVY_STORE", "memory".to_owned()),
    ]
    .into();
    let _server = Killed(command.envs(variables).spawn().unwrap());
    for address in [http, debug, prometheus] {
        until(|| TcpStream::connect(address).is_ok());
        until(|| http::get(address, "/healthcheck").status == 200);
    }
    let listed = "edge.user_ann: unit=HOUR requests_per_unit=1, shadow_mode: false, quota_mode: false
edge.user: unit=DAY requests_per_unit=7, shadow_mode: true, quota_mode: false
edge.user.api: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: true
";
    assert_eq!(http::get(debug, "/rlconfig").body, listed);
    assert!(http::get(prometheus, "/metrics").body.contains("divvy_requests_total"));
    let mut client = http::HttpClient::connect(http);
    let allowed = client.post("/json", CALL);
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    assert!(allowed.json()["responseHeadersToAdd"].to_string().contains("X-Limit"), "{}", allowed.body);
    assert_eq!(client.post("/json", CALL).status, 429);
}

/// The variables of the deployment that Envoy Gateway generates, with other addresses.
#[test]
fn deployment_of_envoy_gateway_starts_as_it_is() {
    let (place, certificates, redis) = (Place::with("", &[]), Certificates::new(), RedisServer::start());
    let mut gateway = ManagementServer::with_tls(&certificates, "server");
    let called = place.path("ratelimit");
    symlink(DIVVY, &called).unwrap();
    let [http, debug, grpc] = [(); 3].map(|()| free_address());
    let certificate = certificates.path("client.pem");
    let (key, authority) = (certificates.path("client.key"), certificates.path("ca.pem"));
    let mut command = program(&called);
    command.envs([("HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1")]);
    command.envs(
        [("PORT", http), ("DEBUG_PORT", debug), ("GRPC_PORT", grpc)].map(|(name, at)| (name, at.port().to_string())),
    );
    command.envs([
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "true"),
        ("STATSD_PORT", "9125"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &format!("localhost:{}", gateway.port)),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_SERVER_TLS_CA_CERT", &authority),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &authority),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &format!("127.0.0.1:{}", redis.port)),
    ]);
    let _server = Killed(command.spawn().unwrap());
    let first = gateway.request();
    assert_eq!(first["node"]["id"], "envoy-ratelimit", "{first}");
    until(|| TcpStream::connect(http).is_ok());
    assert_eq!(http::get(http, "/healthcheck").status, 500, "without a configuration it is not ready");
    gateway.respond("1", "n1", &[resource("edge", 1)]);
    assert_eq!(gateway.answer().0, "1");
    until(|| http::get(http, "/healthcheck").status == 200);
    assert!(http::get(debug, "/rlconfig").body.starts_with("edge.k: unit=MINUTE requests_per_unit=1,"));
    let call = r#"{"domain": "edge", "hitsAddend": 2, "descriptors": [{"entries": [{"key": "k", "value": "x"}]}]}"#;
    assert_eq!(http::HttpClient::connect(http).post("/json", call).status, 429);
    assert!(redis.cli(&["keys", "*"]).contains("edge/minute"), "the denied hit counts in Redis");
    assert!(TcpStream::connect(grpc).is_ok());
}

#[test]
fn flags_of_the_command_line_replace_ratelimits_environment() {
    let place = Place::with("", &[("config.yaml", LIMITS)]);
    let mut command = divvy();
    command.envs([("PORT", "1"), ("GRPC_PORT", "2"), ("REDIS_TYPE", "single"), ("STATSD_HOST", "nosuch.invalid")]);
    let config = place.path("config.yaml");
    let flags = ["--ratelimit-env", COMPAT_RULES, "--ratelimit-config", &config, "--store=memory", "--statsd-host="];
    let server = Server::start_as(&mut command, &flags);
    assert_eq!(http::get(server.http, "/healthcheck").status, 200);
    assert_eq!([server.http().post("/json", CALL).status, server.http().post("/json", CALL).status], [200, 429]);
    assert_eq!(server.line().hit("method=GET path=/status").1, 999, "the rules file counts, too");
}

#[test]
fn all_mistakes_in_ratelimits_environment_are_reported_at_once() {
    let mut command = divvy();
    command.args(["serve", "--ratelimit-env", "--store=memory"]);
    command.envs([("SHADOW_MODE", "yes"), ("PORT", "http"), ("BACKEND_TYPE", "memcache"), ("GRPC_PORT", "")]);
    let (code, _, error) = output(&mut command);
    assert_eq!(code, 2, "{error}");
    for expected in ["SHADOW_MODE is \"yes\": write true or false", "PORT is \"http\"", "BACKEND_TYPE", "GRPC_PORT"] {
        assert!(error.contains(expected), "{error}");
    }
}
