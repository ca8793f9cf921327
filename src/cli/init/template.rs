//! Rules for common purposes.

use clap::ValueEnum;

use super::draft::Draft;

/// Rules for a common purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Template {
    /// Requests of API keys: a burst and a daily quota
    ApiKeys,
    /// Login attempts, by account and by address
    Login,
    /// Tokens of a language model, and concurrent answers
    Llm,
    /// Requests that a gateway asks about: logins, static files, and the rest
    Gateway,
}

impl Template {
    pub fn draft(self) -> Draft {
        let (rules, cases) = match self {
            Self::ApiKeys => (include_str!("templates/api-keys.ini"), include_str!("templates/api-keys.test.json")),
            Self::Login => (include_str!("templates/login.ini"), include_str!("templates/login.test.json")),
            Self::Llm => (include_str!("templates/llm.ini"), include_str!("templates/llm.test.json")),
            Self::Gateway => (include_str!("templates/gateway.ini"), include_str!("templates/gateway.test.json")),
        };
        Draft { rules: rules.to_owned(), cases: cases.to_owned() }
    }
}

/// Returns the names of all templates.
pub fn names() -> String {
    let names = Template::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    names.map(|value| value.get_name().to_owned()).collect::<Vec<_>>().join(", ")
}
