//! The report reads plans and outcomes; no store is needed.

use std::sync::Arc;

use proptest::prelude::*;

use crate::plan::effects::Intent;
use crate::plan::{PlanBuilder, Together};
use crate::store::StoreError;
use crate::tests::{add_together, operation, parse_rules};
use crate::{ActiveRules, CounterNames, DEFAULT_MAX_RESERVATION_TTL, Scope};
use divvy_core::algorithm::Outcome;
use divvy_core::clock::Clock;
use divvy_telemetry::metrics::Metrics;

const RULES: &str = "
[key=*]; creditLimit = 3; resetSeconds = 3600; actorField = key; matchPolicy = canary
[key=*]; creditLimit = 3; resetSeconds = 3600; actorField = key; matchPolicy = and
[key=*]; creditLimit = 9; resetSeconds = 60; actorField = key; costField = cost
[default]; creditLimit = 0
";

fn builder(metrics: &Metrics) -> PlanBuilder {
    let active = Arc::new(ActiveRules::new(parse_rules(RULES), metrics, CounterNames::Usual));
    let (mut builder, now) = (PlanBuilder::default(), Clock::system().now());
    builder.begin(Some(active), &Scope::EVERYTHING, now, (DEFAULT_MAX_RESERVATION_TTL, true), None);
    builder
}

fn allowed(allowed: bool) -> Result<Outcome, StoreError> {
    Ok(Outcome { allowed, left: 1, ..Outcome::default() })
}

fn intent() -> impl Strategy<Value = Intent> {
    prop::sample::select(vec![
        Intent::Hit,
        Intent::Peek,
        Intent::Forget,
        Intent::Charge,
        Intent::Refund,
        Intent::Enter,
        Intent::EnterOrCharge,
        Intent::Leave,
        Intent::Reserve,
    ])
}

proptest! {
    /// Every member has an answer once each entry has an outcome, and a refused group leaves nothing behind. This holds
    /// for any requests.
    #[test]
    fn every_request_of_a_plan_has_an_answer(
        asked in prop::collection::vec((intent(), "(key|other)=[ab]( cost=([0-3]|x))?", prop::option::of(0_u64..4)), 0..20),
        grouped in any::<bool>(),
        denied in any::<u64>(),
    ) {
        let metrics = Metrics::new();
        let mut builder = builder(&metrics);
        let add = |builder: &mut PlanBuilder| {
            asked.iter().for_each(|(intent, pairs, cost)| builder.add(&operation(pairs), *intent, *cost));
        };
        let added = if grouped {
            add_together(&mut builder, Together::Summed, add)
        } else {
            add(&mut builder);
            Ok(())
        };
        let mut plan = builder.build();
        if added.is_err() {
            prop_assert_eq!((plan.len(), plan.batch.len(), plan.members.len(), plan.groups.len()), (0, 0, 0, 0));
            return Ok(());
        }
        prop_assert_eq!(plan.len(), asked.len());
        plan.batch.outcomes = (0..plan.batch.len()).map(|entry| allowed(denied >> (entry % 64) & 1 == 0)).collect();
        let refused: Vec<_> = plan.refusals(0).map(|(index, _)| index).collect();
        prop_assert_eq!(plan.report().count(&metrics), 0);
        for index in 0..asked.len() {
            prop_assert_eq!(plan.report().verdict(index).is_err(), refused.contains(&index));
        }
    }
}
