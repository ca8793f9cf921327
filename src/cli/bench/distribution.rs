//! Distributions of keys over requests.

use std::str::FromStr;

/// The distribution of keys over requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    Uniform,
    /// The k-th key is requested in proportion to `1 / k^exponent`.
    Zipf {
        exponent: f64,
    },
    Sequential,
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uniform" => Ok(Self::Uniform),
            "sequential" => Ok(Self::Sequential),
            "zipf" => Ok(Self::Zipf { exponent: 0.99 }),
            _ => match text.strip_prefix("zipf:").map(str::parse) {
                Some(Ok(exponent)) if (0.0..=10.0).contains(&exponent) => Ok(Self::Zipf { exponent }),
                Some(_) => Err("the exponent must be a number from 0 to 10".to_owned()),
                None => Err("expected uniform, zipf, zipf:EXPONENT or sequential".to_owned()),
            },
        }
    }
}

impl std::fmt::Display for Distribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf { exponent } => write!(f, "zipf:{exponent}"),
            Self::Sequential => f.write_str("sequential"),
        }
    }
}
