/** What the counters of the rules that match an operation have left. */

import * as api from './api.js';
import { actorFields, actorName } from './operation.js';
import { capacity, counts } from './policy.js';

/**
 * Asks for the counter of each matching rule. Asking takes nothing.
 * @param {object[]} found the rules of an explanation
 * @param {Map<string, object>} named the rules in force
 * @param {Map<string, string>} pairs the operation
 * @returns {Promise<Map<string, {actor: string, whole: number, balance: number, reset: number}>>} by the rule's name; rules that
 *   count nothing have none
 */
export async function counterStates(found, named, pairs, signal) {
  const counting = found.filter(({ name, grants }) => grants && named.has(name) && counts(named.get(name)));
  const states = await Promise.all(
    counting.map(async (explained) => [
      explained.name,
      await stateOf(explained, named.get(explained.name), pairs, signal),
    ]),
  );
  return new Map(states);
}

async function stateOf({ name, grants }, rule, pairs, signal) {
  const actor = actorName(actorFields(rule), pairs);
  const [
    {
      counters: [counter],
    },
    own,
  ] = await Promise.all([
    api.get('/v1/counters', { rule: name, actor }, signal),
    grants.actorLimit ? api.get('/v1/limits', { rule: name, actor }, signal).catch(() => null) : null,
  ]);
  const whole = own?.credits ?? capacity(rule);
  return { actor, whole, balance: counter?.balance ?? whole, reset: counter?.reset ?? 0 };
}
