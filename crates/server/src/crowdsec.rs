//! CrowdSec: divvy as a Local API for bouncers, and as a bouncer of a CrowdSec server.
//!
//! [`decisions`] answers bouncers: [`journal`] has the decisions in the order of their changes, and [`listing`] writes the
//! answers, and has the last change that each bouncer knows. [`follower`] puts the bans of a CrowdSec server in force as blocks:
//! [`upstream`] asks for its decisions, and [`answer`] has the bans of one answer. [`blocks`] is the way to the limiter's blocks.

mod answer;
mod blocks;
mod decisions;
mod follower;
mod journal;
mod listing;
mod upstream;

pub use self::decisions::Decisions;
pub use self::follower::Follower;
pub use self::listing::Bouncer;
pub use self::upstream::{API_KEY, InvalidUpstream, Upstream};
