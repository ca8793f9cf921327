//! Groups in Redis: one script with all the others in it looks at each bucket, and takes when all allow it. How one bucket
//! decides is its own script's business.

use super::script_text::GROUP;
use crate::store::redis::wire::{Arguments, Call};

/// The call that does one step after the other, and in each together what its calls, one action on one bucket each, would
/// do alone.
pub fn call(steps: impl Iterator<Item = Vec<Call>>, has_successor: bool) -> Call {
    let (mut keys, mut all, mut actions) = (Vec::new(), Arguments::default(), 0);
    for step in steps {
        all.push_number(step.len() as u64);
        for call in step {
            let Call::Script { script, key, other_keys, arguments, .. } = call else { continue };
            all.push(script.name);
            all.push_number(1 + other_keys.len() as u64);
            all.push_number(arguments.len() as u64);
            all.append(&arguments);
            keys.push(key);
            keys.extend(other_keys);
            actions += 1;
        }
    }
    let other_keys = keys.split_off(keys.len().min(1));
    let key = keys.pop().unwrap_or_default();
    Call::Script { script: &GROUP, brings_text: has_successor, key, other_keys, arguments: all, actions }
}
