/** Words for blocks and allows. */

import { h } from './dom.js';
import { duration } from './format.js';

/** The name that stands for all rules. */
export const ALL_RULES = '*';

const STATES = { block: ['bad', 'blocked'], allow: ['ok', 'allowed'] };

/** Returns the path of the API for blocks or allows. */
export function pathOf(kind) {
  return `/v1/${kind}s`;
}

/** Returns a mark for an actor that is blocked or allowed. A canary denies nothing. */
export function overrideChip({ kind }, isCanary = false) {
  if (kind === 'block' && isCanary) return h('span', { class: 'chip canary' }, 'would be blocked');
  const [style, word] = STATES[kind];
  return h('span', { class: `chip ${style}` }, word);
}

/** Says how long an override lasts, which entry it comes from, and why it was set. */
export function overrideDetails({ kind, endsIn, reason, entry }) {
  const [, word] = STATES[kind];
  return h(
    'span',
    { class: 'more' },
    `${word} ${endsIn === null ? 'until someone removes it' : `for another ${duration(endsIn)}`}`,
    entry !== null && [', under all rules, as ', h('code', {}, entry)],
    reason !== null && [': ', h('bdi', {}, reason)],
  );
}

/** Returns the words for the rules that an override concerns. */
export function underRules(rule) {
  return rule === ALL_RULES ? 'under all rules' : `under ${rule}`;
}
