//! The words after a user's name in the access file: each one changes the user, from left to right.

use url::form_urlencoded;

use super::secret::{Digest, SlowHash};
use super::user::{Categories, Category, User};

/// Maximum number of hashes of each kind, and of certificates, of one user.
const MAX_CREDENTIALS: usize = 16;

/// Maximum number of label patterns, and of fields of an actor, of one user.
const MAX_PATTERNS: usize = 256;

/// Maximum length of a word that a message repeats (characters).
const MAX_ECHOED: usize = 64;

/// A problem, and its fix.
pub type Mistake = (String, String);

/// The words so far, as far as the user does not show them.
#[derive(Debug, Default)]
pub struct State {
    is_on: Option<bool>,
}

impl State {
    /// Completes the user after its last word, and reports what is missing or contradictory.
    pub fn finish(self, user: &mut User, mut report: impl FnMut(String, String)) {
        match self.is_on {
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
}

/// Applies a word to the user.
///
/// # Errors
/// The word is a mistake.
pub fn apply(word: &str, user: &mut User, state: &mut State) -> Result<(), Mistake> {
    match word.to_ascii_lowercase().as_str() {
        "on" => return set_state(true, state),
        "off" => return set_state(false, state),
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

fn set_state(is_on: bool, state: &mut State) -> Result<(), Mistake> {
    match state.is_on.replace(is_on) {
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
pub fn safe(word: &str) -> String {
    word.chars().take(MAX_ECHOED).flat_map(char::escape_debug).collect()
}

fn mistake(what: impl Into<String>, fix: impl Into<String>) -> Mistake {
    (what.into(), fix.into())
}
