//! The window of a limit, as an answer names it.

/// The window of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window<'a> {
    /// A duration, as `per` takes it.
    Per(&'a str),
    /// A unit of the calendar, and a time after which the next window has begun in any case.
    Calendar(&'a str, &'a str),
}

impl<'a> Window<'a> {
    /// Reads the time after `per`.
    pub fn parse(text: &'a str) -> Self {
        match text {
            "second" => Self::Per("1s"),
            "minute" => Self::Per("1m"),
            "hour" => Self::Per("1h"),
            "day" => Self::Calendar(text, "1d"),
            "week" => Self::Calendar(text, "1w"),
            "month" => Self::Calendar(text, "31d"),
            "year" => Self::Calendar(text, "366d"),
            _ => Self::Per(text),
        }
    }

    /// Returns the line of the rules file.
    pub fn setting(self) -> String {
        match self {
            Self::Per(text) => format!("per = {text}"),
            Self::Calendar(unit, _) => format!("window = {unit}"),
        }
    }

    /// Returns the words for people.
    pub fn describe(self) -> String {
        match self {
            Self::Per(text) => format!("in {text}, counted from the first request"),
            Self::Calendar(unit, _) => format!("a {unit}, by the calendar in UTC (timezone = NAME for another)"),
        }
    }
}
