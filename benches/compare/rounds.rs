//! Loads in turn, round after round, so that whatever else the machine does meets all of them alike; and medians.

use crate::load::{Load, Sample};

/// A load with the name that the table gives it.
#[derive(Debug)]
pub struct Subject {
    pub name: String,
    pub load: Load,
}

/// The samples of one subject, one a round.
#[derive(Debug, Clone)]
pub struct Samples(Vec<Sample>);

impl Subject {
    pub fn new(name: impl Into<String>, load: Load) -> Self {
        Self { name: name.into(), load }
    }
}

/// Runs every subject once a round; returns the samples in the order of the subjects.
pub fn interleave(subjects: &[Subject], rounds: u32, seconds: f64) -> anyhow::Result<Vec<Samples>> {
    let mut samples: Vec<Samples> = subjects.iter().map(|_| Samples(Vec::new())).collect();
    for round in 1..=rounds {
        for (subject, samples) in subjects.iter().zip(&mut samples) {
            eprintln!("  round {round} of {rounds}: {}", subject.name);
            samples.0.push(subject.load.run(seconds)?);
        }
    }
    Ok(samples)
}

impl Samples {
    pub fn median(&self, metric: impl Fn(&Sample) -> f64) -> f64 {
        median(self.0.iter().map(metric).collect())
    }

    /// The median over the rounds of this subject's figure divided by the reference's in the same round.
    pub fn ratio(&self, reference: &Self, metric: impl Fn(&Sample) -> f64) -> f64 {
        median(self.0.iter().zip(&reference.0).map(|(this, other)| metric(this) / metric(other)).collect())
    }

    pub fn max(&self, metric: impl Fn(&Sample) -> f64) -> f64 {
        self.0.iter().map(metric).fold(0.0, f64::max)
    }

    /// The smallest share of denied requests in a round.
    pub fn least_denied(&self) -> f64 {
        self.0.iter().map(|sample| sample.denied as f64 / sample.requests as f64).fold(1.0, f64::min)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (Some(upper), 0) => (values[middle - 1] + upper) / 2.0,
        (Some(value), _) => *value,
        (None, _) => f64::NAN,
    }
}
