//! Draws how each algorithm lets a burst through, by asking the real ones. A test compares the drawing with the
//! committed one.
//!
//! Every limit is 10 credits per minute. The caller hits once at 0 s, twice a second from 50 s to 70 s, is quiet until
//! 120 s, and then hits once a second.

use std::error::Error;
use std::fmt::{self, Write};

use divvy::algorithm::{Ask, FixedWindow, InvalidLimit, LeakyBucket, Limit, SlidingLog, SlidingWindow, TokenBucket};
use divvy::clock::{NANOS_PER_SECOND, Timestamp};

const CREDITS: u64 = 10;
const MINUTE: u64 = 60 * NANOS_PER_SECOND;
/// A multiple of a minute since the epoch, so that the aligned windows of `sliding-window` start at full minutes.
const START: u64 = 1_000_000 * MINUTE;

/// Pixels.
const PER_SECOND: f64 = 3.6;
const LEFT: f64 = 130.0;
const TOP: f64 = 56.0;
const ROW: f64 = 58.0;
const GRANTED_HEIGHT: f64 = 34.0;
const DENIED_HEIGHT: f64 = 10.0;
const WIDTH: f64 = 940.0;
const SECONDS: u64 = 180;

/// Colors, in light mode and in dark mode: those of `scripts/drawing/svg.py`.
const STYLE: &str = "<style>svg{fill:#1f2328}.background{fill:#ffffff}.granted{fill:#0b62c4}.denied{fill:#b3bac5}\
.line{stroke:#b3bac5}.grid{stroke:#e3e6ea}
@media (prefers-color-scheme:dark){svg{fill:#e6edf3}.background{fill:#0d1117}.granted{fill:#58a6ff}\
.denied{fill:#59626d}.line{stroke:#59626d}.grid{stroke:#262c34}}</style>";

/// One hit: seconds after the start, and whether it was granted.
struct Hit {
    seconds: f64,
    granted: bool,
}

/// The drawing as an SVG file.
///
/// # Errors
/// A limit that makes no sense, or no memory for the text: neither happens with the numbers above.
pub fn burst_plot() -> Result<String, Box<dyn Error>> {
    Ok(plot(&limits()?)?)
}

fn limits() -> Result<[Limit; 5], InvalidLimit> {
    Ok([
        Limit::FixedWindow(FixedWindow::new(CREDITS, MINUTE)?),
        Limit::SlidingWindow(SlidingWindow::new(CREDITS, MINUTE)?),
        Limit::SlidingLog(SlidingLog::new(CREDITS, MINUTE)?),
        Limit::TokenBucket(TokenBucket::new(CREDITS, CREDITS / 2, MINUTE / 2)?),
        Limit::LeakyBucket(LeakyBucket::new(CREDITS, CREDITS, MINUTE)?),
    ])
}

/// When the caller hits, in nanoseconds after the start.
fn hits() -> impl Iterator<Item = u64> {
    let burst = (100..140).map(|half_seconds| half_seconds * NANOS_PER_SECOND / 2);
    let steady = (120..SECONDS).map(|seconds| seconds * NANOS_PER_SECOND);
    std::iter::once(0).chain(burst).chain(steady)
}

fn ask_all(limit: &Limit) -> Vec<Hit> {
    let mut state = None;
    let mut ask = |nanos: u64| {
        let decision = limit.decide(state.as_ref(), Ask::Take { cost: 1 }, Timestamp::from_nanos(START + nanos));
        state = decision.state.or(state.take());
        Hit { seconds: nanos as f64 / NANOS_PER_SECOND as f64, granted: decision.outcome.allowed }
    };
    hits().map(&mut ask).collect()
}

/// The most hits granted in any minute.
fn most_in_a_minute(hits: &[Hit]) -> usize {
    let granted: Vec<f64> = hits.iter().filter(|hit| hit.granted).map(|hit| hit.seconds).collect();
    let in_minute_to = |end: f64| granted.iter().filter(|time| (0.0..60.0).contains(&(end - **time))).count();
    granted.iter().map(|end| in_minute_to(*end)).max().unwrap_or(0)
}

fn x(seconds: f64) -> f64 {
    LEFT + seconds * PER_SECOND
}

fn plot(limits: &[Limit]) -> Result<String, fmt::Error> {
    let bottom = TOP + ROW * limits.len() as f64;
    let height = bottom + 34.0;
    let mut svg = String::new();
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="Hits granted and denied over three minutes, one row per algorithm">"#
    )?;
    writeln!(svg, r#"{STYLE}<rect width="{WIDTH}" height="{height}" class="background"/>"#)?;
    legend(&mut svg)?;
    axis(&mut svg, bottom)?;
    for (index, limit) in limits.iter().enumerate() {
        row(&mut svg, limit, TOP + ROW * (index + 1) as f64 - 10.0)?;
    }
    writeln!(svg, "</svg>")?;
    Ok(svg)
}

fn legend(svg: &mut String) -> fmt::Result {
    writeln!(svg, r#"<text x="12" y="24" font-weight="600">{CREDITS} credits per minute</text>"#)?;
    writeln!(
        svg,
        r#"<rect x="{LEFT}" y="36" width="3" height="12" class="granted"/><text x="{}" y="47">granted</text>"#,
        LEFT + 9.0
    )?;
    writeln!(
        svg,
        r#"<rect x="{}" y="40" width="3" height="8" class="denied"/><text x="{}" y="47">denied</text>"#,
        LEFT + 72.0,
        LEFT + 81.0
    )?;
    writeln!(svg, r#"<text x="{}" y="47">most in any minute</text>"#, x(SECONDS as f64) + 14.0)
}

fn axis(svg: &mut String, bottom: f64) -> fmt::Result {
    for seconds in (0..=SECONDS).step_by(30) {
        let x = x(seconds as f64);
        writeln!(svg, r#"<line x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom}" class="grid"/>"#)?;
        writeln!(svg, r#"<text x="{x:.1}" y="{}" text-anchor="middle">{seconds} s</text>"#, bottom + 18.0)?;
    }
    Ok(())
}

fn row(svg: &mut String, limit: &Limit, base: f64) -> fmt::Result {
    let hits = ask_all(limit);
    let end = x(SECONDS as f64);
    writeln!(svg, r#"<text x="12" y="{:.1}">{}</text>"#, base - 8.0, limit.kind().name())?;
    writeln!(svg, r#"<line x1="{LEFT}" y1="{base}" x2="{end}" y2="{base}" class="line"/>"#)?;
    for hit in &hits {
        let (height, class) = if hit.granted { (GRANTED_HEIGHT, "granted") } else { (DENIED_HEIGHT, "denied") };
        let (x, y) = (x(hit.seconds) - 0.7, base - height);
        writeln!(svg, r#"<rect x="{x:.1}" y="{y:.1}" width="1.4" height="{height}" class="{class}"/>"#)?;
    }
    writeln!(
        svg,
        r#"<text x="{:.1}" y="{:.1}" font-weight="600">{}</text>"#,
        end + 14.0,
        base - 8.0,
        most_in_a_minute(&hits)
    )
}
