//! The access file: one user a line, in the syntax of Redis's ACL files, and the problems in it.
//!
//! `docs/security.md` has the whole grammar. The file is valid as a whole, or every mistake in it is reported so that the
//! operator can fix it: the line, the problem, and the fix. No problem repeats a hash or a password.

use std::collections::HashMap;
use std::iter;
use std::path::Path;
use std::sync::Arc;

use url::form_urlencoded;

use super::user::{Categories, Category, DEFAULT_USER, Digest, SlowHash, User};
use divvy_core::config::{Problem, Problems, Report};
use divvy_core::regular_file;

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
    let text = match regular_file::read(path, max_bytes) {
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
    for (number, line) in numbered_lines(text) {
        lines.extend(parse_line(line, number, &mut problems).map(|user| (number, user)));
    }
    if numbered_lines(text).next().is_none() {
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

/// Returns the lines of a file with their numbers, without white space around them, empty lines and comments.
pub(super) fn numbered_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines().map(str::trim);
    (1..).zip(lines).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Parses a line; `None` if it does not name a user.
fn parse_line(line: &str, number: usize, problems: &mut Problems) -> Option<User> {
    let mut parts = line.split_whitespace();
    let Some(name) = parts.next().filter(|word| word.eq_ignore_ascii_case("user")).and_then(|_| parts.next()) else {
        let what = "the line does not begin with `user` and a name";
        problems.error(number, what, "write `user NAME on …`, or # before a comment");
        return None;
    };
    check_name(name, number, problems);
    let mut user = User::new(name);
    let mut is_on = None;
    for word in parts {
        if let Err((what, fix)) = apply(word, &mut user, &mut is_on) {
            problems.error(number, what, fix);
        }
    }
    user.is_on = is_on.unwrap_or_else(|| {
        let what = format!("the user {} is neither on nor off", safe(name));
        problems.error(number, what, "write `on` after the name, or `off` to keep the user out");
        false
    });
    let scope = &mut user.scope;
    if scope.covers_everything && !(scope.labels.is_empty() && scope.actor.is_none()) {
        let what = "~* covers everything, so the other ~ words have no effect";
        problems.error(number, what, "remove ~*, or the others; ~label:* covers all rules");
    }
    // One actor, in all rules.
    if scope.actor.is_some() && scope.labels.is_empty() {
        scope.labels.push("*".to_owned());
    }
    Some(user)
}

/// Checks a user's name. HTTP's Basic authentication ends it at the first colon, and one with characters that cannot be seen
/// looks like another one.
fn check_name(name: &str, number: usize, problems: &mut Problems) {
    let is_word =
        name.starts_with(['#', '$', '+', '-', '~', '>', '<', '!', '&', '%', '(']) || name == "on" || name == "off";
    let what = if is_word {
        format!("`{}` stands where the user's name belongs", safe(name))
    } else if name.contains(':') || has_invisible_characters(name) {
        "the user's name contains a colon, or a character that cannot be seen".to_owned()
    } else if name.len() > MAX_NAME_BYTES {
        format!("the user's name is longer than {MAX_NAME_BYTES} bytes")
    } else {
        return;
    };
    problems.error(number, what, "write another name after `user`");
}

/// Returns whether the name has characters that the standard library does not print, such as control characters, marks for the
/// direction of text, and spaces without a width.
fn has_invisible_characters(name: &str) -> bool {
    // These are escaped for other reasons, and an accent is only at the start.
    let others = name.chars().filter(|character| !matches!(character, '\\' | '\'' | '"'));
    let text: String = iter::once('a').chain(others).collect();
    text.escape_debug().any(|character| character == '\\')
}

/// Reports users, tokens and certificates that occur twice: they would be ambiguous.
fn find_duplicates(lines: &[(usize, User)], problems: &mut Problems) {
    let mut lines_by_word: HashMap<String, usize> = HashMap::new();
    for (number, user) in lines {
        let digests = user.digests.iter().map(|digest| (digest.to_word(), "this #hash".to_owned()));
        let certificate = |name: &Arc<str>| (format!("cert:{name}"), format!("the certificate {}", safe(name)));
        let name = (format!("user {}", user.name), format!("the user {}", safe(&user.name)));
        for (word, what) in digests.chain(user.certificates.iter().map(certificate)).chain([name]) {
            if let Some(first) = lines_by_word.insert(word, *number) {
                let fix = "write each user on one line, with hashes and certificates that no other user has";
                problems.error(*number, format!("{what} is on line {first} already"), fix);
            }
        }
    }
}

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
        let can_match = |c: char| c.is_ascii_alphanumeric() || ['*', '_', '-'].contains(&c);
        if let Some(pattern) = user.scope.labels.iter().find(|pattern| !pattern.chars().all(can_match)) {
            let what = format!("~label:{} matches no rule: labels have letters, digits, _ and - only", safe(pattern));
            problems.warning(*line, what, "correct the pattern; for several patterns, write several ~label: words");
        }
        if user.is_on && user.digests.is_empty() && user.slow_hashes.is_empty() && user.certificates.is_empty() {
            let what = format!("the user {name} cannot log in: it has no hash and no certificate");
            problems.warning(*line, what, "add what `divvy access hash` prints, or cert:NAME");
        }
        if user.is_on && user.granted.without(Category::Connection).is_empty() {
            let what = format!("the user {name} has no category: it can log in, and do nothing else");
            problems.warning(*line, what, "grant one, such as +@hit, after any -@all");
        }
        let in_scope = user.rights().without(Category::Connection);
        if user.scope.is_empty() && !in_scope.is_empty() {
            let what = format!("the user {name} has {}, but no rule in its scope", words(in_scope));
            problems.warning(*line, what, "add ~* for everything, or ~label:PATTERN");
        }
        let without_effect = user.granted.without_all(user.rights());
        if !without_effect.is_empty() {
            let what = format!("{}: without effect for the user {name}, whose scope is not ~*", words(without_effect));
            problems.warning(*line, what, "withdraw them, or write ~*");
        }
    }
    let costs = |user: &User| user.slow_hashes.iter().map(|hash| hash.cost).collect::<Vec<_>>();
    let first = lines.iter().find_map(|(_, user)| costs(user).first().copied());
    if let Some((line, user)) = lines.iter().find(|(_, user)| costs(user).iter().any(|cost| Some(*cost) != first)) {
        let what = format!("an argon2id hash of {} has other costs than those before it", safe(&user.name));
        problems.warning(*line, what, "use the same m, t and p for all, so that no login takes a time of its own");
    }
}

/// Returns the words that grant these categories.
fn words(categories: Categories) -> String {
    categories.iter().map(|category| format!("+@{category}")).collect::<Vec<_>>().join(" ")
}

/// Maximum number of hashes of each kind, and of certificates, of one user.
const MAX_CREDENTIALS: usize = 16;

/// Maximum number of label patterns, and of fields of an actor, of one user.
const MAX_PATTERNS: usize = 256;

/// Maximum length of a word that a message repeats (characters).
const MAX_ECHOED: usize = 32;

/// A problem, and its fix.
type Mistake = (String, String);

/// Applies a word to the user.
///
/// # Errors
/// The word is a mistake.
fn apply(word: &str, user: &mut User, is_on: &mut Option<bool>) -> Result<(), Mistake> {
    match word.to_ascii_lowercase().as_str() {
        "on" => return set_on(true, is_on),
        "off" => return set_on(false, is_on),
        "allcommands" => return change_rights("all", true, user),
        "nocommands" => return change_rights("all", false, user),
        "allkeys" => return add_scope("*", user),
        _ => {}
    }
    if let Some(digits) = word.strip_prefix('#') {
        let digest = Digest::parse(digits).ok_or_else(|| {
            let fix =
                "write 64 hexadecimal digits, as `divvy access hash --sha256` does, and comments on lines of their own";
            mistake("the text after # is not a SHA-256 hash", fix)
        })?;
        bounded(&mut user.digests, digest, "#hashes")
    } else if word.starts_with('$') {
        let hash = SlowHash::parse(word)?;
        bounded(&mut user.slow_hashes, hash, "argon2id hashes")
    } else if let Some(name) = word.strip_prefix("cert:") {
        match name {
            "" => Err(mistake("the name of a certificate is missing", "write cert:NAME")),
            name => bounded(&mut user.certificates, name.into(), "certificates"),
        }
    } else if let Some(category) = word.strip_prefix("+@") {
        change_rights(category, true, user)
    } else if let Some(category) = word.strip_prefix("-@") {
        change_rights(category, false, user)
    } else if let Some(scope) = word.strip_prefix('~') {
        add_scope(scope, user)
    } else {
        Err(unknown(word))
    }
}

fn set_on(value: bool, is_on: &mut Option<bool>) -> Result<(), Mistake> {
    let before = is_on.replace(value);
    before.map_or(Ok(()), |_| Err(mistake("the user is on or off twice", "write `on` or `off` once")))
}

fn bounded<T>(list: &mut Vec<T>, item: T, what: &str) -> Result<(), Mistake> {
    if list.len() >= MAX_CREDENTIALS {
        return Err(mistake(
            format!("the user has more than {MAX_CREDENTIALS} {what}"),
            "remove those that nobody uses",
        ));
    }
    list.push(item);
    Ok(())
}

/// Grants or withdraws a category, or all.
fn change_rights(name: &str, is_granted: bool, user: &mut User) -> Result<(), Mistake> {
    let changed = if name.eq_ignore_ascii_case("all") { Categories::ALL } else { category(name)?.with_included() };
    if !is_granted && changed == Category::Connection.with_included() {
        return Err(mistake("every user has the category connection", "remove -@connection"));
    }
    user.granted = if is_granted { user.granted.with_all(changed) } else { user.granted.without_all(changed) };
    Ok(())
}

fn category(name: &str) -> Result<Category, Mistake> {
    Category::parse(name).ok_or_else(|| {
        let known: Vec<_> = Category::ALL.iter().map(|category| category.name()).collect();
        let what = format!("there is no category {}", safe(name));
        mistake(what, format!("write a word for each category: all, or one of {}", known.join(", ")))
    })
}

fn add_scope(text: &str, user: &mut User) -> Result<(), Mistake> {
    let scope = &mut user.scope;
    if text == "*" {
        scope.covers_everything = true;
    } else if let Some(pattern) = text.strip_prefix("label:") {
        if pattern.is_empty() || scope.labels.len() >= MAX_PATTERNS {
            let what = format!("the pattern after ~label: is missing, or the user has more than {MAX_PATTERNS}");
            return Err(mistake(what, "write ~label:PATTERN, with * for any text; ~label:* covers all rules"));
        }
        scope.labels.push(pattern.to_owned());
    } else if let Some(fields) = text.strip_prefix("actor:") {
        if scope.actor.is_some() {
            return Err(mistake("the user has two actors", "write one ~actor:, or a user for each actor"));
        }
        scope.actor = Some(parse_actor(fields)?);
    } else {
        let what = format!("~{} is not a scope", safe(text));
        return Err(mistake(what, "write ~* for everything, ~label:PATTERN for rules, or ~actor:FIELD=VALUE"));
    }
    Ok(())
}

/// Parses `FIELD=VALUE&…`. The fields are percent-encoded, as in a URL, because a word contains no white space.
fn parse_actor(text: &str) -> Result<Vec<(String, String)>, Mistake> {
    let fix = "write ~actor:FIELD=VALUE, with & between several fields, and %20 for a space";
    let is_complete = text.split('&').all(|field| field.find('=').is_some_and(|at| at > 0));
    if !is_complete {
        return Err(mistake("a field of the actor has no name, or no =", fix));
    }
    let fields: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
    for (index, (field, _)) in fields.iter().enumerate() {
        if fields.iter().take(index).any(|(earlier, _)| earlier == field) {
            return Err(mistake(format!("the actor has the field {} twice", safe(field)), fix));
        }
    }
    if fields.len() > MAX_PATTERNS { Err(mistake("the actor has too many fields", fix)) } else { Ok(fields) }
}

/// Describes a word that has no meaning. One that may be a password, or a hash that a shell has changed, is not repeated.
fn unknown(word: &str) -> Mistake {
    let may_be_secret = word.starts_with(['>', '<', '=']) || word.len() > MAX_ECHOED;
    let shown = if may_be_secret { "a word".to_owned() } else { format!("`{}`", safe(word)) };
    mistake(
        format!("{shown} is not a word of an access file"),
        "use on, off, #HASH or $HASH as `divvy access hash` prints them, cert:NAME, +@CATEGORY, -@CATEGORY and ~SCOPE",
    )
}

/// Returns the start of a word for a message.
fn safe(word: &str) -> String {
    word.chars().take(MAX_ECHOED).flat_map(char::escape_debug).collect()
}

fn mistake(what: impl Into<String>, fix: impl Into<String>) -> Mistake {
    (what.into(), fix.into())
}

#[cfg(test)]
mod tests;
