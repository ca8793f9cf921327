//! Headless Chromium, which Python scripts drive by Playwright.

use crate::clients::{python, run};

/// Runs one of the Python clients, which opens web pages by its module `browser`. The script must succeed. Returns its
/// output.
pub fn browse(script: &str, args: &[&str]) -> String {
    let mut command = python(script);
    command.args(args);
    run(command)
}
