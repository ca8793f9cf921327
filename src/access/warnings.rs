//! Warnings about valid lines of an access file that are perhaps not intended.

use super::category::{Categories, Category};
use super::problem::Problems;
use super::secret::{Digest, SlowHash};
use super::user::{UNSCOPED, User};
use super::words::safe;

/// Categories that have an effect only on rules in scope.
const SCOPED: [Category; 6] =
    [Category::Hit, Category::Read, Category::Status, Category::Limits, Category::Block, Category::Forget];

/// Kinds of names that tools print before the name in a certificate.
const CERTIFICATE_KINDS: [&str; 3] = ["CN=", "DNS:", "URI:"];

/// Reports the warnings for these users, each with its line. `password` is the hash of `--requirepass`.
pub fn find(lines: &[(usize, User)], password: Option<&Digest>, problems: &mut Problems) {
    for (line, user) in lines {
        let name = safe(&user.name);
        // A word that is a mistake may be the credential, or the scope, that is missing.
        if problems.has_error(*line) {
            continue;
        }
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
