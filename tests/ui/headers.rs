//! Headers of all responses, the table of files, and the redirect.

use super::{Site, line, open_site};
use crate::support::http::{self, Response};
use crate::support::{COMPAT_RULES, Server};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

fn assert_protected(what: &str, response: &Response) {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-frame-options", "DENY"),
    ] {
        assert_eq!(response.header(name), Some(value), "{what}: {}", response.head);
    }
    let caching = if what.contains("/ui/api/") { "no-store" } else { "no-cache" };
    let is_file = response.header("etag").is_some();
    if is_file || what.contains("/ui/api/") {
        assert_eq!(response.header("cache-control"), Some(caching), "{what}: {}", response.head);
    }
}

#[test]
fn every_response_is_protected() {
    let site = Site::start(&(line("ann", "+@all ~*") + &line("app", "+@hit ~*")), &["--ui-streams", "1"]);
    let (nobody, ann, app) = (site.browser(), site.logged_in("ann"), site.logged_in("app"));
    let _open = ann.feed("");
    for (browser, method, path, status) in [
        (&nobody, "GET", "/ui", 308),
        (&nobody, "GET", "/ui/", 200),
        (&nobody, "HEAD", "/ui/", 200),
        (&nobody, "POST", "/ui/", 405),
        (&nobody, "GET", "/ui/none.js", 404),
        (&nobody, "GET", "/ui/index.html", 404),
        (&nobody, "GET", "/ui/api/session", 200),
        (&nobody, "GET", "/ui/api/none", 404),
        (&nobody, "GET", "/ui/api/feed", 401),
        (&app, "GET", "/ui/api/feed", 403),
        (&ann, "GET", "/ui/api/feed?count=x", 400),
        (&ann, "GET", "/ui/api/feed", 503),
        (&nobody, "GET", "/ui/api/login", 405),
        (&nobody, "POST", "/ui/api/login", 415),
        (&nobody, "POST", "/ui/api/logout", 204),
    ] {
        let response = browser.send(method, path, &[], "");
        assert_eq!(response.status, status, "{method} {path}");
        assert_protected(&format!("{method} {path}"), &response);
    }
    let login = site.browser().log_in("ann", "wrong");
    assert_eq!(login.status, 401);
    assert_protected("POST /ui/api/login", &login);
    // Otherwise a browser would ask for a password itself.
    assert_eq!(login.header("www-authenticate"), None);
    assert_eq!(nobody.get("/ui/api/feed").header("www-authenticate"), Some("Bearer realm=\"divvy\""));
}

#[test]
fn file_that_the_browser_has_is_not_sent_again() {
    let (server, _rules) = open_site("[default]\ncreditLimit = 0\nresetSeconds = 0\n", &[]);
    let browser = super::Browser::new(server.http);
    let page = browser.get("/ui/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let tag = page.header("etag").unwrap();
    let again = browser.send("GET", "/ui/", &[("if-none-match", tag)], "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    assert_protected("GET /ui/", &again);
    assert_eq!(browser.send("GET", "/ui/", &[("if-none-match", "\"other\"")], "").status, 200);
}

#[test]
fn redirect_depends_on_nothing() {
    let site = Site::start(&line("ann", "+@all ~*"), &[]);
    let response = site.browser().send("GET", "/ui?to=//evil.example", &[("host", "evil.example")], "");
    assert_eq!((response.status, response.header("location")), (308, Some("/ui/")));
    assert_eq!(site.browser().send("GET", "//evil.example/..", &[], "").status, 404);
}

#[test]
fn server_without_the_flag_has_no_page() {
    let server = Server::in_memory(COMPAT_RULES);
    for path in ["/ui", "/ui/", "/ui/api/session", "/ui/api/feed"] {
        let response = http::get(server.http, path);
        assert_eq!((response.status, response.header("content-security-policy")), (404, None), "{path}");
    }
}
