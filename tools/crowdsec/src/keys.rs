//! Files with secrets: the keys for divvy and for CrowdSec, and the keys of bouncers.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use divvy_core::regular_file;
use hyper::header::HeaderValue;
use ring::digest::{SHA256, digest};

/// Maximum size of a file with secrets in bytes, far more than a few hundred keys need.
const MAX_FILE: u64 = 64 << 10;

/// Reads a file that contains a key and nothing else, for a header that has `before` in front of it.
pub fn read_key(path: &Path, before: &str) -> anyhow::Result<HeaderValue> {
    header_of(&read_secret(path)?, before)
}

fn header_of(text: &str, before: &str) -> anyhow::Result<HeaderValue> {
    let key = text.trim_ascii();
    // A password may have spaces.
    let is_printable = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    ensure!(is_printable, "the key must be the only line of the file, in printable ASCII characters");
    let mut key = HeaderValue::from_str(&format!("{before}{key}"))?;
    key.set_sensitive(true);
    Ok(key)
}

/// Reads a file with secrets.
fn read_secret(path: &Path) -> anyhow::Result<String> {
    let file = path.display();
    let bytes = regular_file::read(path, MAX_FILE).with_context(|| format!("cannot read {file}"))?;
    if let Some(warning) = regular_file::warn_if_public(path) {
        tracing::warn!("{warning}");
    }
    String::from_utf8(bytes).with_context(|| format!("{file} is not a text"))
}

/// The keys of bouncers, by their hashes.
#[derive(Debug)]
pub struct BouncerKeys(Vec<(String, String)>);

impl BouncerKeys {
    /// Reads a file with a name and a hash on each line, which `divvy access hash --sha256` makes. A line may be empty, or begin
    /// with `#` and a space.
    ///
    /// # Errors
    /// The file cannot be read, or a line is something else.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Self::parse(&read_secret(path)?).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut keys = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<_> = line.split_whitespace().collect();
            match *words {
                [] | ["#", ..] => {}
                [name, word] => {
                    let hash = word.strip_prefix('#').filter(|hash| hash.len() == 64).unwrap_or_default();
                    let is_hash = !hash.is_empty() && hash.bytes().all(|digit| digit.is_ascii_hexdigit());
                    ensure!(is_hash, "line {number}: the hash must be as `divvy access hash --sha256` prints it");
                    keys.push((name.to_owned(), hash.to_ascii_lowercase()));
                }
                _ => bail!("line {number}: write a name and a hash"),
            }
        }
        ensure!(!keys.is_empty(), "it has no keys");
        Ok(Self(keys))
    }

    /// Returns the name of a key; `None` if there is no such key.
    pub fn find(&self, key: &[u8]) -> Option<&str> {
        // How far two hashes are equal says nothing about the key.
        let hash: String = digest(&SHA256, key).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        self.0.iter().find(|(_, known)| *known == hash).map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_one_line() {
        assert_eq!(header_of("abc\n", "Bearer ").unwrap(), "Bearer abc");
        assert_eq!(header_of("correct horse\n", "").unwrap(), "correct horse");
        for text in ["", "\n", "a\nb", "\u{fc}"] {
            assert!(header_of(text, "").unwrap_err().to_string().contains("the key must be the only line"), "{text}");
        }
    }

    const OF_ABC: &str = "#ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn key_is_found_by_its_hash() {
        let keys = BouncerKeys::parse(&format!("# a comment\n\nfirewall {OF_ABC}\n")).unwrap();
        assert_eq!((keys.find(b"abc"), keys.find(b"abd"), keys.find(b"")), (Some("firewall"), None, None));
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, expected) in [
            ("", "no keys"),
            ("a\n", "line 1: write a name and a hash"),
            ("\na abc\n", "line 2: the hash must be"),
            (&format!("a {}", OF_ABC.get(1..).unwrap()), "line 1: the hash must be"),
            (&format!("a {OF_ABC}0"), "line 1: the hash must be"),
            (&format!("a {OF_ABC} b"), "line 1: write a name and a hash"),
        ] {
            let error = BouncerKeys::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
