//! The messages of CrowdSec's Local API: decisions about addresses and networks.
//!
//! Bouncers ask for decisions, and enforce them in a firewall, a proxy or an application. Source:
//! `pkg/models/localapi_swagger.yaml` in <https://github.com/crowdsecurity/crowdsec>.

mod answer_reader;
mod decision;
mod filter;

pub use self::answer_reader::{AnswerError, AnswerReader, DecisionList};
pub use self::decision::{BAN, Ban, Decision, RemoteDecision, Scope, write_duration};
pub use self::filter::{DecisionFilter, DecisionQuery, FilterError, NetworkFilter};
