//! Logins on every front, with each kind of credential.

use std::io::{Read, Write};
use std::process::Command;

use base64_simd::STANDARD;
use divvy::access::SlowHash;

use super::{Guarded, basic, line, password};
use crate::clients::{drive_by_node_as, drive_by_redis_py_as, run};
use crate::support::certificates::Certificates;
use crate::support::http::{encode, request};
use crate::support::{LineClient, RespClient, connect};

const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.";

fn slow(name: &str, words: &str) -> String {
    format!("user {name} on {} {words}\n", SlowHash::of(&password(name)).unwrap())
}

#[test]
fn resp_clients_log_in_with_user_and_password() {
    let file = line("app", "+@hit ~*") + &slow("ann", "+@all ~*") + &line("gone", "+@all ~*").replace(" on ", " off ");
    let guarded = Guarded::start(&file, &[]);
    let mut client = RespClient::connect(guarded.server.resp);
    assert_eq!(client.command("ACL WHOAMI"), "-NOAUTH Authentication required.");
    for (name, password) in [("app", "wrong"), ("nobody", "app's password"), ("gone", "gone's password"), ("", "")] {
        assert_eq!(client.command_of(&[b"AUTH", name.as_bytes(), password.as_bytes()]), WRONG, "{name}");
    }
    assert_eq!(client.command_of(&[b"AUTH", password("app").as_bytes()]), WRONG, "there is no user default");
    assert_eq!(client.command_of(&[b"AUTH", b"app", password("app").as_bytes()]), "OK");
    assert_eq!(client.command("ACL WHOAMI"), "app");
    assert_eq!(client.command("DIVVY.HIT method=GET path=/status"), "[1 999 60]");

    let hello = client.command_of(&[b"HELLO", b"3", b"AUTH", b"ann", password("ann").as_bytes()]);
    assert!(hello.contains("proto 3"), "{hello}");
    assert_eq!(client.command("ACL WHOAMI"), "ann");
    assert!(client.command("CLIENT INFO").contains(" user=ann "));
    assert_eq!(client.command_of(&[b"AUTH", b"app", b"wrong"]), WRONG);
    assert_eq!(client.command("ACL WHOAMI"), "ann", "a wrong password changes nothing");
    assert_eq!(client.command("RESET"), "RESET");
    assert_eq!(client.command("ACL WHOAMI"), "-NOAUTH Authentication required.");
    let users = |list: &str| {
        let user = |line: &str| line.split(' ').find_map(|word| word.strip_prefix("user=")).unwrap().to_owned();
        list.lines().map(user).collect::<Vec<_>>()
    };
    assert_eq!(users(&guarded.resp("ann").command("CLIENT LIST")), ["(none)", "ann"]);

    // A login within a transaction takes effect there.
    let mut client = guarded.resp("app");
    assert_eq!(client.command("MULTI"), "OK");
    client.command("DIVVY.HIT method=GET path=/status");
    assert_eq!(client.command_of(&[b"AUTH", b"ann", password("ann").as_bytes()]), "QUEUED");
    client.command("ACL WHOAMI");
    assert_eq!(client.command("EXEC"), "[[1 998 60] OK ann]");
    assert!(client.command("INFO server").contains("redis_version"));
}

#[test]
fn acl_commands_describe_users_without_their_hashes() {
    let file = slow("admin", "+@admin ~*") + &line("app", "+@hit ~label:api* cert:app.example");
    let guarded = Guarded::start(&file, &[]);
    let mut client = guarded.resp("admin");
    assert_eq!(
        client.command("ACL LIST"),
        "[user admin on (argon2id) -@all +@admin ~* user app on (sha256) cert:app.example -@all +@hit ~label:api*]"
    );
    assert_eq!(
        client.command("ACL GETUSER app"),
        "[flags [on] passwords [sha256] commands -@all +@hit keys ~label:api* channels  selectors []]"
    );
    assert_eq!(client.command("ACL GETUSER nobody"), "nil");
    assert_eq!(client.command("ACL CAT"), "[hit read status limits block forget backup metrics info admin connection]");
    assert_eq!(client.command("ACL CAT admin"), "[acl|list acl|getuser]");
    assert_eq!(client.command("ACL CAT x"), "-ERR Unknown category 'x'");
    assert!(client.command("ACL HELP").contains("WHOAMI"));

    // Without users there is one, who may do everything.
    let server = crate::support::Server::start(&["--store", "memory"]);
    let mut client = RespClient::connect(server.resp);
    assert_eq!(client.command("ACL WHOAMI"), "default");
    assert_eq!(client.command("ACL LIST"), "[user default on +@all ~*]");
}

#[test]
fn http_clients_log_in_with_basic_or_a_bearer_token() {
    let guarded = Guarded::start(&(line("app", "+@read ~*") + &slow("ann", "+@read ~*")), &[]);
    let ask = |values: &[&str]| {
        let headers = values.iter().map(|value| ("authorization", *value)).chain([("connection", "close")]);
        request(guarded.server.http, encode("GET", "/v1/rules", &headers.collect::<Vec<_>>(), b""))
    };
    let token = format!("Bearer {}", password("app"));
    for header in [&token, &basic("app"), &basic("ann")] {
        for _ in 0..2 {
            assert_eq!(ask(&[header]).status, 200, "{header}");
        }
    }
    let pair = |text: &str| format!("Basic {}", STANDARD.encode_to_string(text));
    let wrong = "the token, the user or the password is wrong, or the user is disabled";
    let unreadable = "Authorization is unreadable: send it once, as Bearer TOKEN, or as Basic with user and password";
    for (header, detail) in [
        (format!("Bearer {}", password("ann")), wrong),
        ("Bearer x".to_owned(), wrong),
        (pair("app"), unreadable),
        (pair("app:"), wrong),
        (pair(":app's password"), wrong),
        (pair("ann:app's password"), wrong),
        (pair("APP:app's password"), wrong),
        (format!("{token} x"), wrong),
        ("Basic !".to_owned(), unreadable),
        (String::new(), unreadable),
    ] {
        let refused = ask(&[&header]);
        assert_eq!(refused.status, 401, "{header}");
        assert!(refused.body.contains(detail), "{header}: {}", refused.body);
        assert!(refused.header("www-authenticate").unwrap().contains("Basic realm="), "{refused:?}");
    }
    for both in [[&*token, &token], [&token, "Bearer x"], ["Bearer x", &token], [&token, ""]] {
        let refused = ask(&both);
        assert!(refused.status == 401 && refused.body.contains(unreadable), "{both:?}: {refused:?}");
    }
    let refused = ask(&[]);
    assert!(refused.status == 401 && refused.body.contains("a user is required"), "{refused:?}");
}

#[test]
fn requirepass_is_the_password_of_the_user_default() {
    let guarded = Guarded::start(&line("app", "+@hit ~*"), &["--requirepass", "open sesame", "--open", "none"]);
    let mut client = RespClient::connect(guarded.server.resp);
    assert_eq!(client.command_of(&[b"AUTH", b"open sesame"]), "OK");
    assert_eq!(client.command("ACL WHOAMI"), "default");
    assert!(client.command("INFO server").contains("redis_version"));
    assert_eq!(
        client.command("ACL GETUSER default"),
        "[flags [on] passwords [sha256] commands +@all keys ~* channels  selectors []]"
    );
    let mut client = LineClient::connect(guarded.server.line);
    client.send(format!("AUTH {}\nAUTH open sesame\nHIT method=GET path=/status\n", password("app")).as_bytes());
    let replies = [client.read_line(), client.read_line(), client.read_line()];
    assert_eq!(replies, ["ERR unauthenticated \"The password is wrong.\"\n", "OK\n", "OK true 999 60\n"]);
    let token = http_status(&guarded, "Bearer open sesame");
    assert_eq!(token, 200);
    // The file cannot define the user, too.
    guarded.reload(&line("default", "+@hit ~*"), "not loaded; the previous users stay in force", 1);
    // The audit log is in the log, and names the first problem, too.
    assert_eq!(guarded.log.count("--requirepass defines the user default already"), 2);
    assert_eq!(http_status(&guarded, "Bearer open sesame"), 200);
}

fn http_status(guarded: &Guarded, authorization: &str) -> u16 {
    let headers = [("authorization", authorization), ("connection", "close")];
    request(guarded.server.http, encode("GET", "/metrics", &headers, b"")).status
}

#[test]
fn client_certificates_are_users() {
    let certificates = Certificates::new();
    let (cert, key, ca) =
        (certificates.path("server.pem"), certificates.path("server.key"), certificates.path("ca.pem"));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    // The name is the first DNS name of the test's certificates.
    let file = "user gateway on cert:localhost +@hit ~*\n".to_owned() + &line("ann", "+@read ~*");
    let guarded = Guarded::start(&file, &tls);
    let (client_cert, client_key) = (certificates.path("client.pem"), certificates.path("client.key"));
    let redis_cli = |login: &[&str], words: &[&str]| {
        let mut command = Command::new("redis-cli");
        let port = guarded.server.resp.port().to_string();
        command.args([
            "-h",
            "localhost",
            "-p",
            &port,
            "--tls",
            "--cacert",
            &ca,
            "--cert",
            &client_cert,
            "--key",
            &client_key,
        ]);
        command.args(login).args(words);
        run(command)
    };
    assert_eq!(redis_cli(&[], &["ACL", "WHOAMI"]), "gateway\n");
    assert_eq!(redis_cli(&[], &["DIVVY.HIT", "method=GET", "path=/status"]), "1\n999\n60\n");
    assert!(redis_cli(&[], &["DIVVY.RULES"]).starts_with("NOPERM User gateway"));
    let ann = ["--no-auth-warning", "--user", "ann", "--pass", &password("ann")];
    assert_eq!(redis_cli(&ann, &["ACL", "WHOAMI"]), "ann\n");

    let curl = |arguments: &[&str], address: std::net::SocketAddr, path: &str| {
        let mut command = Command::new("curl");
        command.args([
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--cacert",
            &ca,
            "--cert",
            &client_cert,
            "--key",
            &client_key,
        ]);
        command.args(arguments).arg(format!("https://localhost:{}{path}", address.port()));
        run(command)
    };
    let http = guarded.server.http;
    let (json, body) = ("content-type: application/json", r#"{"operation":{"method":"GET","path":"/status"}}"#);
    assert_eq!(curl(&["-H", json, "-d", body], http, "/v1/hit"), "200");
    assert_eq!(curl(&[], http, "/v1/rules"), "403");
    assert_eq!(curl(&["-H", &format!("authorization: {}", basic("ann"))], http, "/v1/rules"), "200");
    assert_eq!(curl(&["-H", "authorization: Bearer x"], http, "/v1/rules"), "401", "the header counts");

    // The certificate belongs to no user.
    guarded.reload(&line("ann", "+@read ~*"), "the new users are in force", 1);
    assert_eq!(curl(&["-H", json, "-d", body], http, "/v1/hit"), "401");
    assert!(redis_cli(&[], &["PING"]).starts_with("NOAUTH"));
}

#[test]
fn popular_clients_log_in_as_a_user() {
    let guarded = Guarded::start(&(line("app", "+@hit ~*") + &slow("all", "+@all ~*")), &[]);
    let login = [&password("all"), "all"];
    drive_by_node_as("ioredis", &guarded.server, &login);
    drive_by_node_as("node-redis", &guarded.server, &login);
    drive_by_redis_py_as(&guarded.server, &login);
    let port = guarded.server.resp.port().to_string();
    let mut command = Command::new("redis-cli");
    command.args(["-p", &port, "--no-auth-warning", "--user", "app", "--pass", &password("app"), "-3"]);
    assert_eq!(
        run({
            command.args(["DIVVY.PEEK", "method=GET", "path=/status"]);
            command
        }),
        "1\n1000\n0\n"
    );
}

#[test]
fn silent_client_without_a_user_is_closed() {
    let guarded = Guarded::start(&line("app", "+@hit ~*"), &[]);
    let mut stream = connect(guarded.server.resp);
    stream.write_all(b"PING\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "-NOAUTH Authentication required.\r\n");
}
