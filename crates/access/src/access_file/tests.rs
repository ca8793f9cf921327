use proptest::prelude::*;

use super::*;
use crate::user::{Grants, ScopeText};

fn users(text: &str) -> Vec<User> {
    parse(text, "users.acl", None).map(|file| file.users).unwrap_or_else(|report| panic!("{report:?}"))
}

fn errors(text: &str) -> Vec<String> {
    let report = parse(text, "users.acl", Some(&Digest::of(b"the password"))).expect_err(text);
    report.errors.iter().map(Problem::to_string).collect()
}

fn digest(text: &str) -> String {
    Digest::of(text.as_bytes()).to_word()
}

#[test]
fn line_is_read_from_left_to_right() {
    let slow = SlowHash::of("x").unwrap();
    let line =
        format!("user app on {} {slow} cert:spiffe://prod/app +@all -@forget ~label:api* ~label:web", digest("t"));
    let text = format!("# users\n\n  {line}\r\n\tuser ops off -@all +@READ allkeys\n");
    let [app, ops] = &users(&text)[..] else { panic!() };
    assert!(app.is_on && !ops.is_on && &*app.name == "app");
    assert_eq!((&app.digests[..], &app.slow_hashes[..]), (&[Digest::of(b"t")][..], &[slow][..]));
    assert_eq!(&*app.certificates[0], "spiffe://prod/app");
    assert_eq!(app.granted, Categories::ALL.without(Category::Forget));
    assert_eq!(app.scope.labels, ["api*", "web"]);
    assert_eq!(ops.granted, Categories::NONE.with(Category::Read).with(Category::Status));
    assert!(ops.scope == ScopeText::everything() && ops.scope.covers_everything);
    assert_eq!(
        app.to_string(),
        "user app on (sha256) (argon2id) cert:spiffe://prod/app -@all +@hit +@read +@limits \
                                 +@block +@backup +@metrics +@info +@admin ~label:api* ~label:web"
    );
}

#[test]
fn actor_without_labels_is_in_scope_in_all_rules() {
    let actors = users("user a on ~actor:user=ann\nuser b on ~label:api* ~actor:user=a%20b&tenant=x%26y");
    assert_eq!((&actors[0].scope.labels[..], &actors[1].scope.labels[..]), (&["*".into()][..], &["api*".into()][..]));
    let fields = [("user".to_owned(), "a b".to_owned()), ("tenant".to_owned(), "x&y".to_owned())];
    assert_eq!(actors[1].scope.actor.as_deref(), Some(&fields[..]));
    assert_eq!(actors[1].scope.to_string(), "~label:api* ~actor:user=a+b&tenant=x%26y");
}

#[test]
fn users_with_a_scope_have_neither_metrics_nor_info_nor_backups_nor_other_users() {
    let all_rules = [Category::Metrics, Category::Info, Category::Backup, Category::Admin];
    let others = all_rules.into_iter().fold(Categories::ALL, Categories::without);
    for (scope, expected) in [("~*", Categories::ALL), ("~label:*", others), ("", others)] {
        assert_eq!(users(&format!("user a on +@all {scope}"))[0].rights(), expected, "{scope}");
    }
    assert!(users("user a on -@all")[0].rights().contains(Category::Connection));
}

#[test]
fn every_mistake_is_reported_with_its_line_and_a_fix() {
    let (hash, other) = (digest("t"), digest("u"));
    let bare = other.trim_start_matches('#');
    let text = format!(
        "usr a on\nuser\nuser on\nuser a:b on\nuser a\nuser b on off\nuser c on +@hits -@connection\nuser d on >secret\n\
         user e on nopass\nuser f on #12\nuser g on $argon2id$x\nuser h on +ping\nuser i on ~keys:*\n\
         user j on ~label: ~actor:x ~actor:=y\nuser k on ~* ~label:x\nuser l on {hash}\nuser l on {hash}\n\
         user default on\nuser m on cert:\nuser n on cert:x\nuser o on cert:x\nuser p on ~actor:a=1 ~actor:b=2\n\
         user q on ~actor:a=1&a=2\nuser r on {other} {other} ~*\n\
         user s on sha256:{bare} # =19=8,t=2,p=1secret ${{HASH}} +@hit,read"
    );
    let found = errors(&text);
    for (line, what) in [
        (1, "does not begin with `user` and a name; write `user NAME on"),
        (2, "does not begin with `user` and a name"),
        (3, "`on` stands where the user's name belongs"),
        (4, "contains a colon"),
        (5, "neither on nor off"),
        (6, "on or off twice"),
        (7, "no category hits; write a word for each category: all, or one of hit, read, status, limits,"),
        (7, "every user has the category connection"),
        (8, "a word is not a word of an access file; use on, off, #HASH"),
        (9, "`nopass` is not a word of an access file"),
        (10, "not a SHA-256 hash; write 64 hexadecimal digits"),
        (11, "is damaged"),
        (12, "`+ping` is not a word of an access file"),
        (13, "~keys:* is not a scope"),
        (14, "the pattern after ~label: is missing"),
        (14, "a field of the actor has no name"),
        (15, "~* covers everything"),
        (17, "the user l is on line 16 already"),
        (17, "this #hash is on line 16 already"),
        (18, "--requirepass defines the user default already"),
        (19, "name of a certificate is missing"),
        (21, "the certificate x is on line 20 already"),
        (22, "two actors"),
        (23, "the field a twice"),
        (24, "this #hash is on line 24 already"),
        (25, "a word is not a word of an access file"),
        (25, "not a SHA-256 hash; write 64 hexadecimal digits"),
        (25, "is not an argon2id hash"),
        (25, "no category hit,read; write a word for each"),
    ] {
        let start = format!("users.acl:{line}: ");
        assert!(
            found.iter().any(|error| error.starts_with(&start) && error.contains(what)),
            "{line} {what}: {found:#?}"
        );
    }
    let is_secret = |error: &String| error.contains("secret") || error.contains(&hash) || error.contains(bare);
    assert!(!found.iter().any(is_secret), "{found:#?}");
    assert!(found.iter().all(|error| error.contains("; ")), "each has a fix");
    for text in ["", "\n  \n", "# user ann on\n"] {
        assert!(errors(text)[0].contains("there are no users"), "{text:?}");
    }
}

#[test]
fn name_with_invisible_characters_is_a_mistake() {
    for hidden in ['\u{202e}', '\u{200b}', '\u{2066}', '\u{ad}', '\u{feff}', '\u{e000}'] {
        let found = errors(&format!("user ann on ~*\nuser an{hidden}n on ~*"));
        assert!(found[0].starts_with("users.acl:2: ") && found[0].contains("cannot be seen; "), "{hidden:?} {found:?}");
        assert!(!found[0].contains(hidden));
    }
    let names = ["zoë", "e\u{301}va", "नमस्ते", "山田", "o'neil", "dom\\user", "a\"b"];
    let text: String = names.iter().map(|name| format!("user {name} on ~*\n")).collect();
    assert_eq!(users(&text).iter().map(|user| &*user.name).collect::<Vec<_>>(), names);
}

#[test]
fn status_is_a_part_of_reading() {
    for (words, expected) in [
        ("+@read", "-@all +@read"),
        ("+@status", "-@all +@status"),
        ("+@read -@status", "-@all +@read -@status"),
        ("+@read +@status -@read", "-@all"),
        ("+@all -@read", "-@all +@hit +@limits +@block +@forget +@backup +@metrics +@info +@admin"),
        ("+@all -@status", "-@all +@hit +@read +@limits +@block +@forget +@backup +@metrics +@info +@admin -@status"),
        ("+@all", "+@all"),
    ] {
        let file = parse(&format!("user a on {words}"), "f", None).unwrap();
        assert_eq!(Grants(file.users[0].granted).to_string(), expected, "{words}");
    }
}

#[test]
fn doubtful_lines_are_warned_of() {
    let (cheap, usual) = (
        "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$qn0yvbkTPwqCqVYlFa6G2uBHdaQ2UB0ZX6pFtnrOx8k",
        SlowHash::of("x").unwrap(),
    );
    let text = format!(
        "user a on +@hit ~*\nuser b on cert:b +@hit\nuser c on cert:c +@all ~label:x\nuser d on {usual} +@hit ~*\n\
         user e on {cheap} +@hit ~*\nuser f on cert:f +@hit -@all ~*\nuser g on {} +@hit ~label:a,b",
        digest("secret")
    );
    let of_file = |password: &[u8]| parse(&text, "f", Some(&Digest::of(password))).unwrap().warnings;
    let warnings: Vec<String> = of_file(b"secret").iter().map(Problem::to_string).collect();
    for what in [
        "f:1: the user a cannot log in",
        "f:2: the user b has +@hit, but no rule",
        "f:3: +@backup +@metrics +@info +@admin: without effect for the user c, whose scope is not ~*; withdraw them",
        "f:5: an argon2id hash of e has other costs",
        "f:6: the user f has no category: it can log in, and do nothing else; grant one",
        "f:7: the #hash of g is that of --requirepass",
        "f:7: ~label:a,b matches no rule: labels have letters, digits, _ and - only; correct the pattern; for several",
    ] {
        assert!(warnings.iter().any(|warning| warning.starts_with(what)), "{what}: {warnings:#?}");
    }
    assert_eq!((warnings.len(), of_file(b"x").len()), (7, 6), "{warnings:#?}");
}

#[test]
fn user_with_a_malformed_credential_has_one_message() {
    let report = parse("user a on #12 +@hit ~*\nuser b on +@hit ~*", "f", None).unwrap_err();
    let lines = |problems: &[Problem]| problems.iter().map(|problem| problem.line.unwrap()).collect::<Vec<_>>();
    assert_eq!((lines(&report.errors), lines(&report.warnings)), (vec![1], vec![2]), "{report:?}");
}

fn user() -> impl Strategy<Value = User> {
    let label = "[a-zé*:~#]{1,8}";
    let actor = proptest::option::of(proptest::collection::btree_map("[a-z =&%]{1,4}", "[ -~é]{0,6}", 1..3));
    let scope = (any::<bool>(), proptest::collection::vec(label, 0..3), actor);
    let credentials = (proptest::collection::vec("[a-z]{20}", 0..3), proptest::collection::vec("[a-z:/]{1,9}", 0..2));
    ("[a-z][a-z0-9é.@-]{0,12}", any::<bool>(), 0..512_u16, scope, credentials).prop_map(
        |(name, is_on, granted, (covers_everything, labels, actor), (tokens, certificates))| {
            let categories = Category::ALL.iter().enumerate().filter(|(index, _)| granted & (1 << index) != 0);
            let mut scope =
                ScopeText { covers_everything, labels, actor: actor.map(|actor| actor.into_iter().collect()) };
            if covers_everything {
                scope = ScopeText::everything();
            } else if scope.actor.is_some() && scope.labels.is_empty() {
                scope.labels.push("*".to_owned());
            }
            User {
                is_on,
                digests: tokens.iter().map(|token| Digest::of(token.as_bytes())).collect(),
                certificates: certificates.iter().map(|name| name.as_str().into()).collect(),
                granted: categories.fold(Categories::NONE, |set, (_, category)| set.with(*category)),
                scope,
                ..User::new(&format!("u-{name}"))
            }
        },
    )
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_reported(text in "(user |on |off |[#$+@~:=&>*a-z0-9 é\n]){0,60}") {
        match parse(&text, "f", None) {
            Ok(file) => prop_assert!(file.users.len() <= text.lines().count()),
            Err(report) => prop_assert!(!report.errors.is_empty()),
        }
    }

    #[test]
    fn written_user_is_read_back(user in user()) {
        let digests: String = user.digests.iter().map(|digest| format!(" {}", digest.to_word())).collect();
        let certificates: String = user.certificates.iter().map(|name| format!(" cert:{name}")).collect();
        let state = if user.is_on { "on" } else { "off" };
        let line = format!("user {} {state}{digests}{certificates} {} {}", user.name, Grants(user.granted), user.scope);
        match parse(&line, "f", None) {
            Ok(file) => {
                let read = &file.users[0];
                // `+@all` includes the category that every user has.
                prop_assert_eq!(read.rights(), user.rights());
                prop_assert_eq!(User { granted: user.granted, ..read.clone() }, user);
            }
            // Equal tokens or certificates.
            Err(report) => prop_assert!(report.errors.iter().all(|error| error.what.contains("already")), "{:?}", report),
        }
    }
}
