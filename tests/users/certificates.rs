//! Client certificates with unusual names: only the exact name of a user's `cert:` word logs in.

use std::process::Command;

use rcgen::SanType;

use super::{Guarded, line, password};
use crate::clients::run;
use crate::support::Certificates;

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

/// Certificates: the common name, the alternative names, and the user.
fn cases() -> Vec<(Option<&'static str>, Vec<SanType>, Option<&'static str>)> {
    let address = || SanType::IpAddress([127, 0, 0, 1].into());
    vec![
        (None, vec![dns("app.example")], Some("app")),
        (Some("app.example"), vec![], Some("app")),
        (Some("app.example"), vec![address()], Some("app")),
        (None, vec![uri("spiffe://prod/app"), dns("other.example")], Some("app")),
        // Two users' names: the first one counts.
        (Some("other.example"), vec![dns("app.example"), dns("other.example")], Some("app")),
        (Some("app.example"), vec![dns("other.example"), dns("app.example")], Some("other")),
        // No name.
        (None, vec![], None),
        (None, vec![address()], None),
        (Some(""), vec![], None),
        (Some("app.example"), vec![dns("")], None),
        (None, vec![dns(""), dns("app.example")], None),
        (None, vec![SanType::Rfc822Name("app.example".try_into().unwrap())], None),
        // An unknown alternative name hides the common name.
        (Some("app.example"), vec![dns("stranger.example")], None),
        // A wildcard is a name like any other.
        (Some("*.example"), vec![], Some("star")),
        (None, vec![dns("*.example")], Some("star")),
        (None, vec![dns("*")], None),
        (None, vec![dns("x.example")], None),
        // Almost a user's name.
        (None, vec![dns("app.example\0.evil.example")], None),
        (Some("app.example\0"), vec![], None),
        (None, vec![dns("app.example ")], None),
        (Some(" app.example"), vec![], None),
        (None, vec![dns("app.example.")], None),
        (None, vec![dns("APP.EXAMPLE")], None),
        (Some("app"), vec![], None),
        (Some("cert:app.example"), vec![], None),
        (Some("app.example,other.example"), vec![], None),
    ]
}

#[test]
fn only_the_exact_name_in_a_certificate_logs_in() {
    let certificates = Certificates::new();
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| certificates.path(name));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca, "--open", "none"];
    let users = "user app on cert:app.example cert:spiffe://prod/app +@read ~*\n\
                 user other on cert:other.example +@read ~*\n\
                 user star on cert:*.example +@read ~*\n\
                 user app.example off cert:off.example +@all ~*\n";
    let guarded = Guarded::start(&(users.to_owned() + &line("ann", "+@all ~*")), &tls);
    for (number, (common_name, alternatives, user)) in cases().into_iter().enumerate() {
        let what = format!("{common_name:?} {alternatives:?}");
        let file = format!("client-{number}");
        certificates.issue_named(&file, common_name, alternatives);
        let own = [certificates.path(&format!("{file}.pem")), certificates.path(&format!("{file}.key"))];

        let redis_cli = |login: &[&str]| {
            let mut command = Command::new("redis-cli");
            command.args(["-h", "localhost", "-p", &guarded.server.resp.port().to_string(), "--tls", "--cacert", &ca]);
            command.args(["--cert", &own[0], "--key", &own[1], "--no-auth-warning"]).args(login);
            command.args(["ACL", "WHOAMI"]);
            run(command)
        };
        let ann = redis_cli(&["--user", "ann", "--pass", &password("ann")]);
        assert_eq!(ann.trim(), "ann", "{what}: a password takes precedence");
        let name = redis_cli(&[]);
        match user {
            Some(user) => assert_eq!(name.trim(), user, "{what}"),
            None => assert!(name.starts_with("NOAUTH"), "{what}: {name}"),
        }

        for (more, user) in [(&[][..], user), (&["-H", "authorization: Bearer x"], None)] {
            let mut curl = Command::new("curl");
            curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", &ca]);
            curl.args(["--cert", &own[0], "--key", &own[1]]).args(more);
            curl.arg(format!("https://localhost:{}/v1/rules", guarded.server.http.port()));
            assert_eq!(run(curl), if user.is_some() { "200" } else { "401" }, "{what}");
        }
    }
}
