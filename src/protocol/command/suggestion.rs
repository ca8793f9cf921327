//! Suggests a command for an unknown name: `DIVVY.HIT` for `HIT`, or for `DIVVY.HITS`.

use super::table::Spec;

/// Prefix of divvy's own commands.
const PREFIX: &str = "divvy.";
/// Two names that are at least this similar (Jaro-Winkler, from 0 to 1) count as a misspelling.
const MIN_SIMILARITY: f64 = 0.9;
/// Longer than any name (bytes).
const LONGEST_NAME: usize = 32;

/// Returns the divvy command that `name` probably stands for. Names of Redis's commands have no suggestion.
pub(super) fn suggest(commands: &'static [Spec], name: &[u8]) -> Option<&'static str> {
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= LONGEST_NAME)?.to_lowercase();
    let own = || commands.iter().map(|spec| spec.name).filter(|known| known.starts_with(PREFIX));
    if let Some(exact) = own().find(|known| known.strip_prefix(PREFIX) == Some(name.as_str())) {
        return Some(exact);
    }
    if !name.starts_with(PREFIX.trim_end_matches('.')) {
        return None;
    }
    let scored = own().map(|known| (strsim::jaro_winkler(known, &name), known));
    let best = scored.filter(|(likeness, _)| *likeness >= MIN_SIMILARITY).reduce(|a, b| if b.0 > a.0 { b } else { a });
    best.map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::table::COMMANDS;

    #[test]
    fn own_commands_are_suggested() {
        for (name, meant) in [
            ("HIT", "divvy.hit"),
            ("peek", "divvy.peek"),
            ("DIVVY.HITS", "divvy.hit"),
            ("DIVVY_HIT", "divvy.hit"),
            ("divvy.counter", "divvy.counters"),
            ("DIVVY.RESERV", "divvy.reserve"),
        ] {
            assert_eq!(suggest(COMMANDS, name.as_bytes()), Some(meant), "{name}");
        }
        for name in ["GETRANGE", "NONSENSE", "", "DIVVY.XYZ", "INCR", "\u{ff}"] {
            assert_eq!(suggest(COMMANDS, name.as_bytes()), None, "{name}");
        }
    }
}
