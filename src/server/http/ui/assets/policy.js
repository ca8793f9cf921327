/** The rules in force, as `GET /v1/rules` lists them. Fetched when a view needs them, and forgotten after a reload. */

import * as api from './api.js';
import { actorFields, matches } from './operation.js';

/** Age after which the rules are fetched again, for users who are not told of reloads (ms). */
const MAX_AGE = 60_000;

let cached = null;
let fetchedAt = 0;

/** @returns {Promise<{rules: object[], named: Map<string, object>}>} */
export function load() {
  if (!cached || Date.now() - fetchedAt > MAX_AGE) {
    fetchedAt = Date.now();
    const fresh = api
      .get('/v1/rules')
      .then(({ rules }) => ({ rules, named: new Map(rules.map((rule) => [rule.name, rule])) }));
    fresh.catch(() => forget());
    cached = fresh;
  }
  return cached;
}

export function forget() {
  cached = null;
}

/** Returns whether a rule counts anything. */
export function counts(rule) {
  return rule.creditLimit > 0 && rule.resetSeconds !== 0;
}

/** Returns the most credits that a counter of this rule can have left. */
export function capacity(rule) {
  return rule.burst ?? rule.creditLimit;
}

/** Returns the rules with a counter for the actor of exactly these fields. */
export function rulesOfActor(rules, pairs) {
  return rules.filter((rule) => {
    const fields = actorFields(rule);
    if (fields.length === 0 || fields.length !== pairs.size || !counts(rule)) return false;
    return fields.every((field) => pairs.has(field) && matches(rule.operation[field] ?? '*', pairs.get(field)));
  });
}

/** Returns whether limits and counters of single actors can be changed under this rule. */
export function isNamed(rule) {
  return Boolean(rule.label) || rule.name === 'default';
}

/** Returns the same for a rule with this name, whose definition only some users may read. */
export function hasLastingName(name, definition) {
  return definition ? isNamed(definition) : !/^rule-\d+$/.test(name);
}
