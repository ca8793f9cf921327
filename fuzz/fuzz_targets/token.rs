//! Tokens for one actor: bytes from outside are refused, and so is a token with a part of it replaced. Any content under a
//! valid seal is either refused or a grant that can be sealed again.

#![no_main]

use std::sync::LazyLock;

use divvy::access::{TokenError, TokenGrant, TokenKeys};
use divvy::clock::Timestamp;
use libfuzzer_sys::fuzz_target;
use pasetors::keys::SymmetricKey;
use pasetors::version4::{LocalToken, V4};

const KEY: &str = "k4.local.cHFyc3R1dnd4eXp7fH1-f4CBgoOEhYaHiImKi4yNjo8";
/// Start of the year 2027.
const NOW: Timestamp = Timestamp::from_nanos(1_798_761_600_000_000_000);

static KEYS: LazyLock<TokenKeys> = LazyLock::new(|| TokenKeys::parse(KEY, "keys").expect("a key"));
static SECRET: LazyLock<SymmetricKey<V4>> = LazyLock::new(|| SymmetricKey::try_from(KEY).expect("a key"));

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (kind, place, bytes) = input;
    match kind % 3 {
        0 => assert!(KEYS.open(bytes, NOW).is_err(), "nobody can guess a token"),
        1 => open_replaced(usize::from(place), bytes),
        _ => open_sealed(bytes),
    }
});

/// Replaces a part of a valid token with these bytes.
fn open_replaced(place: usize, bytes: &[u8]) {
    let content = br#"{"exp":"2027-01-01T01:00:00Z","actor":{"user":"ann"}}"#;
    let token = seal(content).expect("a token");
    let start = place % token.len();
    let end = token.len().min(start + bytes.len());
    let replaced = [&token.as_bytes()[..start], bytes, &token.as_bytes()[end..]].concat();
    let opened = KEYS.open(&replaced, NOW);
    assert_eq!(opened.is_ok(), replaced == token.as_bytes(), "{}", replaced.escape_ascii());
}

/// Opens a token whose key made it, with any content.
fn open_sealed(content: &[u8]) {
    let Some(token) = seal(content) else { return };
    let Ok(grant) = KEYS.open(token.as_bytes(), NOW) else { return };
    match KEYS.seal(&grant) {
        Ok(token) => assert_eq!(KEYS.open(token.as_bytes(), NOW), Ok::<TokenGrant, TokenError>(grant)),
        // Escapes may make a content longer than it was.
        Err(error) => assert_eq!(error, TokenError::TooLong),
    }
}

/// Seals any content but an empty one.
fn seal(content: &[u8]) -> Option<String> {
    let footer = format!("{{\"kid\":\"{}\"}}", KEYS.ids().next().expect("one key"));
    LocalToken::encrypt(&SECRET, content, Some(footer.as_bytes()), None).ok()
}
