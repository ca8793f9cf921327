//! /healthz and /readyz.

use crate::support::{COMPAT_RULES, Server, http};

#[test]
fn a_server_that_serves_is_alive_and_ready() {
    let server = Server::in_memory(COMPAT_RULES);
    for path in ["/healthz", "/readyz"] {
        let response = http::get(server.http, path);
        assert_eq!(response.status, 200, "{path}: {}", response.body);
    }
    assert_eq!(http::get(server.http, "/nothing").status, 404);
    assert!(server.terminate().success());
}
