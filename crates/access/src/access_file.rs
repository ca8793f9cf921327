//! The access file: one user a line, in the syntax of Redis's ACL files, and the problems in it.
//!
//! `docs/security.md` has the whole grammar. The file is valid as a whole, or every mistake in it is reported so that the
//! operator can fix it: the line, the problem, and the fix. No problem repeats a hash or a password.

use std::collections::HashMap;
use std::iter;
use std::path::Path;

use url::form_urlencoded;

use super::user::{Categories, Category, DEFAULT_USER, Digest, SlowHash, UNSCOPED, User};
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
    let mut is_on = None;
    for word in parts {
        if let Err((what, fix)) = apply(word, &mut user, &mut is_on) {
            problems.error(number, what, fix);
        }
    }
    finish(&mut user, is_on, |what, fix| problems.error(number, what, fix));
    Some(user)
}

fn check_name(name: &str, number: usize, problems: &mut Problems) {
    let is_word =
        name.starts_with(['#', '$', '+', '-', '~', '>', '<', '!', '&', '%', '(']) || name == "on" || name == "off";
    if is_word {
        let what = format!("`{}` stands where the user's name belongs", safe(name));
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
            let what = format!("the user {} is on line {first} already", safe(&user.name));
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
                let what = format!("the certificate {} is on line {first} already", safe(name));
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

/// Maximum number of hashes of each kind, and of certificates, of one user.
const MAX_CREDENTIALS: usize = 16;

/// Maximum number of label patterns, and of fields of an actor, of one user.
const MAX_PATTERNS: usize = 256;

/// Maximum length of a word that a message repeats (characters).
const MAX_ECHOED: usize = 64;

/// A problem, and its fix.
type Mistake = (String, String);

/// Completes the user after its last word, and reports what is missing or contradictory. `is_on` is what the words say.
fn finish(user: &mut User, is_on: Option<bool>, mut report: impl FnMut(String, String)) {
    match is_on {
        Some(is_on) => user.is_on = is_on,
        None => report(
            format!("the user {} is neither on nor off", safe(&user.name)),
            "write `on` after the name, or `off` to keep the user out".to_owned(),
        ),
    }
    let scope = &mut user.scope;
    if scope.covers_everything && !(scope.labels.is_empty() && scope.actor.is_none()) {
        report(
            "~* covers everything, so the other ~ words have no effect".to_owned(),
            "remove ~*, or the others; ~label:* covers all rules".to_owned(),
        );
    }
    // One actor, in all rules.
    if scope.actor.is_some() && scope.labels.is_empty() {
        scope.labels.push("*".to_owned());
    }
}

/// Applies a word to the user.
///
/// # Errors
/// The word is a mistake.
fn apply(word: &str, user: &mut User, is_on: &mut Option<bool>) -> Result<(), Mistake> {
    match word.to_ascii_lowercase().as_str() {
        "on" => return set_on(true, is_on),
        "off" => return set_on(false, is_on),
        "allcommands" => return grant("all", user),
        "nocommands" => return withdraw("all", user),
        "allkeys" => return add_scope("*", user),
        _ => {}
    }
    if let Some(digits) = word.strip_prefix('#') {
        add_digest(digits, user)
    } else if word.starts_with('$') {
        let hash = SlowHash::parse(word)?;
        bounded(&mut user.slow_hashes, hash, "argon2id hashes")
    } else if let Some(name) = word.strip_prefix("cert:") {
        match name {
            "" => Err(mistake("the name of a certificate is missing", "write cert:NAME")),
            name => bounded(&mut user.certificates, name.into(), "certificates"),
        }
    } else if let Some(category) = word.strip_prefix("+@") {
        grant(category, user)
    } else if let Some(category) = word.strip_prefix("-@") {
        withdraw(category, user)
    } else if let Some(scope) = word.strip_prefix('~') {
        add_scope(scope, user)
    } else {
        Err(unknown(word))
    }
}

fn set_on(value: bool, is_on: &mut Option<bool>) -> Result<(), Mistake> {
    match is_on.replace(value) {
        None => Ok(()),
        Some(_) => Err(mistake("the user is on or off twice", "write `on` or `off` once")),
    }
}

fn add_digest(digits: &str, user: &mut User) -> Result<(), Mistake> {
    if digits.is_empty() {
        return Err(mistake(
            "there is nothing after #",
            "write 64 hexadecimal digits after it, and a comment on a line of its own",
        ));
    }
    let what =
        || mistake("the hash after # is not SHA-256", "write 64 hexadecimal digits: `divvy access hash --sha256`");
    let digest = Digest::parse(digits).ok_or_else(what)?;
    bounded(&mut user.digests, digest, "#hashes")
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

fn grant(name: &str, user: &mut User) -> Result<(), Mistake> {
    match name.eq_ignore_ascii_case("all") {
        true => user.granted = Categories::ALL,
        false => user.granted = user.granted.with_all(category(name)?.with_included()),
    }
    Ok(())
}

fn withdraw(name: &str, user: &mut User) -> Result<(), Mistake> {
    if name.eq_ignore_ascii_case("all") {
        user.granted = Categories::NONE;
        return Ok(());
    }
    match category(name)? {
        Category::Connection => Err(mistake("every user has the category connection", "remove -@connection")),
        category => {
            user.granted = user.granted.without_all(category.with_included());
            Ok(())
        }
    }
}

fn category(name: &str) -> Result<Category, Mistake> {
    Category::parse(name).ok_or_else(|| {
        let what = format!("there is no category {}", safe(name));
        if name.contains(',') {
            return mistake(what, "write a word for each category: +@hit +@read");
        }
        let known: Vec<_> = Category::ALL.iter().map(|category| category.name()).collect();
        mistake(what, format!("write all, or one of {}", known.join(", ")))
    })
}

fn add_scope(text: &str, user: &mut User) -> Result<(), Mistake> {
    let scope = &mut user.scope;
    if text == "*" {
        scope.covers_everything = true;
    } else if let Some(pattern) = text.strip_prefix("label:") {
        if pattern.is_empty() {
            return Err(mistake(
                "the pattern after ~label: is missing",
                "write ~label:PATTERN; ~label:* covers all rules",
            ));
        }
        if scope.labels.len() >= MAX_PATTERNS {
            return Err(mistake(format!("the user has more than {MAX_PATTERNS} patterns"), "use * in a pattern"));
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

/// Words that Redis has and divvy does not, words that are almost right, and any other word.
fn unknown(word: &str) -> Mistake {
    let lower = word.to_ascii_lowercase();
    if word.starts_with(['>', '<']) {
        return mistake("a password in plain text", "write its hash instead: `divvy access hash` prints it");
    }
    if let Some(mistake) = almost_right(word) {
        return mistake;
    }
    if lower == "nopass" {
        return mistake("divvy has no users without a password", "remove nopass; --open opens parts of the server");
    }
    if word.starts_with(['+', '-']) {
        let what = format!("`{}` names a command", safe(word));
        return mistake(what, "grant categories: +@hit, +@read, …; `ACL CAT` lists them");
    }
    if lower.starts_with('&')
        || ["resetchannels", "allchannels", "sanitize-payload", "skip-sanitize-payload"].contains(&&*lower)
    {
        return mistake(
            format!("`{}` has no meaning here: divvy has no channels and no payloads", safe(word)),
            "remove it",
        );
    }
    if lower.starts_with("reset") || word.starts_with(['!', '(', ')', '%']) {
        return mistake(
            format!("`{}` is not supported", safe(word)),
            "write the words that the user has, and no others",
        );
    }
    mistake(
        format!("`{}` is not a word of an access file", safe(word)),
        "use on, off, #HASH, an argon2id hash, cert:NAME, +@CATEGORY, -@CATEGORY and ~SCOPE",
    )
}

/// Describes a word that lacks its first character, or that a shell has changed. Such a hash is not repeated.
fn almost_right(word: &str) -> Option<Mistake> {
    let is_category = |name: &str| name.eq_ignore_ascii_case("all") || Category::parse(name).is_some();
    if word.rsplit(':').next().is_some_and(|digits| Digest::parse(digits).is_some()) {
        return Some(mistake("a SHA-256 hash without #", "write # before the 64 digits, and nothing else"));
    }
    if word.contains(",t=") && word.contains(",p=") {
        return Some(mistake("a part of an argon2id hash", "write the whole hash; in a shell, in single quotes"));
    }
    if ["label:", "actor:"].iter().any(|kind| word.starts_with(kind)) {
        return Some(mistake(format!("`{}` has no ~", safe(word)), "write ~ before it"));
    }
    for (sign, other) in [("@", "+@"), ("+", "+@"), ("-", "-@")] {
        if let Some(name) = word.strip_prefix(sign)
            && is_category(name)
        {
            let what = format!("`{}` is not a word of an access file", safe(word));
            return Some(mistake(what, format!("write {other}{}", name.to_ascii_lowercase())));
        }
    }
    word.contains('"').then(|| {
        mistake(format!("`{}` contains a quote", safe(word)), "write names and words without quotes and without spaces")
    })
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
