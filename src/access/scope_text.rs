//! The scope of a user, as the access file states it.

use std::fmt;

use crate::rules::Scope;

/// The rules and actors that a user may use. Patterns and fields are texts of the access file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScopeText {
    /// `~*`: everything, including buckets with the client's own limit. There is no other part then.
    pub covers_everything: bool,
    /// Patterns of `~label:PATTERN`. A rule is in scope if its label matches one of them. Rules without a label and
    /// `[default]` are in scope only with the pattern `*`.
    pub labels: Vec<String>,
    /// Fields and values of `~actor:FIELD=VALUE&…`: the only actor in scope. Never empty.
    pub actor: Option<Vec<(String, String)>>,
}

impl ScopeText {
    /// Returns the scope that covers everything.
    pub fn everything() -> Self {
        Self { covers_everything: true, ..Self::default() }
    }

    /// Compiles the scope.
    pub fn compile(&self) -> Scope {
        if self.covers_everything {
            return Scope::EVERYTHING;
        }
        let actor = self.actor.iter().flatten().map(|(field, value)| (field.as_str(), value.as_str()));
        Scope::new(self.labels.iter().map(String::as_str), actor)
    }

    /// Returns the fields of the actor in the form of the access file, `FIELD=VALUE&…`.
    pub fn actor_text(&self) -> Option<String> {
        let fields = self.actor.as_ref()?;
        Some(url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish())
    }

    /// Returns whether the scope covers nothing.
    pub fn is_empty(&self) -> bool {
        !self.covers_everything && self.labels.is_empty()
    }
}

/// Writes the words of the access file.
impl fmt::Display for ScopeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        if self.covers_everything {
            words.push("~*".to_owned());
        }
        words.extend(self.labels.iter().map(|label| format!("~label:{label}")));
        words.extend(self.actor_text().map(|actor| format!("~actor:{actor}")));
        f.write_str(&words.join(" "))
    }
}
