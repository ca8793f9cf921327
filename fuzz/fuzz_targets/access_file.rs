//! Access files: any text is either rejected with a report, or read as users whose scopes can be written and read again.

#![no_main]

use divvy::access::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(file) = parse(text, "fuzz.acl", None) else { return };
    for user in &file.users {
        let line = format!("user {} on {}", user.name, user.scope);
        let again = parse(&line, "again", None).expect("a written user can be read");
        let read = &again.users[0];
        assert_eq!((&read.name, &read.scope), (&user.name, &user.scope));
        user.scope.compile();
    }
});
