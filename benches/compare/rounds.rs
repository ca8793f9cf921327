//! Runs loads in turn, round after round, so that disturbances of the machine affect all of them alike. Summarizes the
//! rounds as medians with their error bounds.

use crate::load::Load;
use crate::sample::Sample;

/// A load with its name in the table.
#[derive(Debug)]
pub struct Subject {
    pub name: String,
    pub load: Load,
}

/// The samples of a subject, one per round.
#[derive(Debug, Clone)]
pub struct Samples(Vec<Sample>);

/// Figures of one subject in relation to another's, one for each round, in ascending order.
#[derive(Debug, Clone)]
pub struct Paired(Vec<f64>);

/// Probability that a bound is on the wrong side of the true median.
const ERROR: f64 = 0.05;

impl Subject {
    pub fn new(name: impl Into<String>, load: Load) -> Self {
        Self { name: name.into(), load }
    }
}

/// Measures every subject once per round for `seconds`. Returns the samples in the order of the subjects.
pub fn interleave(subjects: &[Subject], rounds: u32, seconds: f64) -> anyhow::Result<Vec<Samples>> {
    interleave_as(subjects, rounds, |load, round| load.run(seconds, round))
}

/// Measures as [`interleave`] does, but with `measure`, whose rounds count from 0.
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

    /// Relates this subject's figure to the reference's in the same round, using `relate`.
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

    /// Returns the smallest share of denied requests in a round.
    pub fn least_denied(&self) -> f64 {
        self.0.iter().map(|sample| sample.denied as f64 / sample.requests as f64).fold(1.0, f64::min)
    }

    /// Returns the greatest share of denied requests in a round.
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

    /// Returns an upper bound of the true median, at 95 %; `None` if there are too few rounds.
    pub fn upper(&self) -> Option<f64> {
        let outside = count_outside(self.rounds())?;
        self.0.iter().rev().nth(outside).copied()
    }

    /// Returns a lower bound of the true median, at 95 %; `None` if there are too few rounds.
    pub fn lower(&self) -> Option<f64> {
        self.0.get(count_outside(self.rounds())?).copied()
    }
}

/// Returns how many of the highest (or lowest) values may be omitted while the rest still reaches the true median in 95
/// % of all cases. Each value is above the median in half of the cases, so the number follows from a binomial
/// distribution. The number is one if there are nine values.
fn count_outside(values: usize) -> Option<usize> {
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
