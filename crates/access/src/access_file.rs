//! The access file: one user a line, in the syntax of Redis's ACL files, and the problems in it.
//!
//! `docs/security.md` has the whole grammar. The file is valid as a whole, or every mistake in it is reported so that the
//! operator can fix it: the line, the problem, and the fix. No problem repeats a hash or a password.

use std::collections::HashMap;
use std::iter;
use std::path::Path;

use super::secret::{Digest, SlowHash};
use super::user::{Categories, Category, DEFAULT_USER, UNSCOPED, User};
use super::user_line::{self, safe};
use divvy_core::config::{Problem, Problems, Report};
use divvy_core::files;

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
    parse(&read(path, MAX_FILE_BYTES)?, &path.display().to_string(), password)
}

/// Reads the text of at most `max_bytes` in the file at `path`.
pub(super) fn read(path: &Path, max_bytes: u64) -> Result<String, Report> {
    let text = match files::read(path, max_bytes) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    text.map_err(|reason| {
        let mut problems = Problems::new(&path.display().to_string());
        problems.unread();
        problems.file_error(format!("cannot read the file: {reason}"), "name a text file that divvy may read");
        problems.into()
    })
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
    find_warnings(&lines, password, &mut problems);
    if problems.has_errors() {
        return Err(problems.into());
    }
    let users = lines.into_iter().map(|(_, user)| user).collect();
    Ok(AccessFile { users, warnings: Report::from(problems).warnings })
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
    let mut state = user_line::State::default();
    for word in parts {
        if let Err((what, fix)) = user_line::apply(word, &mut user, &mut state) {
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
        let what = format!("`{}` stands where the user's name belongs", user_line::safe(name));
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
            let what = format!("the user {} is on line {first} already", user_line::safe(&user.name));
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
                let what = format!("the certificate {} is on line {first} already", user_line::safe(name));
                problems.error(*number, what, "give each certificate one user");
            }
        }
    }
}

/// Categories that have an effect only on rules in scope.
const SCOPED: [Category; 6] =
    [Category::Hit, Category::Read, Category::Status, Category::Limits, Category::Block, Category::Forget];

/// Kinds of names that tools print before the name in a certificate.
const CERTIFICATE_KINDS: [&str; 3] = ["CN=", "DNS:", "URI:"];

/// Reports the warnings for these users, each with its line. `password` is the hash of `--requirepass`.
fn find_warnings(lines: &[(usize, User)], password: Option<&Digest>, problems: &mut Problems) {
    let wrong = problems.lines_with_errors();
    // A word that is a mistake may be the credential, or the scope, that is missing.
    for (line, user) in lines.iter().filter(|(line, _)| !wrong.contains(line)) {
        let name = safe(&user.name);
        if password.is_some_and(|password| user.digests.contains(password)) {
            let what = format!("the #hash of {name} is that of --requirepass: as a bearer token, it logs {name} in");
            problems.warning(*line, what, "give the user another token");
        }
        find_unmatchable(*line, user, problems);
        if user.is_on && user.digests.is_empty() && user.slow_hashes.is_empty() && user.certificates.is_empty() {
            let what = format!("the user {name} cannot log in: it has no hash and no certificate");
            problems.warning(*line, what, "add what `divvy access hash` prints, or cert:NAME");
        }
        if user.is_on && user.granted.with(Category::Connection) == Categories::NONE.with(Category::Connection) {
            let what = format!("the user {name} has no category: it can log in, and do nothing else");
            problems.warning(*line, what, "grant one, such as +@hit, after any -@all");
        }
        if user.scope.is_empty()
            && let Some(category) = SCOPED.into_iter().find(|category| user.granted.contains(*category))
        {
            let what = format!("the user {name} has +@{category}, but no rule in its scope");
            problems.warning(*line, what, "add ~* for everything, or ~label:PATTERN");
        }
        let idle = UNSCOPED.into_iter().filter(|category| user.is_scoped() && user.granted.contains(*category));
        let idle: Vec<_> = idle.map(|category| format!("@{category}")).collect();
        if !idle.is_empty() {
            let verb = if idle.len() == 1 { "has" } else { "have" };
            let what = format!("+{} {verb} no effect for the user {name}, whose scope is not ~*", idle.join(", +"));
            problems.warning(*line, what, format!("withdraw with -{}, or write ~*", idle.join(" -")));
        }
    }
    let costs = |user: &User| user.slow_hashes.iter().map(SlowHash::cost).collect::<Vec<_>>();
    let first = lines.iter().find_map(|(_, user)| costs(user).first().copied());
    if let Some((line, user)) = lines.iter().find(|(_, user)| costs(user).iter().any(|cost| Some(*cost) != first)) {
        let what = format!("an argon2id hash of {} has other costs than those before it", safe(&user.name));
        problems.warning(*line, what, "use the same m, t and p for all, so that no login takes a time of its own");
    }
}

/// Warns of names and patterns that match nothing.
fn find_unmatchable(line: usize, user: &User, problems: &mut Problems) {
    for pattern in &user.scope.labels {
        let can_match = |c: char| c.is_ascii_alphanumeric() || ['*', '_', '-'].contains(&c);
        if !pattern.chars().all(can_match) {
            let what = format!("~label:{} matches no rule: labels have letters, digits, _ and - only", safe(pattern));
            problems.warning(line, what, "correct the pattern; for several patterns, write several ~label: words");
        }
    }
    for certificate in &user.certificates {
        let kind = CERTIFICATE_KINDS.into_iter().find(|kind| certificate.starts_with(kind));
        if let Some(name) = kind.and_then(|kind| certificate.strip_prefix(kind)) {
            let what = format!("cert:{} is compared with a name without its kind", safe(certificate));
            problems.warning(line, what, format!("write cert:{}", safe(name)));
        }
    }
}

#[cfg(test)]
mod tests;
