//! The three questions of `divvy init`. Each answer is checked as if it were in a rules file.

use std::io::{BufRead, Write};

use anyhow::bail;

use super::draft::{Answers, Draft};

const WHAT: &str = "Which requests are limited? Write the pairs that they have, as in api=search or method=POST path=/login.\n\
                    Empty: every request.\n> ";
const WHOM: &str = "Who is limited? Write a field of the request, such as user, key or ip: each of its values has its own counter.\n\
                    Empty: one counter for all.\n> ";
const COUNT: &str = "How many requests, in which time? For example 100 per 1m, 10 per 90s, or 5000 per day.\n> ";

/// Stores the answer to one question.
type Change = fn(&mut Answers, String);

/// Asks on `out` and reads the answers from `input`. Asks again after a mistake.
///
/// # Errors
/// The input ends, or reading or writing fails.
pub fn ask(input: &mut impl BufRead, out: &mut impl Write) -> anyhow::Result<Draft> {
    let mut answers = Answers::default();
    let changes: [(&str, Change); 3] = [
        (WHAT, |answers, answer| answers.what = answer),
        (WHOM, |answers, answer| answers.whom = answer),
        (COUNT, |answers, answer| answers.count = Some(answer)),
    ];
    for (question, change) in changes {
        loop {
            write!(out, "{question}")?;
            out.flush()?;
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                bail!("the input ended before all questions were answered; nothing was written");
            }
            change(&mut answers, line.trim().to_owned());
            let mistakes = answers.mistakes();
            if mistakes.is_empty() {
                break;
            }
            for mistake in mistakes {
                writeln!(out, "{mistake}")?;
            }
        }
    }
    answers.draft()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(answers: &str) -> (anyhow::Result<Draft>, String) {
        let mut out = Vec::new();
        let draft = ask(&mut answers.as_bytes(), &mut out);
        (draft, String::from_utf8(out).unwrap())
    }

    #[test]
    fn mistake_is_explained_and_the_question_repeated() {
        let answers = "api\napi=search\nuser,,key\nuser\nmany\n0 per 1m\n5 per 1y\n5 per 1m\n";
        let (draft, out) = asked(answers);
        let rules = draft.unwrap().rules;
        assert!(rules.contains("[api=search user=*]\ncreditLimit = 5\nper = 1m\nactorField = user\n"), "{rules}");
        assert_eq!(out.matches("Which requests are limited?").count(), 2, "{out}");
        assert_eq!(out.matches("How many").count(), 4, "{out}");
        assert!(out.contains("\"api\" is not followed by `=` and a value"), "{out}");
    }

    #[test]
    fn end_of_the_input_is_an_error() {
        let (draft, _) = asked("api=search\n");
        assert!(draft.err().unwrap().to_string().contains("nothing was written"));
    }
}
