//! The example middlewares of config/examples for Node (Express) and Python (ASGI), unchanged, in their own servers.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::clients::{NODE, PYTHON, installed};
use crate::support::{Gateway, PATIENCE, Server, free_address};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples");
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
