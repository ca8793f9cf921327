/** The tables of an actor: rules under which it has used something, and rules under which it has all of its credits. */

import { card, cards, cell } from './cards.js';
import { forgetCounter, removeLimit, setLimit } from './changes.js';
import { disclosure } from './copy_text.js';
import { h, replace } from './dom.js';
import { count, duration, number } from './format.js';
import { meter } from './meter.js';
import { actorFields, actorName } from './operation.js';
import { removeOverride, setOverride } from './override_dialogs.js';
import { ALL_RULES, overrideChip, overrideDetails } from './overrides.js';
import { capacity, hasLastingName, isNamed } from './policy.js';
import { link } from './route.js';
import { mayChange } from './session.js';

const VERBS = { block: 'Block', allow: 'Allow' };
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
      ' has all credits, no limit of its own, and no block or allow, under every rule that counts by it. A block of another field may still deny its requests: explain a whole request to see that.',
    );
  const changes = ['limits', 'forget', 'block'].some((category) => mayChange(session, category));
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
  const isCanary = definition?.matchPolicy === 'canary';
  const isEmpty = status.remaining === 0;
  const denies = status.override ? status.override.kind === 'block' : isEmpty;
  const some = (value) => (value > 0 ? number(value) : '–');
  return card(
    { rule: status.rule, denies },
    cell(
      '',
      'Rule',
      h('a', { class: 'name', href: link('rules', { rule: status.rule }) }, status.rule),
      h(
        'span',
        { class: 'chips' },
        status.override && overrideChip(status.override, isCanary),
        !status.override &&
          isEmpty &&
          h(
            'span',
            { class: `chip ${isCanary ? 'canary' : 'bad'}` },
            isCanary ? 'would be denied' : 'denied now',
          ),
        isOwn && h('span', { class: 'chip own' }, 'own limit'),
      ),
      status.override && overrideDetails(status.override),
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
      cell('actions', '', actions(target(actor, status.rule, status.limit, definition), status, session, onChange)),
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

function actions(of, status, session, onChange) {
  const isOwn = status.ownLimit !== null;
  const overrides = mayChange(session, 'block') ? overrideActions(of, status.override, onChange) : [];
  if (!hasLastingName(of.rule, of.definition))
    return [overrides, h('span', { class: 'hint' }, 'Other changes need a label.')];
  return [
    mayChange(session, 'limits') &&
      button(of, isOwn ? 'Change limit' : 'Set limit', () => setLimit(of, onChange)),
    mayChange(session, 'limits') && isOwn && button(of, 'Remove limit', () => removeLimit(of, onChange)),
    mayChange(session, 'forget') && button(of, 'Forget counter', () => forgetCounter(of, onChange)),
    overrides,
  ];
}

/** What may be changed about the block or the allow of an actor. An allow wins over a block, and so ends its effect. */
function overrideActions(of, override, onChange) {
  const set = (kind, before = null) => setOverride(kind, of, before, onChange);
  if (!override) return ['block', 'allow'].map((kind) => button(of, VERBS[kind], () => set(kind)));
  const { kind, entry } = override;
  const place =
    entry === null
      ? { rule: of.rule, actor: of.actor, shown: of.shown }
      : { rule: ALL_RULES, actor: entry, shown: entry };
  return [
    entry === null && button(of, `Change ${kind}`, () => set(kind, override)),
    button(of, `Remove ${kind}`, () => removeOverride(kind, place, onChange)),
    kind === 'block' && button(of, VERBS.allow, () => set('allow')),
  ];
}

function button({ rule }, text, onclick) {
  return h(
    'button',
    { type: 'button', class: 'small', onclick },
    text,
    h('span', { class: 'unseen' }, ` under ${rule}`),
  );
}

/** The rules that the actor has not used, in which it may be limited, blocked and allowed, too. */
export function otherRules(actor, { rules }, session, onChange, open) {
  const used = new Set(rules.map((status) => status.rule));
  const others = actor.rules.filter((rule) => !used.has(rule.name));
  if (others.length === 0) return null;
  const mayLimit = mayChange(session, 'limits');
  const mayBlock = mayChange(session, 'block');
  const item = (rule) => {
    const of = target(actor, rule.name, rule.creditLimit, rule);
    return h(
      'li',
      {},
      h('a', { class: 'name', href: link('rules', { rule: rule.name }) }, rule.name),
      ` ${number(capacity(rule))} left `,
      mayLimit && isNamed(rule) && [button(of, 'Set limit', () => setLimit(of, onChange)), ' '],
      mayBlock && overrideActions(of, null, onChange).map((element) => [element, ' ']),
    );
  };
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
