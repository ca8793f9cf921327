//! Tests of all parts together: [`model`] checks the commit path with many schedules.

mod model;
