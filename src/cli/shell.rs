//! Arguments in commands that divvy suggests.

/// Quotes an argument for a shell if necessary.
pub fn quote(argument: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-./:=@%+,".contains(character);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn only_arguments_that_need_quotes_get_them() {
        for (argument, expected) in
            [("a=b", "a=b"), ("my rules.ini", "'my rules.ini'"), ("it's", r"'it'\''s'"), ("", "''")]
        {
            assert_eq!(quote(argument), expected);
        }
    }
}
