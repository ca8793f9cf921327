//! Warnings about valid lines of an access file that are perhaps not intended.

use super::category::Category;
use super::problem::Problems;
use super::secret::SlowHash;
use super::user::User;
use super::words::safe;

/// Categories that have an effect only on rules in scope.
const SCOPED: [Category; 5] = [Category::Hit, Category::Read, Category::Status, Category::Limits, Category::Forget];
/// Categories that users with a scope never have.
const UNSCOPED: [Category; 3] = [Category::Metrics, Category::Info, Category::Backup];

/// Reports the warnings for these users, each with its line.
pub fn find(lines: &[(usize, User)], problems: &mut Problems) {
    for (line, user) in lines {
        let name = safe(&user.name);
        if user.is_on && user.digests.is_empty() && user.slow_hashes.is_empty() && user.certificates.is_empty() {
            let what = format!("the user {name} cannot log in: it has no hash and no certificate");
            problems.warning(*line, what, "add what `divvy access hash` prints, or cert:NAME");
        }
        if user.scope.is_empty()
            && let Some(category) = SCOPED.into_iter().find(|category| user.granted.contains(*category))
        {
            let what = format!("the user {name} has +@{category}, but no rule in its scope");
            problems.warning(*line, what, "add ~* for everything, or ~label:PATTERN");
        }
        if user.is_scoped()
            && let Some(category) = UNSCOPED.into_iter().find(|category| user.granted.contains(*category))
        {
            let what = format!("+@{category} has no effect for the user {name}, whose scope is not ~*");
            problems.warning(*line, what, format!("remove +@{category}, or write ~*"));
        }
    }
    let costs = |user: &User| user.slow_hashes.iter().map(SlowHash::cost).collect::<Vec<_>>();
    let first = lines.iter().find_map(|(_, user)| costs(user).first().copied());
    if let Some((line, user)) = lines.iter().find(|(_, user)| costs(user).iter().any(|cost| Some(*cost) != first)) {
        let what = format!("an argon2id hash of {} has other costs than those before it", safe(&user.name));
        problems.warning(*line, what, "use the same m, t and p for all, so that no login takes a time of its own");
    }
}
