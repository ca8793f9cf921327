//! A draft of a rules file: the answers to the questions, and the files that result from them.

use super::starter_cases;
use super::window::Window;
use crate::config::{self, Format, Loaded, Problem, Report};
use crate::rules::{self, Quota, operation_text};

/// Name of the rules file in messages about answers.
const NAME: &str = "rules.ini";
/// Limit to assume until the question is answered.
const UNANSWERED: (&str, Window<'_>) = ("1", Window::Per("1m"));
/// Maximum length of a label that is derived from an answer.
const MAX_LABEL: usize = 64;
/// Label of a limit if no better one can be derived.
const OTHER_LABEL: &str = "limit";

/// The text of a rules file and of its test cases.
#[derive(Debug)]
pub struct Draft {
    pub rules: String,
    pub cases: String,
}

/// The answers so far, as they were typed.
#[derive(Debug, Default)]
pub struct Answers {
    pub what: String,
    pub whom: String,
    pub count: Option<String>,
}

impl Answers {
    /// Returns the mistakes in the answers so far, in the words of the rules parser.
    pub fn mistakes(&self) -> Vec<String> {
        if let Some(error) = operation_text::pairs(self.operation()).find_map(Result::err) {
            let (what, fix) = config::describe_answer(self.operation(), &error);
            return vec![format!("{what}; {fix}")];
        }
        // These answers are values of settings, where a comment could follow.
        if [Some(&self.whom), self.count.as_ref()].into_iter().flatten().any(|answer| answer.contains([';', '#'])) {
            return vec!["`;` and `#` begin a comment in a rules file; leave them out".to_owned()];
        }
        let Some((credits, window)) = self.credits_and_window() else {
            return vec!["this is not a limit; write a number, `per` and a time, as in 100 per 1m".to_owned()];
        };
        let words = |problem: &Problem| format!("{}; {}", problem.what, problem.fix);
        match self.parse(credits, window) {
            Err(report) => report.errors.iter().map(words).collect(),
            Ok(Loaded { rules, warnings, .. }) => {
                let is_limit = rules.rules().first().is_some_and(|rule| matches!(rule.quota, Quota::Limited(_)));
                let no_limit = "this limits nothing; write a number of at least 1, and a time longer than 0";
                warnings.iter().map(words).chain((!is_limit).then(|| no_limit.to_owned())).collect()
            }
        }
    }

    /// Returns the files.
    ///
    /// # Errors
    /// The answers have mistakes.
    pub fn draft(&self) -> anyhow::Result<Draft> {
        let (credits, window) = self.credits_and_window().unwrap_or(UNANSWERED);
        let Loaded { rules, .. } = self.parse(credits, window)?;
        Ok(Draft { rules: self.rules(credits, window), cases: starter_cases::write(&rules, window) })
    }

    /// Splits the answer into credits and window. Returns `None` if it does not have this form.
    fn credits_and_window(&self) -> Option<(&str, Window<'_>)> {
        let Some(count) = &self.count else { return Some(UNANSWERED) };
        let (credits, window) = count.split_once(" per ").or_else(|| count.split_once('/'))?;
        Some((credits.trim(), Window::parse(window.trim())))
    }

    fn parse(&self, credits: &str, window: Window<'_>) -> Result<Loaded, Report> {
        config::parse(&self.rules(credits, window), Format::Ini, NAME)
    }

    /// Returns the text of the rules file.
    fn rules(&self, credits: &str, window: Window<'_>) -> String {
        let header = self.header();
        let whom = if self.whom.is_empty() { "all together".to_owned() } else { format!("for each {}", self.whom) };
        let limit = format!(
            "; At most {credits} {}, {whom}.\n\
             [{header}]\n\
             creditLimit = {credits}\n\
             {}\n\
             {}\n{}",
            window.describe(),
            window.setting(),
            format!("actorField = {}", self.whom).trim_end(),
            // Usage in a long window must survive a change of its limit.
            if window.is_long() { format!("counter = {}\n", self.label()) } else { String::new() },
        );
        if header == rules::header(std::iter::empty()) {
            return limit;
        }
        format!(
            "; The first rule that matches a request answers it.\n\n\
             {limit}\
             label = {}\n\n\
             ; Everything else is denied. To allow it, write `limit = none` in place of `creditLimit = 0`.\n\
             [default]\n\
             creditLimit = 0\n",
            self.label(),
        )
    }

    /// Returns the answer with the pairs, without brackets around it.
    fn operation(&self) -> &str {
        self.what.strip_prefix('[').and_then(|what| what.strip_suffix(']')).unwrap_or(&self.what)
    }

    /// Returns the rule's pairs, and a `*` pair for each field of an actor.
    fn header(&self) -> String {
        let what = self.operation();
        let Ok(mut pairs) = operation_text::pairs(what).collect::<Result<Vec<_>, _>>() else {
            // [`Answers::mistakes`] reports the mistake in it.
            return what.to_owned();
        };
        for field in self.actor_fields() {
            if !pairs.iter().any(|(key, _)| *key == field) {
                pairs.push((field, "*"));
            }
        }
        rules::header(pairs.into_iter())
    }

    fn actor_fields(&self) -> impl Iterator<Item = &str> {
        self.whom.split(',').map(str::trim).filter(|field| !field.is_empty())
    }

    fn actor_label(&self) -> Option<String> {
        let fields: Vec<_> = self.actor_fields().collect();
        (!fields.is_empty()).then(|| sanitize(&format!("by-{}", fields.join("-"))))
    }

    /// Derives a label from the first value that is not a pattern, or else from the actor.
    fn label(&self) -> String {
        let value = operation_text::pairs(&self.what).filter_map(Result::ok).map(|(_, value)| value);
        let value = value.filter(|value| !value.contains('*')).map(sanitize).find(|label| !label.is_empty());
        let label = value.or_else(|| self.actor_label()).unwrap_or_else(|| OTHER_LABEL.to_owned());
        // Such labels would hide the names of other rules.
        if label == rules::DEFAULT_RULE || label.starts_with("rule-") { OTHER_LABEL.to_owned() } else { label }
    }
}

/// Returns a short label from the text. It may be empty.
fn sanitize(text: &str) -> String {
    let label: String = config::to_label(text).chars().take(MAX_LABEL).collect();
    label.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(what: &str, whom: &str, count: &str) -> Answers {
        Answers { what: what.to_owned(), whom: whom.to_owned(), count: Some(count.to_owned()) }
    }

    #[test]
    fn files_follow_from_the_answers() {
        for (what, whom, count, expected) in [
            (
                "api=search",
                "user",
                "100 per 1m",
                "[api=search user=*]\ncreditLimit = 100\nper = 1m\nactorField = user\nlabel = search\n",
            ),
            (
                "[path=/login]",
                "ip",
                "5/day",
                "[path=/login ip=*]\ncreditLimit = 5\nwindow = day\nactorField = ip\ncounter = login\nlabel = login\n",
            ),
            ("user=*", "", "1 per hour", "[user=*]\ncreditLimit = 1\nper = 1h\nactorField =\nlabel = limit\n"),
            (
                "",
                "user, path",
                "9 per 2w",
                "[user=* path=*]\ncreditLimit = 9\nper = 2w\nactorField = user, path\ncounter = by-user-path\nlabel = by-user-path\n",
            ),
            (
                "",
                "",
                "1000 per month",
                "[default]\ncreditLimit = 1000\nwindow = month\nactorField =\ncounter = limit\n",
            ),
            (
                "api=default",
                "",
                "2 per 1d",
                "[api=default]\ncreditLimit = 2\nper = 1d\nactorField =\ncounter = limit\nlabel = limit\n",
            ),
        ] {
            let answers = answers(what, whom, count);
            assert_eq!(answers.mistakes(), Vec::<String>::new(), "{what} {whom} {count}");
            let rules = answers.draft().unwrap().rules;
            assert!(rules.contains(expected), "{rules}");
        }
    }

    #[test]
    fn mistakes_are_explained() {
        for (what, whom, count, expected) in [
            ("search", "", "1 per 1m", "the answer is not an operation"),
            ("default", "", "1 per 1m", "write nothing for all requests"),
            ("api=search, user=x", "", "1 per 1m", "ends with a comma"),
            ("a=b", "", "5 per 1s ; boo", "`;` and `#` begin a comment"),
            ("a=b", "user # x", "5 per 1s", "`;` and `#` begin a comment"),
            ("search", "", "1 per 1m", "\"search\" is not followed by `=` and a value"),
            ("a=b=c", "", "1 per 1m", "contains a bare `=`"),
            ("a=b", "user,,key", "1 per 1m", "contains an empty field name"),
            ("a=b", "", "many per 1m", "creditLimit"),
            ("a=b", "", "0 per 1m", "this limits nothing"),
            ("a=b", "", "5 per 0s", "this limits nothing"),
            ("a=b", "", "5 per 1y", "is not a whole number with one of the units"),
            ("a=b", "", "5", "this is not a limit"),
            ("a=b", "", "", "this is not a limit"),
        ] {
            let mistakes = answers(what, whom, count).mistakes().join("\n");
            assert!(mistakes.contains(expected), "{what} {whom} {count}: {mistakes}");
        }
    }
}
