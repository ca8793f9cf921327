//! docs/troubleshooting.md quotes log lines and error replies, so that people can find them. Each quote must be in the
//! code.

use std::fs;
use std::path::Path;

/// The fence that marks quotes from the code. In a quote, `…` stands for variable text.
const FENCE: &str = "```text,quote";

/// Appends the program's source without comments and tests. Strings over several lines are joined.
fn sources(directory: &Path, found: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                // A backslash joins the lines of a string, without the next line's indentation.
                match line.trim_start().strip_suffix('\\') {
                    Some(begun) => found.push_str(begun),
                    None => {
                        found.push_str(line.trim_start());
                        found.push('\n');
                    }
                }
            }
        }
    }
}

/// Returns the pieces of a quoted line that are one string in the code, without its level.
fn pieces(line: &str) -> impl Iterator<Item = &str> {
    let message = ["ERROR ", "WARN ", "INFO "].iter().find_map(|level| line.strip_prefix(level)).unwrap_or(line);
    message.split(['…', ';', ':']).map(str::trim).filter(|piece| !piece.is_empty())
}

#[test]
fn every_quote_on_the_troubleshooting_page_is_in_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut source = String::new();
    sources(&root.join("src"), &mut source);
    let page = fs::read_to_string(root.join("docs/troubleshooting.md")).unwrap();
    let mut quotes = page.lines();
    let mut count = 0;
    while quotes.any(|line| line == FENCE) {
        for line in quotes.by_ref().take_while(|line| *line != "```") {
            for piece in pieces(line) {
                assert!(source.contains(piece), "the code does not say {piece:?}, which is quoted in: {line}");
                count += 1;
            }
        }
    }
    assert!(count > 50, "only {count} quotes were found");
}
