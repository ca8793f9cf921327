use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp::from_nanos(1_800_000_000_000_000_000);

const HOUR: Duration = Duration::from_hours(1);

const KEY: &str = "k4.local.cHFyc3R1dnd4eXp7fH1-f4CBgoOEhYaHiImKi4yNjo8";

fn keys(text: &str) -> TokenKeys {
    TokenKeys::parse(text, "keys").unwrap()
}

fn new_key() -> String {
    TokenKeys::generate().unwrap()
}

fn grant(actor: &[(&str, &str)], labels: &[&str]) -> TokenGrant {
    let actor = actor.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
    TokenGrant::new(actor, labels.iter().map(|label| (*label).to_owned()).collect(), NOW, HOUR).unwrap()
}

fn ann() -> TokenGrant {
    grant(&[("user", "ann")], &[])
}

fn after(seconds: i64) -> Timestamp {
    let nanos = seconds.unsigned_abs() * 1_000_000_000;
    if seconds < 0 { NOW.minus(nanos) } else { NOW.plus(nanos) }
}

/// Seals any text with the first key.
fn seal_claims(keys: &TokenKeys, claims: &str, footer: &str) -> String {
    LocalToken::encrypt(&keys.keys[0].secret, claims.as_bytes(), Some(footer.as_bytes()), None).unwrap()
}

fn footer(keys: &TokenKeys) -> String {
    format!("{{\"kid\":\"{}\"}}", keys.keys[0].id)
}

/// Opens a token with these claims.
fn open_claims(claims: &str) -> Result<TokenGrant, TokenError> {
    let keys = keys(KEY);
    keys.open(seal_claims(&keys, claims, &footer(&keys)).as_bytes(), NOW)
}

#[test]
fn token_of_another_library_is_valid() {
    // From pyseto 1.9 with the key KEY.
    let token = concat!(
        "v4.local.cnsnpdYT_p1-iNsKI_clZLDEvbdEmuXRDiKvA3v88VPBgPLXVQSrPesHmx3SWB1K4eEaMDHtvLk6UlHaK8KISrRgxaF",
        "hkYEGFwvfPFTMV7BTaHauYCYVolxbCEhCenfC4dreTaOn1vVttqXUjvw0FYJe4OlwQFl9co-EPiSyE9YrzfmgyIVEUnDLRf0UabH",
        "ioXlQfbfbdQNbmqgtxWpBuzEI57IyQAOoXQ.eyJraWQiOiAiazQubGlkLmlWdFlRRGpyNWdFaWpDU2pKQzNmUWFKbTduQ2VRU2Vh",
        "dHkwSml4eThkYnNrIn0",
    );
    let grant = keys(KEY).open(token.as_bytes(), NOW).unwrap();
    assert_eq!(grant.into_scope().to_string(), "~label:api-* ~actor:tenant=acm%C3%A9&user=ann");
}

#[test]
fn altered_token_is_refused() {
    let keys = keys(&(KEY.to_owned() + "\n" + &new_key()));
    let token = keys.seal(&ann()).unwrap();
    for index in 0..token.len() {
        for replacement in [b'A', b'B', b'_', b'.', b'=', b' ', 0, 0x80, token.as_bytes()[index] ^ 1] {
            let mut altered = token.clone().into_bytes();
            if altered[index] != replacement {
                altered[index] = replacement;
                assert!(keys.open(&altered, NOW).is_err(), "{}", altered.escape_ascii());
            }
        }
        assert!(keys.open(&token.as_bytes()[..index], NOW).is_err(), "{index} bytes");
        assert!(keys.open(&[&token.as_bytes()[..index], &token.as_bytes()[index + 1..]].concat(), NOW).is_err());
    }
    for suffix in ["A", "=", "==", ".", ".A", " ", "\0"] {
        assert!(keys.open((token.clone() + suffix).as_bytes(), NOW).is_err(), "{suffix:?}");
    }
    // A part of one token, and a part of another.
    let other = keys.seal(&ann()).unwrap();
    for index in 10..token.len() {
        let mixed = [&token.as_bytes()[..index], &other.as_bytes()[index..]].concat();
        assert!(mixed == token.as_bytes() || mixed == other.as_bytes() || keys.open(&mixed, NOW).is_err(), "{index}");
    }
    assert!(keys.open(token.as_bytes(), NOW).is_ok());
}

#[test]
fn tokens_of_every_key_are_accepted_until_it_is_removed() {
    let (old, new) = (new_key(), new_key());
    let only_old = keys(&old);
    let token = only_old.seal(&ann()).unwrap();
    for (text, expected) in [
        (old.clone() + &new, Ok(())),
        (new.clone() + &old, Ok(())),
        (new.clone(), Err(TokenError::UnknownKey)),
        (new_key(), Err(TokenError::UnknownKey)),
    ] {
        assert_eq!(keys(&text).open(token.as_bytes(), NOW).map(drop), expected);
    }
    let rotated = keys(&(new.clone() + &old));
    let token = rotated.seal(&ann()).unwrap();
    assert!(keys(&new).open(token.as_bytes(), NOW).is_ok(), "the first key makes tokens");
    assert_eq!(only_old.open(token.as_bytes(), NOW), Err(TokenError::UnknownKey));
}

#[test]
fn footer_names_the_key() {
    let two = keys(&(KEY.to_owned() + "\n" + &new_key()));
    let claims = serde_json::to_string(&ann()).unwrap();
    let (own, other) = (footer(&two), format!("{{\"kid\":\"{}\"}}", two.keys[1].id));
    for (footer, expected) in [
        (own.as_str(), Ok(())),
        (&own.replace(':', " : "), Ok(())),
        (&other, Err(TokenError::Altered)),
        (&own.replace("lid", "pid"), Err(TokenError::UnknownKey)),
        ("{\"kid\":\"\"}", Err(TokenError::UnknownKey)),
        ("", Err(TokenError::NoKeyId)),
        ("{}", Err(TokenError::NoKeyId)),
        ("{\"kid\":5}", Err(TokenError::NoKeyId)),
        (&two.keys[0].id, Err(TokenError::NoKeyId)),
        (&own.replace('}', ",\"x\":1}"), Err(TokenError::NoKeyId)),
        (&"[".repeat(500), Err(TokenError::NoKeyId)),
    ] {
        let token = seal_claims(&two, &claims, footer);
        assert_eq!(two.open(token.as_bytes(), NOW).map(drop), expected, "{footer}");
    }
    let token = LocalToken::encrypt(&two.keys[0].secret, claims.as_bytes(), None, None).unwrap();
    assert_eq!(two.open(token.as_bytes(), NOW), Err(TokenError::NoKeyId));
    let assertion =
        LocalToken::encrypt(&two.keys[0].secret, claims.as_bytes(), Some(own.as_bytes()), Some(b"x")).unwrap();
    assert_eq!(two.open(assertion.as_bytes(), NOW), Err(TokenError::Altered));
}

#[test]
fn other_kinds_of_tokens_are_refused() {
    let keys = keys(KEY);
    let token = keys.seal(&ann()).unwrap();
    for other in ["v1.local.", "v2.local.", "v3.local.", "v4.public.", "V4.local.", "v4.LOCAL.", "v4..", ""] {
        let text = token.replacen("v4.local.", other, 1);
        assert_eq!(keys.open(text.as_bytes(), NOW), Err(TokenError::Malformed), "{text}");
        assert!(!TokenKeys::is_token(text.as_bytes()));
    }
    for text in ["v4.local.", "v4.local..", "v4.local.AAAA", "v4.local.a.b.c.d", "v4.local.\u{fc}"] {
        assert_eq!(keys.open(text.as_bytes(), NOW), Err(TokenError::Malformed), "{text}");
    }
    assert_eq!(keys.open(b"v4.local.\xff", NOW), Err(TokenError::Malformed));
}

#[test]
fn token_has_a_maximum_length() {
    let keys = keys(KEY);
    let lengths = (1000..4096).filter(|length| keys.seal(&grant(&[("user", &"a".repeat(*length))], &[])).is_ok());
    let longest = lengths.max().unwrap();
    assert!(longest > 2500, "{longest}");
    assert_eq!(keys.seal(&grant(&[("user", &"a".repeat(longest + 3))], &[])), Err(TokenError::TooLong));
    for length in [MAX_TOKEN_BYTES + 1, 1 << 20] {
        let huge = "v4.local.".to_owned() + &"A".repeat(length - 9);
        assert_eq!(keys.open(huge.as_bytes(), NOW), Err(TokenError::TooLong));
    }
}

#[test]
fn token_is_valid_for_its_time_and_a_minute_of_skew() {
    let keys = keys(KEY);
    let token = keys.seal(&ann()).unwrap();
    for (seconds, expected) in [
        (0, Ok(())),
        (-60, Ok(())),
        (-61, Err(TokenError::NotYetValid)),
        (3600, Ok(())),
        (3659, Ok(())),
        (3660, Err(TokenError::Expired)),
        (1_000_000_000, Err(TokenError::Expired)),
        (-1_000_000_000, Err(TokenError::NotYetValid)),
    ] {
        assert_eq!(keys.open(token.as_bytes(), after(seconds)).map(drop), expected, "{seconds}");
    }
}

#[test]
fn grant_that_no_server_would_accept_is_not_made() {
    let make = |field: &str, label: &str, ttl| {
        TokenGrant::new([(field.to_owned(), "ann".to_owned())].into(), vec![label.to_owned()], NOW, ttl)
    };
    assert!(make("user", "api-*", MAX_TOKEN_TTL).is_ok());
    assert!(matches!(make("", "api-*", HOUR), Err(TokenError::Content(text)) if text.contains("field")));
    assert!(matches!(make("user", "", HOUR), Err(TokenError::Content(text)) if text.contains("labels")));
    assert!(TokenGrant::new([].into(), Vec::new(), NOW, HOUR).is_err());
    assert_eq!(make("user", "*", MAX_TOKEN_TTL + 2 * MAX_SKEW), Err(TokenError::ExpiresTooLate));
}

#[test]
fn times_of_other_programs_are_honored() {
    let actor = "\"actor\":{\"user\":\"ann\"}";
    // NOW is 2027-01-15T08:00:00Z.
    for (claims, expected) in [
        ("\"exp\":\"2027-01-15T08:00:01Z\"", Ok(())),
        ("\"exp\":\"2027-01-15T09:00:01+01:00\"", Ok(())),
        ("\"exp\":\"2027-01-15T07:59:01.5Z\"", Ok(())),
        ("\"exp\":\"2027-01-15T07:59:00Z\"", Err(TokenError::Expired)),
        ("\"exp\":\"1960-01-01T00:00:00Z\"", Err(TokenError::Expired)),
        ("\"exp\":\"2027-01-22T08:01:00Z\"", Ok(())),
        ("\"exp\":\"2027-01-22T08:01:01Z\"", Err(TokenError::ExpiresTooLate)),
        ("\"exp\":\"9998-12-31T00:00:00Z\"", Err(TokenError::ExpiresTooLate)),
        ("\"exp\":\"2027-01-15T09:00:00Z\",\"nbf\":\"2027-01-15T08:01:00Z\"", Ok(())),
        ("\"exp\":\"2027-01-15T09:00:00Z\",\"nbf\":\"2027-01-15T08:01:01Z\"", Err(TokenError::NotYetValid)),
        ("\"exp\":\"2027-01-15T09:00:00Z\",\"iat\":\"2027-01-15T08:01:01Z\"", Err(TokenError::NotYetValid)),
        (
            "\"exp\":\"2027-01-15T09:00:00Z\",\"iat\":\"2027-01-15T07:00:00Z\",\"nbf\":\"2027-01-15T08:01:01Z\"",
            Err(TokenError::NotYetValid),
        ),
        ("\"exp\":\"2027-01-15T09:00:00Z\",\"iat\":\"1960-01-15T07:00:00Z\"", Ok(())),
    ] {
        assert_eq!(open_claims(&format!("{{{claims},{actor}}}")).map(drop), expected, "{claims}");
    }
}

#[test]
fn content_says_what_it_must_say_and_nothing_else() {
    let exp = "\"exp\":\"2027-01-15T08:30:00Z\"";
    for claims in [
        "{\"actor\":{\"user\":\"ann\"}}".to_owned(),
        format!("{{{exp}}}"),
        format!("{{{exp},\"actor\":{{}}}}"),
        format!("{{{exp},\"actor\":{{\"\":\"ann\"}}}}"),
        format!("{{{exp},\"actor\":{{\"user\":5}}}}"),
        format!("{{{exp},\"actor\":[\"user\",\"ann\"]}}"),
        format!("{{{exp},\"actor\":\"user=ann\"}}"),
        format!("{{{exp},\"actor\":{{\"user\":\"ann\"}},\"actor\":{{\"user\":\"bob\"}}}}"),
        format!("{{{exp},\"actor\":{{\"user\":\"ann\"}},\"aud\":\"x\"}}"),
        format!("{{{exp},\"actor\":{{\"user\":\"ann\"}},\"rules\":\"*\"}}"),
        format!("{{{exp},\"actor\":{{\"user\":\"ann\"}},\"rules\":[\"\"]}}"),
        format!("{{{exp},\"actor\":{{\"user\":\"ann\"}}}}x"),
        "{\"exp\":1800001000,\"actor\":{\"user\":\"ann\"}}".to_owned(),
        "{\"exp\":\"2027-01-15\",\"actor\":{\"user\":\"ann\"}}".to_owned(),
        "{\"exp\":\"2027-01-15T08:30:00\",\"actor\":{\"user\":\"ann\"}}".to_owned(),
        "[]".to_owned(),
        "x".to_owned(),
    ] {
        let opened = open_claims(&claims);
        assert!(matches!(opened, Err(TokenError::Content(_))), "{claims}: {opened:?}");
    }
    let without_rules = format!("{{{exp},\"actor\":{{\"user\":\"ann\"}}}}");
    assert_eq!(open_claims(&without_rules).unwrap().into_scope().labels, ["*"]);
    let no_rule = format!("{{{exp},\"actor\":{{\"user\":\"ann\"}},\"rules\":[]}}");
    assert!(open_claims(&no_rule).unwrap().into_scope().is_empty());
}

#[test]
fn every_mistake_in_a_key_file_is_reported_with_its_line() {
    let long = (0..MAX_KEYS + 1).map(|_| new_key()).collect::<String>();
    for (text, expected) in [
        ("", &["keys: there is no key in this file"][..]),
        ("# only a comment\n\n", &["keys: there is no key"]),
        ("k4.local.AAAA", &["keys:1: this is not a key"]),
        (
            &format!("{KEY}\nsecret\n# {KEY}\n\n{KEY}"),
            &["keys:2: this is not a key", "keys:5: this key is on an earlier line"],
        ),
        (&format!("{KEY} x\n  {KEY}  "), &["keys:1: this is not a key"]),
        (&format!("{KEY}\n{}", KEY.replace("k4", "k2")), &["keys:2: this is not a key"]),
        (&format!("{KEY}\n{}", KEY.replace("local", "lid")), &["keys:2: this is not a key"]),
        (&long, &["keys:34: this key is on an earlier line, or there are more than 16 keys"]),
    ] {
        let report = TokenKeys::parse(text, "keys").unwrap_err();
        let shown: Vec<_> = report.errors.iter().map(ToString::to_string).collect();
        for (shown, expected) in shown.iter().zip(expected) {
            assert!(shown.starts_with(expected), "{text:?}: {shown}");
            assert!(!shown.contains("cHFyc3") && !shown.contains("secret"), "{shown}");
        }
        assert_eq!(shown.len(), expected.len(), "{text:?}: {shown:?}");
    }
}

#[test]
fn key_ids_are_those_of_the_standard() {
    // From PASERK's test vectors, k4.lid-2.
    assert_eq!(keys(KEY).keys[0].id, "k4.lid.iVtYQDjr5gEijCSjJC3fQaJm7nCeQSeaty0Jixy8dbsk");
    let text = new_key();
    let generated = keys(&text);
    let mut secret = String::new();
    generated.keys[0].secret.fmt(&mut secret).unwrap();
    assert_eq!(text, format!("# {}\n{secret}\n", generated.keys[0].id));
    assert!(!format!("{generated:?}").contains(&secret["k4.local.".len()..]));
}

proptest! {
    #[test]
    fn grants_survive_the_way_through_a_token(
        actor in proptest::collection::btree_map("\\PC{1,12}", "\\PC{0,20}", 1..5),
        labels in proptest::collection::vec("\\PC{1,8}", 0..4),
        ttl in 1..600_000_u64,
    ) {
        let keys = keys(KEY);
        let grant = TokenGrant::new(actor.clone(), labels.clone(), NOW, Duration::from_secs(ttl)).unwrap();
        let token = keys.seal(&grant).unwrap();
        let opened = keys.open(token.as_bytes(), NOW).unwrap();
        prop_assert_eq!(&opened, &grant);
        let labels = if labels.is_empty() { vec!["*".to_owned()] } else { labels };
        let actor = Some(actor.into_iter().collect());
        prop_assert_eq!(opened.into_scope(), ScopeText { covers_everything: false, labels, actor });
    }

    #[test]
    fn no_text_makes_the_server_fail(text in "(v4\\.local\\.)?[A-Za-z0-9_.=-]{0,300}") {
        prop_assert!(keys(KEY).open(text.as_bytes(), NOW).is_err());
    }
}
