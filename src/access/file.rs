//! The access file: one user a line, in the syntax of Redis's ACL files.
//!
//! `docs/security.md` has the whole grammar. The file is valid as a whole, or every mistake in it is reported.

use std::collections::HashMap;
use std::iter;
use std::path::Path;

use super::problem::{Problem, Problems, Report};
use super::secret::Digest;
use super::user::{DEFAULT_USER, User};
use super::{warnings, words};
use crate::files;

/// Maximum size of the file, enough for a hundred thousand users (bytes).
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Maximum length of a user's name (bytes).
const MAX_NAME_BYTES: usize = 128;

/// A valid access file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessFile {
    /// The users, in the file's order.
    pub users: Vec<User>,
    /// Lines that are valid, but perhaps not intended.
    pub warnings: Vec<Problem>,
}

/// Reads and parses the file at `path`. See [`parse`].
///
/// # Errors
/// The file cannot be read, or every mistake in it.
pub fn load(path: &Path, password: Option<&Digest>) -> Result<AccessFile, Report> {
    let name = path.display().to_string();
    let bytes = files::read(path, MAX_FILE_BYTES).map_err(|error| Report::unreadable(&name, error))?;
    let text = String::from_utf8(bytes).map_err(|_| Report::unreadable(&name, "it is not UTF-8"))?;
    parse(&text, &name, password)
}

/// Parses the text of an access file. `password` is the hash of `--requirepass`, which defines the user `default`.
///
/// # Errors
/// Every mistake in the text.
pub fn parse(text: &str, file: &str, password: Option<&Digest>) -> Result<AccessFile, Report> {
    let mut problems = Problems::new(file);
    let mut lines: Vec<(usize, User)> = Vec::new();
    let mut is_blank = true;
    for (index, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if !line.is_empty() && !line.starts_with('#') {
            is_blank = false;
            lines.extend(parse_line(line, number, &mut problems).map(|user| (number, user)));
        }
    }
    if is_blank {
        // A file that is read while it is being written must not remove all users.
        problems.file_error("there are no users", "add a line such as `user NAME on #HASH +@hit ~*`");
    }
    find_duplicates(&lines, &mut problems);
    for (number, user) in &lines {
        if password.is_some() && *user.name == *DEFAULT_USER {
            problems.error(*number, "--requirepass defines the user default already", "remove one of the two");
        }
    }
    warnings::find(&lines, password, &mut problems);
    let report = problems.into_report();
    if !report.errors.is_empty() {
        return Err(report);
    }
    Ok(AccessFile { users: lines.into_iter().map(|(_, user)| user).collect(), warnings: report.warnings })
}

/// Parses a line; `None` if it does not name a user.
fn parse_line(line: &str, number: usize, problems: &mut Problems) -> Option<User> {
    let mut parts = line.split_whitespace();
    if !parts.next().is_some_and(|word| word.eq_ignore_ascii_case("user")) {
        problems.error(number, "the line does not begin with `user`", "write `user NAME on …`, or # before a comment");
        return None;
    }
    let Some(name) = parts.next() else {
        problems.error(number, "the user has no name", "write `user NAME on …`");
        return None;
    };
    check_name(name, number, problems);
    let mut user = User::new(name);
    let mut state = words::State::default();
    for word in parts {
        if let Err((what, fix)) = words::apply(word, &mut user, &mut state) {
            problems.error(number, what, fix);
        }
    }
    state.finish(&mut user, |what, fix| problems.error(number, what, fix));
    Some(user)
}

fn check_name(name: &str, number: usize, problems: &mut Problems) {
    let is_word =
        name.starts_with(['#', '$', '+', '-', '~', '>', '<', '!', '&', '%', '(']) || name == "on" || name == "off";
    if is_word {
        let what = format!("`{}` stands where the user's name belongs", words::safe(name));
        problems.error(number, what, "write the name after `user`");
    } else if name.contains(':') || name.chars().any(char::is_control) {
        // HTTP's Basic authentication ends the name at the first colon.
        problems.error(number, "the user's name contains a colon or a control character", "choose another name");
    } else if has_invisible_characters(name) {
        // Such a name looks like another one.
        problems.error(number, "the user's name contains a character that cannot be seen", "choose another name");
    } else if name.len() > MAX_NAME_BYTES {
        problems.error(number, format!("the user's name is longer than {MAX_NAME_BYTES} bytes"), "shorten it");
    }
}

/// Returns whether the name has characters that the standard library does not print, such as marks for the direction of
/// text, and spaces without a width.
fn has_invisible_characters(name: &str) -> bool {
    // These are escaped for other reasons, and an accent is only at the start.
    let others = name.chars().filter(|character| !matches!(character, '\\' | '\'' | '"'));
    let text: String = iter::once('a').chain(others).collect();
    text.escape_debug().any(|character| character == '\\')
}

/// Reports users, tokens and certificates that occur twice: they would be ambiguous.
fn find_duplicates(lines: &[(usize, User)], problems: &mut Problems) {
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut digests: HashMap<&Digest, usize> = HashMap::new();
    let mut certificates: HashMap<&str, usize> = HashMap::new();
    for (number, user) in lines {
        if let Some(first) = names.insert(&user.name, *number) {
            let what = format!("the user {} is on line {first} already", words::safe(&user.name));
            problems.error(*number, what, "write all words of a user on one line");
        }
        for digest in &user.digests {
            match digests.insert(digest, *number) {
                Some(first) if first == *number => {
                    problems.error(*number, "the user has the same #hash twice", "remove one of the two");
                }
                Some(first) => {
                    let what = format!("this #hash is on line {first} already: a bearer token would have two users");
                    problems.error(*number, what, "give each user its own token");
                }
                None => {}
            }
        }
        for name in &user.certificates {
            if let Some(first) = certificates.insert(name, *number) {
                let what = format!("the certificate {} is on line {first} already", words::safe(name));
                problems.error(*number, what, "give each certificate one user");
            }
        }
    }
}

#[cfg(test)]
mod tests;
