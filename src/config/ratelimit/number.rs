//! Numbers as ratelimit reads them, which uses <https://github.com/go-yaml/yaml/blob/v2/resolve.go>.

/// Reads a whole number up to [`u32::MAX`]: `100`, `+100`, `1_000`, `1e3`, `0x64`, `0b101`, `0o10`, and `010`, which is
/// 8.
pub fn read(text: &str) -> Option<u32> {
    // A number begins with a digit, a sign or a point. Underscores may come after it.
    let text = if text.starts_with('_') { String::new() } else { text.replace('_', "") };
    let digits = text.strip_prefix('+').unwrap_or(&text);
    let is_number = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    let radix = |prefixes: [&str; 2], radix| {
        let digits = prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix))?;
        digits
            .starts_with(|first: char| first.is_ascii_alphanumeric())
            .then(|| u32::from_str_radix(digits, radix).ok())?
    };
    if !is_number {
        return None;
    }
    radix(["0x", "0X"], 16)
        .or_else(|| radix(["0b", "0B"], 2))
        .or_else(|| radix(["0o", "0O"], 8))
        .or_else(|| radix(["0", "0"], 8))
        .or_else(|| whole(digits))
}

/// Reads a decimal number, with or without an exponent.
fn whole(digits: &str) -> Option<u32> {
    let number = digits.parse::<f64>().ok().filter(|number| number.fract() == 0.0)?;
    (0.0..=f64::from(u32::MAX)).contains(&number).then_some(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_ratelimit() {
        for (text, expected) in [
            ("0", 0),
            ("100", 100),
            ("+5", 5),
            ("1_000", 1_000),
            ("0x64", 100),
            ("0X64", 100),
            ("0b101", 5),
            ("0o10", 8),
            ("010", 8),
            ("08", 8),
            ("1e3", 1_000),
            ("1.5e1", 15),
            ("100.0", 100),
            ("4294967295", u32::MAX),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "-1",
            "1.5",
            "4294967296",
            "0x100000000",
            "many",
            "0x",
            "0x+5",
            "1 000",
            "_1",
            "_",
            "inf",
            "nan",
            "++5",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
