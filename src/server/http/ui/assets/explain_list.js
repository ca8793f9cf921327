/** The rules of an explanation: those that match with their counters, and why the others do not match. */

import { actorLink } from './actor_link.js';
import { card, cards, cell } from './cards.js';
import { disclosure } from './copy_text.js';
import { h } from './dom.js';
import { count, duration, number } from './format.js';
import { meter } from './meter.js';
import { actorFields } from './operation.js';
import { overrideChip, overrideDetails } from './overrides.js';
import { link } from './route.js';

const ROLES = {
  answers: 'answers',
  'must-allow': 'must allow, too',
  canary: 'canary, denies nothing',
  refuses: 'error',
};
/** Rules that do not match are shown in parts of this size. */
const PART = 200;

/** A table of the rules that match. `denying` has the names of those that deny. */
export function explained(rules, named, states, denying) {
  const columns = [
    ['', 'Rule'],
    ['', 'Role'],
    ['', 'Actor'],
    ['number', 'Left now'],
    ['number', 'More in'],
  ];
  return cards(
    'Rules that match',
    columns,
    rules.map((rule) => row(rule, named.get(rule.name), states.get(rule.name), denying.has(rule.name))),
  );
}

function row(rule, definition, state, denies) {
  const limit = rule.grants?.actorLimit
    ? [`${rule.grants.actorLimit} `, h('span', { class: 'chip own' }, 'own limit')]
    : (rule.grants?.limit ?? rule.reason);
  const cost = rule.grants?.cost === undefined ? null : `, takes ${number(rule.grants.cost)}`;
  return card(
    { rule: rule.name, denies },
    cell(
      '',
      'Rule',
      h('a', { href: link('rules', { rule: rule.name }), class: 'name' }, rule.name),
      h('span', { class: 'more' }, limit, cost),
      rule.grants?.override && overrideDetails(rule.grants.override),
      ...(rule.grants?.members ?? []).map((member) => h('span', { class: 'more' }, memberText(member))),
    ),
    cell(
      '',
      'Role',
      h(
        'span',
        { class: 'chips' },
        rule.grants?.override && overrideChip(rule.grants.override, rule.finding === 'canary'),
        denies && h('span', { class: 'chip bad' }, 'denies'),
        h('span', { class: `chip ${rule.finding}` }, ROLES[rule.finding]),
      ),
    ),
    cell('', 'Actor', definition && state ? actorLink(actorFields(definition), state.actor) : '–'),
    cell(
      'number',
      'Left now',
      state
        ? [
            h('b', { class: state.balance <= 0 ? 'some' : '' }, number(state.balance)),
            ` / ${number(state.whole)}`,
            meter(state.balance, state.whole, 'left'),
          ]
        : '–',
    ),
    cell('number', 'More in', state && state.reset > 0 ? duration(state.reset) : '–'),
  );
}

/** Says which entry of the rule's networks or list a value matches. */
function memberText({ key, list, line, entry }) {
  return list ? `${key} is in ${list}, line ${number(line)}: ${entry}` : `${key} is in ${entry}`;
}

/** The rules above the answer that do not match, each with the first reason. */
export function mismatches(rules) {
  if (rules.length === 0)
    return h('p', { class: 'hint' }, 'No rule above the answer was passed over. Rules below it are not asked.');
  const title = `${count(rules.length, 'rule')} above the answer ${rules.length === 1 ? 'does' : 'do'} not match`;
  return [
    disclosure(title, () => [part(rules, 0)], { open: rules.length <= 30 }),
    h('p', { class: 'hint' }, 'Rules below the answer are not asked.'),
  ];
}

function part(rules, start) {
  const shown = rules.slice(start, start + PART);
  const list = h(
    'ul',
    { class: 'reasons' },
    shown.map((rule) =>
      h('li', {}, h('a', { href: link('rules', { rule: rule.name }), class: 'name' }, rule.name), ': ', reason(rule)),
    ),
  );
  if (start + PART >= rules.length) return list;
  const more = h(
    'button',
    { type: 'button', class: 'small', onclick: () => more.replaceWith(part(rules, start + PART)) },
    `Show ${number(Math.min(PART, rules.length - start - PART))} more`,
  );
  return [list, more].reduce((box, child) => (box.append(child), box), h('div', {}));
}

/** Says why a value does not meet the condition of `networks` or `list`. */
function conditionText({ entries, entry, lineInList }) {
  if (!entry) return [', but must be in ', h('code', {}, entries)];
  if (!lineInList) return [', but must not be in ', h('code', {}, entry)];
  return [`, but must not be in ${entries.replace(/^not /, '')}, line ${number(lineInList)}: `, h('code', {}, entry)];
}

function reason(rule) {
  if (rule.finding === 'key-missing') return h('span', {}, 'the field ', h('code', {}, rule.key), ' is missing');
  return h(
    'span',
    {},
    h('code', {}, rule.key),
    ' is ',
    h('code', {}, rule.value || '(empty)'),
    ...(rule.setting ? conditionText(rule) : [', but must be ', h('code', {}, rule.pattern)]),
  );
}
