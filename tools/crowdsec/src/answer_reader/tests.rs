use proptest::prelude::*;

use super::*;

/// Reads an answer in pieces of this length, and returns its decisions.
fn read(answer: &[u8], length: usize) -> Result<Vec<(DecisionList, String)>, AnswerError> {
    let (mut reader, mut found) = (AnswerReader::default(), Vec::new());
    for piece in answer.chunks(length) {
        reader.read(piece, |list, text| found.push((list, String::from_utf8_lossy(text).into_owned())))?;
    }
    reader.finish()?;
    Ok(found)
}

fn read_all(answer: &str) -> Result<String, AnswerError> {
    let found = read(answer.as_bytes(), usize::MAX)?;
    for length in 1..4 {
        assert_eq!(read(answer.as_bytes(), length).unwrap(), found, "{answer}");
    }
    let found: Vec<_> = found.iter().map(|(list, text)| format!("{list:?} {text}")).collect();
    Ok(found.join("; "))
}

#[test]
fn decisions_are_found_in_both_lists() {
    for (answer, expected) in [
        (r#"{"deleted":null,"new":null}"#, ""),
        (r#"{"new": [], "deleted": []}"#, ""),
        (" { \"new\" : [ {} , { } ] , \"deleted\" : null } \n", "New {}; New { }"),
        (r#"{"deleted":[{"a":"}]\"{["}],"new":[{"b":[{}]}]}"#, r#"Deleted {"a":"}]\"{["}; New {"b":[{}]}"#),
        (
            r#"{"links":{"new":[{"a":1}]},"deleted":null,"new":[{"c":1}],"x":"]}\\","y":[[],{}],"z":-1}"#,
            r#"New {"c":1}"#,
        ),
        (r#"{"n\"w":[{}],"\u006eew":[{}],"new":[{"d":1}],"deleted":[]}"#, r#"New {"d":1}"#),
    ] {
        assert_eq!(read_all(answer), Ok(expected.to_owned()), "{answer}");
    }
}

#[test]
fn malformed_answers_are_refused() {
    for answer in [
        "[]",
        "null",
        "<html>",
        r#"{"new":{}}"#,
        r#"{"new":[1]}"#,
        r#"{"new":[[]]}"#,
        r#"{"new":[{},]}"#,
        r#"{"new":[{}{}]}"#,
        r#"{"new":[,{}]}"#,
        r#"{"new":[]"deleted":[]}"#,
        r#"{"new" []}"#,
        r#"{,}"#,
        r#"{"x":]}"#,
        "{} {}",
        "{}",
        r#"{"message":"no such table: decisions"}"#,
        r#"{"new":[]}"#,
        r#"{"deleted":null}"#,
        r#"{"new":nil,"deleted":null}"#,
        r#"{"new":nu ll,"deleted":null}"#,
        r#"{"new":[],"new":[],"deleted":null}"#,
        r#"{"new":"","deleted":null}"#,
    ] {
        assert_eq!(read_all(answer), Err(AnswerError::Malformed), "{answer}");
    }
    for answer in ["", "{", r#"{"new":["#, r#"{"new":[{}"#, r#"{"new":[{}]"#, r#"{"x":1"#, r#"{"x":"}"#, r#"{"x"#] {
        assert_eq!(read_all(answer), Err(AnswerError::Incomplete), "{answer}");
    }
}

#[test]
fn memory_is_bounded() {
    let mut reader = AnswerReader::default();
    reader.read(br#"{"new":[{"value":""#, |_, _| ()).unwrap();
    let endless = [b'x'; MAX_DECISION];
    assert_eq!(reader.read(&endless, |_, _| ()), Err(AnswerError::TooLong));
    assert!(reader.text.len() <= MAX_DECISION);
    let mut reader = AnswerReader::default();
    reader.read(b"{\"", |_, _| ()).unwrap();
    assert_eq!(reader.read(&endless, |_, _| ()), Err(AnswerError::TooLong));
    // A value that is skipped takes no memory, however deep it is.
    let mut reader = AnswerReader::default();
    reader.read(b"{\"x\":", |_, _| ()).unwrap();
    reader.read(&[b'['; MAX_DECISION], |_, _| ()).unwrap();
    assert!(reader.text.capacity() <= MAX_NAME);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>, length in 1..16_usize) {
        let whole = read(&bytes, usize::MAX);
        prop_assert_eq!(whole.is_ok(), read(&bytes, length).is_ok());
    }

    #[test]
    fn decisions_with_any_text_are_found(texts: Vec<String>, length in 1..16_usize) {
        let decisions: Vec<_> = texts.iter().map(|text| serde_json::json!({ "value": text, "more": [text] })).collect();
        let answer = serde_json::json!({ "other": texts, "new": decisions, "deleted": null }).to_string();
        let found = read(answer.as_bytes(), length).unwrap();
        let found = found.into_iter().map(|(_, text)| serde_json::from_str(&text).unwrap()).collect::<Vec<serde_json::Value>>();
        prop_assert_eq!(found, decisions);
    }
}
