//! Real gateways in front of a small application, with the examples of config/examples and different ports: nginx with
//! auth_request, Caddy with forward_auth, and the middlewares for Node (Express) and Python (ASGI) in their own servers.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::clients::{NODE, PYTHON, installed, tool};
use crate::support::gateway::changed;
use crate::support::{Gateway, PATIENCE, RulesFile, Server, application, done, free_address};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples");

/// Starts nginx with the example and some changes.
pub fn nginx(application: SocketAddr, divvy: SocketAddr, changes: &[(&str, String)]) -> Gateway {
    let address = free_address();
    let ports = [
        ("127.0.0.1:10080", address.to_string()),
        ("127.0.0.1:8080", application.to_string()),
        ("127.0.0.1:8322", divvy.to_string()),
        // A busy machine may take longer than a gateway should wait.
        ("250ms", format!("{}s", PATIENCE.as_secs())),
    ];
    let config = std::fs::read_to_string(Path::new(EXAMPLES).join("nginx/nginx.conf")).unwrap();
    let config = changed(changed(config, &ports), changes);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("nginx.conf"), config).unwrap();
    let child = Command::new("nginx")
        .arg("-p")
        .arg(directory.path())
        .args(["-e", "stderr", "-c", "nginx.conf"])
        .args(["-g", "daemon off; master_process off; pid nginx.pid; error_log stderr crit;"])
        .spawn()
        .unwrap_or_else(|error| panic!("nginx: {error}; run `make test-setup` first"));
    Gateway::new(child, address, directory)
}

/// Starts nginx with the lines uncommented that let requests pass while divvy is unavailable.
fn lenient_nginx(application: SocketAddr, divvy: SocketAddr) -> Gateway {
    let [intercept, errors] = ["proxy_intercept_errors on", "error_page 500"].map(str::to_owned);
    nginx(application, divvy, &[("# proxy_intercept_errors on", intercept), ("# error_page 500", errors)])
}

fn divvy() -> Server {
    divvy_with(&rules(), &[])
}

/// Starts divvy as the example says.
fn divvy_with(rules: &str, more: &[&str]) -> Server {
    let flags =
        ["--store", "memory", "--deny-status", "403", "--check-from", "original", "--check-final-slash", "drop"];
    Server::start(&[&[rules], &flags[..], more].concat())
}

#[test]
fn nginx_has_one_limit_for_every_spelling_of_a_login() {
    let server = divvy_with(&rules(), &["--check-id", "header:X-Request-Id"]);
    let gateway = nginx(application(), server.http, &[]);
    gateway.admit_no_login_beyond(3);
    // nginx passes a fragment on, and many applications drop it.
    assert_eq!(gateway.post("/login#top").status, 429);
    let directory = tempfile::tempdir().unwrap();
    let template = format!("{}/rules.ini", directory.path().display());
    done(&format!("init --template gateway {template}"));
    let server = divvy_with(&template, &[]);
    nginx(application(), server.http, &[]).admit_no_login_beyond(5);
}

/// nginx asks again after an internal redirect.
#[test]
fn internal_redirects_count_once_with_an_id() {
    let rules = RulesFile::ini("[ip=*] creditLimit=100 per=1h actorField=ip label=by-ip\n[default] creditLimit=0");
    let redirects = "location /try/ { auth_request /divvy; error_page 404 = /found; try_files /none =404; }\n        location /divvy-once {";
    for (flags, taken) in [(&["--check-id", "header:X-Request-Id"][..], 1), (&[], 2)] {
        let server = divvy_with(rules.path(), flags);
        let gateway = nginx(
            application(),
            server.http,
            &[("location = /divvy {", format!("{redirects} return 404; }}\n        location = /divvy {{"))],
        );
        assert_eq!(gateway.get("/try/x").status, 200);
        let left = server.line().hit("ip=127.0.0.1").1;
        assert_eq!(left, 99 - taken, "{flags:?}");
    }
}

fn rules() -> String {
    format!("{EXAMPLES}/nginx/rules.ini")
}

#[test]
fn nginx_answers_traffic_over_the_limit_with_429_and_headers() {
    let server = divvy();
    let gateway = nginx(application(), server.http, &[]);
    for left in (0..3).rev() {
        let response = gateway.post("/login?next=/");
        assert_eq!((response.status, response.body.as_str()), (200, "app"));
        let standing = response.header("ratelimit").unwrap();
        assert!(standing.starts_with(&format!("\"login\";r={left};t=")), "{}", response.head);
        assert_eq!(response.header("ratelimit-policy"), Some("\"login\";q=3;w=60"));
    }
    let denied = gateway.post_lying("/login?next=/");
    assert_eq!(denied.status, 429);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"login\";r=0;t="), "{}", denied.head);
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait));
    assert_eq!(gateway.post("/elsewhere").status, 200);
    let seen_by_the_line = server.line().hit("method=POST path=/elsewhere ip=127.0.0.1");
    assert_eq!(seen_by_the_line.1, 998, "one hit through nginx, one here");
}

#[test]
fn operators_choice_applies_while_divvy_is_down() {
    let server = divvy();
    let application = application();
    let strict = nginx(application, server.http, &[]);
    let lenient = lenient_nginx(application, server.http);
    for gateway in [&strict, &lenient] {
        assert_eq!(gateway.post("/").status, 200);
    }
    server.kill();
    assert_eq!(strict.post("/").status, 500);
    assert_eq!(lenient.post("/").status, 200);
}

fn caddy(application: SocketAddr, divvy: SocketAddr) -> Gateway {
    let address = free_address();
    let ports = [
        ("http://:10080", format!("http://:{}", address.port())),
        ("127.0.0.1:8080", application.to_string()),
        ("127.0.0.1:8322", divvy.to_string()),
    ];
    let config = std::fs::read_to_string(Path::new(EXAMPLES).join("caddy/Caddyfile")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("Caddyfile");
    std::fs::write(&path, changed(config, &ports)).unwrap();
    let mut command = tool("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(path);
    for variable in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
        command.env(variable, directory.path());
    }
    let child = command.spawn().unwrap();
    Gateway::new(child, address, directory)
}

#[test]
fn caddy_has_one_limit_for_every_spelling_of_a_login() {
    let flags = ["--store", "memory", "--check-from", "forwarded", "--check-final-slash", "drop"];
    let server = Server::start(&[&[&*format!("{EXAMPLES}/caddy/rules.ini")], &flags[..]].concat());
    let gateway = caddy(application(), server.http);
    gateway.admit_no_login_beyond(3);
    let denied = gateway.post("/login");
    assert_eq!(denied.status, 429, "{}", denied.head);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"login\";r=0;t="), "{}", denied.head);
    assert!((1..=60).contains(&denied.header("retry-after").unwrap().parse().unwrap()));
}

const PASSWORD: &str = "open sesame";

fn express(divvy: SocketAddr, password: &str) -> Gateway {
    let address = free_address();
    let mut command = Command::new("node");
    command.arg(Path::new(EXAMPLES).join("express/app.js"));
    command.env("NODE_PATH", installed(Path::new(NODE).join("node_modules")));
    command.env("PORT", address.port().to_string());
    start(command, address, divvy, password)
}

fn asgi(divvy: SocketAddr, password: &str) -> Gateway {
    let address = free_address();
    let mut command = Command::new(installed(Path::new(PYTHON).join(".venv/bin/python")));
    command.args(["-B", "-m", "uvicorn", "app:app", "--lifespan", "off", "--log-level", "critical", "--app-dir"]);
    command.arg(Path::new(EXAMPLES).join("asgi")).args(["--port", &address.port().to_string()]);
    start(command, address, divvy, password)
}

fn start(mut command: Command, address: SocketAddr, divvy: SocketAddr, password: &str) -> Gateway {
    command.env("DIVVY_URL", format!("http://{divvy}")).env("DIVVY_TOKEN", password);
    // A busy machine may take longer than an application should wait.
    command.env("DIVVY_TIMEOUT_MS", PATIENCE.as_millis().to_string());
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Gateway::new(child, address, tempfile::tempdir().unwrap())
}

fn limits_logins_and_is_closed_without_divvy(example: &str, start: fn(SocketAddr, &str) -> Gateway) {
    let rules = format!("{EXAMPLES}/{example}/rules.ini");
    let server = Server::start(&[&rules, "--store", "memory", "--requirepass", PASSWORD]);
    let application = start(server.http, PASSWORD);
    for left in (0..3).rev() {
        let response = application.post("/login");
        assert_eq!((response.status, response.body.as_str()), (200, "hello\n"));
        let standing = response.header("ratelimit").unwrap();
        assert!(standing.starts_with(&format!("\"login\";r={left};t=")), "{}", response.head);
        assert_eq!(response.header("ratelimit-policy"), Some("\"login\";q=3;w=60"));
    }
    let denied = application.post("/login");
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().is_ok()), "{}", denied.head);
    assert_eq!(application.post("/elsewhere").status, 200);
    assert_eq!(
        start(server.http, "wrong").post("/elsewhere").status,
        500,
        "without the password nothing is asked, and this is no outage"
    );
    server.kill();
    assert_eq!(application.post("/elsewhere").status, 503);
}

#[test]
fn express_middleware_limits_requests() {
    limits_logins_and_is_closed_without_divvy("express", express);
}

#[test]
fn asgi_middleware_limits_requests() {
    limits_logins_and_is_closed_without_divvy("asgi", asgi);
}
