/** The tables of an actor: rules under which it has used something, and rules under which it has all of its credits. */

import { card, cards, cell } from './cards.js';
import { forgetCounter, removeLimit, setLimit } from './changes.js';
import { disclosure } from './copy_text.js';
import { h, replace } from './dom.js';
import { count, duration, number } from './format.js';
import { meter } from './meter.js';
import { actorFields, actorName } from './operation.js';
import { capacity, isNamed } from './policy.js';
import { link } from './route.js';
import { mayChange } from './session.js';

/** Rules with all credits that are listed. */
const OTHERS = 50;
const COLUMNS = [
  ['', 'Rule'],
  ['number', 'Left'],
  ['number', 'Used'],
  ['number', 'Reserved'],
  ['number', 'In flight'],
  ['number', 'More in'],
];

/** @param {{pairs: Map<string, string>, shown: string, rules: object[], file: string|null}} actor */
export function actorTable(actor, { rules, next }, session, onChange) {
  if (rules.length === 0)
    return h(
      'p',
      { class: 'card quiet-card' },
      h('code', {}, actor.shown),
      ' has all credits of every rule, and no limit of its own.',
    );
  const changes = mayChange(session, 'limits') || mayChange(session, 'forget');
  return [
    cards(
      `Counters of ${actor.shown}`,
      [...COLUMNS, ...(changes ? [['', h('span', { class: 'unseen' }, 'Actions')]] : [])],
      rules.map((status) => row(actor, status, session, onChange, changes)),
    ),
    next && h('p', { class: 'hint' }, 'The first 1,000 rules are shown.'),
  ];
}

function row(actor, status, session, onChange, changes) {
  const definition = actor.rules.find((rule) => rule.name === status.rule);
  const isOwn = status.ownLimit !== null;
  const isEmpty = status.remaining === 0;
  const some = (value) => (value > 0 ? number(value) : '–');
  return card(
    { rule: status.rule, denies: isEmpty },
    cell(
      '',
      'Rule',
      h('a', { class: 'name', href: link('rules', { rule: status.rule }) }, status.rule),
      h(
        'span',
        { class: 'chips' },
        isEmpty &&
          h(
            'span',
            { class: `chip ${definition?.matchPolicy === 'canary' ? 'canary' : 'bad'}` },
            definition?.matchPolicy === 'canary' ? 'would be denied' : 'denied now',
          ),
        isOwn && h('span', { class: 'chip own' }, 'own limit'),
      ),
      definition?.comment && h('span', { class: 'more' }, definition.comment),
    ),
    cell(
      'number',
      'Left',
      h('b', { class: isEmpty ? 'some' : '' }, number(status.balance)),
      ` / ${number(status.limit)}`,
      meter(status.balance, status.limit, 'left'),
    ),
    cell('number', 'Used', some(status.used)),
    cell('number', 'Reserved', some(status.reserved)),
    cell('number', 'In flight', some(status.inFlight)),
    cell('number', 'More in', status.reset > 0 ? duration(status.reset) : '–'),
    changes &&
      cell('actions', '', actions(target(actor, status.rule, status.limit, definition), isOwn, session, onChange)),
  );
}

function target(actor, rule, limit, definition) {
  const fields = definition ? actorFields(definition) : [...actor.pairs.keys()];
  return {
    rule,
    actor: actorName(fields, actor.pairs),
    shown: actor.shown,
    limit,
    pairs: actor.pairs,
    definition,
    file: actor.file,
  };
}

function actions(of, isOwn, session, onChange) {
  if (/^rule-\d+$/.test(of.rule) && !(of.definition && isNamed(of.definition)))
    return h('span', { class: 'hint' }, 'needs a label');
  const button = (text, act) =>
    h(
      'button',
      { type: 'button', class: 'small', onclick: () => act(of, onChange) },
      text,
      h('span', { class: 'unseen' }, ` under ${of.rule}`),
    );
  return [
    mayChange(session, 'limits') && button(isOwn ? 'Change limit' : 'Set limit', setLimit),
    mayChange(session, 'limits') && isOwn && button('Remove limit', removeLimit),
    mayChange(session, 'forget') && button('Forget counter', forgetCounter),
  ];
}

/** The rules that the actor has not used, in which it may be given a limit, too. */
export function otherRules(actor, { rules }, session, onChange, open) {
  const used = new Set(rules.map((status) => status.rule));
  const others = actor.rules.filter((rule) => !used.has(rule.name));
  if (others.length === 0) return null;
  const mayLimit = mayChange(session, 'limits');
  const item = (rule) =>
    h(
      'li',
      {},
      h('a', { class: 'name', href: link('rules', { rule: rule.name }) }, rule.name),
      ` ${number(capacity(rule))} left `,
      mayLimit &&
        isNamed(rule) &&
        h(
          'button',
          {
            type: 'button',
            class: 'small',
            onclick: () => setLimit(target(actor, rule.name, rule.creditLimit, rule), onChange),
          },
          'Set limit',
          h('span', { class: 'unseen' }, ` under ${rule.name}`),
        ),
    );
  return disclosure(`All credits left under ${count(others.length, 'other rule')}`, () => filtered(others, item), {
    open,
  });
}

/** A list of rules. If it is long, a field selects some by their names. */
function filtered(rules, item) {
  const box = h('div', {});
  const show = (text) => {
    const found = rules.filter((rule) => rule.name.toLowerCase().includes(text.toLowerCase()));
    replace(
      box,
      h('ul', { class: 'reasons' }, found.slice(0, OTHERS).map(item)),
      found.length > OTHERS && h('p', { class: 'hint' }, `and ${number(found.length - OTHERS)} more`),
    );
  };
  show('');
  if (rules.length <= OTHERS) return [box];
  return [
    h(
      'p',
      {},
      h('input', {
        type: 'search',
        class: 'narrow-input',
        placeholder: 'Name of a rule',
        'aria-label': 'Name of a rule',
        oninput: (event) => show(event.target.value),
      }),
    ),
    box,
  ];
}
