//! The window of a limit, as an answer states it.

/// The window of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window<'a> {
    /// A duration, in the syntax of `per`.
    Per(&'a str),
    /// A calendar unit, and a time after which the next window has certainly begun.
    Calendar(&'a str, &'a str),
}

impl<'a> Window<'a> {
    /// Parses the text after `per`.
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

    /// Returns whether the window is a day or longer.
    pub fn is_long(self) -> bool {
        match self {
            Self::Per(text) => text.ends_with(['d', 'w']),
            Self::Calendar(..) => true,
        }
    }

    /// Returns the setting as a line of the rules file.
    pub fn setting(self) -> String {
        match self {
            Self::Per(text) => format!("per = {text}"),
            Self::Calendar(unit, _) => format!("window = {unit}"),
        }
    }

    /// Describes the window for people.
    pub fn describe(self) -> String {
        match self {
            Self::Per(text) => format!("in {text}, counted from the first request"),
            Self::Calendar(unit, _) => format!("a {unit}, by the calendar in UTC (timezone = NAME for another)"),
        }
    }
}
