//! Loads in turn, round after round, so that whatever else the machine does meets all of them alike; and what the rounds
//! tell together: medians, and how far off they may be.

use crate::load::Load;
use crate::sample::Sample;

/// A load with the name that the table gives it.
#[derive(Debug)]
pub struct Subject {
    pub name: String,
    pub load: Load,
}

/// The samples of one subject, one a round.
#[derive(Debug, Clone)]
pub struct Samples(Vec<Sample>);

/// A figure of one subject in relation to another's, for each round; in ascending order.
#[derive(Debug, Clone)]
pub struct Paired(Vec<f64>);

/// A bound is on the wrong side of the true median at most so often.
const ERROR: f64 = 0.05;

impl Subject {
    pub fn new(name: impl Into<String>, load: Load) -> Self {
        Self { name: name.into(), load }
    }
}

/// Measures every subject once a round, for `seconds`; returns the samples in the order of the subjects.
pub fn interleave(subjects: &[Subject], rounds: u32, seconds: f64) -> anyhow::Result<Vec<Samples>> {
    interleave_as(subjects, rounds, |load, round| load.run(seconds, round))
}

/// As [`interleave`], each measured as `measure` does it in rounds that count from 0.
pub fn interleave_as(
    subjects: &[Subject],
    rounds: u32,
    measure: impl Fn(&Load, u32) -> anyhow::Result<Sample>,
) -> anyhow::Result<Vec<Samples>> {
    let mut samples: Vec<Samples> = subjects.iter().map(|_| Samples(Vec::new())).collect();
    for round in 0..rounds {
        for (subject, samples) in subjects.iter().zip(&mut samples) {
            eprintln!("  round {} of {rounds}: {}", round + 1, subject.name);
            samples.0.push(measure(&subject.load, round)?);
        }
    }
    Ok(samples)
}

impl Samples {
    pub fn median(&self, metric: impl Fn(&Sample) -> f64) -> f64 {
        median(&ascending(self.0.iter().map(metric)))
    }

    /// This subject's figure and the reference's of the same round, put in relation by `relate`.
    pub fn paired(
        &self,
        reference: &Self,
        metric: impl Fn(&Sample) -> f64,
        relate: impl Fn(f64, f64) -> f64,
    ) -> Paired {
        Paired(ascending(self.0.iter().zip(&reference.0).map(|(this, other)| relate(metric(this), metric(other)))))
    }

    pub fn ratio(&self, reference: &Self, metric: impl Fn(&Sample) -> f64) -> Paired {
        self.paired(reference, metric, |this, other| this / other)
    }

    pub fn max(&self, metric: impl Fn(&Sample) -> f64) -> f64 {
        self.0.iter().map(metric).fold(0.0, f64::max)
    }

    /// The smallest share of denied requests in a round.
    pub fn least_denied(&self) -> f64 {
        self.0.iter().map(|sample| sample.denied as f64 / sample.requests as f64).fold(1.0, f64::min)
    }

    /// The greatest share of denied requests in a round.
    pub fn most_denied(&self) -> f64 {
        self.max(|sample| sample.denied as f64 / sample.requests as f64)
    }
}

impl Paired {
    pub fn rounds(&self) -> usize {
        self.0.len()
    }

    pub fn median(&self) -> f64 {
        median(&self.0)
    }

    /// What the true median is at most, at 95 %; `None` when the rounds are too few to tell.
    pub fn upper(&self) -> Option<f64> {
        let outside = outside(self.rounds())?;
        self.0.iter().rev().nth(outside).copied()
    }

    /// What the true median is at least, at 95 %; `None` when the rounds are too few to tell.
    pub fn lower(&self) -> Option<f64> {
        self.0.get(outside(self.rounds())?).copied()
    }
}

/// How many of the highest (or of the lowest) of so many values may be left out before the rest no longer reaches the
/// true median in 95 % of all cases. Each value is above the median in half of the cases, so a binomial distribution
/// tells; of nine values, one.
fn outside(values: usize) -> Option<usize> {
    // The probability that exactly `count` values are on the other side of the median.
    let mut probability = 0.5_f64.powi(values as i32);
    let mut sum = probability;
    let mut count = 0;
    while sum <= ERROR {
        probability *= (values - count) as f64 / (count + 1) as f64;
        sum += probability;
        count += 1;
    }
    count.checked_sub(1)
}

fn ascending(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(ascending: &[f64]) -> f64 {
    let middle = ascending.len() / 2;
    match (ascending.get(middle), ascending.len() % 2) {
        (Some(upper), 0) => (ascending[middle - 1] + upper) / 2.0,
        (Some(value), _) => *value,
        (None, _) => f64::NAN,
    }
}
