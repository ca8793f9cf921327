//! Masks passwords in URLs.

/// Replacement for a password.
const MASK: &str = "***";

/// Returns `url` with its passwords masked: in the user part, and in the query (`?pass=`, for Unix sockets).
pub fn masked(url: &str) -> String {
    let (address, query) = match url.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (url, None),
    };
    let mut shown = without_password(address);
    if let Some(query) = query {
        let parameters: Vec<_> = query.split('&').map(without_pass).collect();
        shown = format!("{shown}?{}", parameters.join("&"));
    }
    shown
}

/// Masks the password in everything up to the last `@`. The password itself may contain an unescaped `@`.
fn without_password(address: &str) -> String {
    let Some((user, place)) = address.rsplit_once('@') else { return address.to_owned() };
    let (scheme, user) = user.split_once("://").unwrap_or(("", user));
    let name = user.split_once(':').map(|(name, _)| name);
    match (scheme, name) {
        ("", _) => format!("{MASK}@{place}"),
        (_, Some(name)) => format!("{scheme}://{name}:{MASK}@{place}"),
        (_, None) => format!("{scheme}://{user}@{place}"),
    }
}

fn without_pass(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) if name.starts_with("pass") => format!("{name}={MASK}"),
        _ => parameter.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_passwords_are_masked() {
        let shown = [
            ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/2"),
            ("redis://:secret@cache:6379", "redis://:***@cache:6379"),
            ("rediss://ann:secret@cache:6380/1", "rediss://ann:***@cache:6380/1"),
            ("redis://ann:se@cr:et@cache", "redis://ann:***@cache"),
            ("redis://ann@cache", "redis://ann@cache"),
            ("redis+unix:///run/redis.sock?db=1&pass=secret", "redis+unix:///run/redis.sock?db=1&pass=***"),
            ("ann:secret@cache", "***@cache"),
        ];
        for (url, expected) in shown {
            assert_eq!(masked(url), expected);
        }
    }
}
