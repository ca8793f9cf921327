//! The OpenAPI description matches the routes.

use std::collections::BTreeSet;

use super::*;
use crate::http::DEFAULT_METRICS_PATH;

#[test]
fn every_route_is_described() {
    let described: serde_json::Value = serde_json::from_slice(&openapi::DESCRIPTION).unwrap();
    let described: BTreeSet<_> = described["paths"].as_object().unwrap().keys().cloned().collect();
    let routes =
        [hit_routes(), check_routes(), inspection_routes(), operations::routes(), bouncer_routes(), public_routes()];
    let mut served: BTreeSet<_> = routes.iter().flatten().map(|(path, ..)| path.replace("{*", "{")).collect();
    served.extend(["/healthz", "/readyz", DEFAULT_METRICS_PATH].map(str::to_owned));
    assert_eq!(described, served);
}
