/** What the page may change: limits and counters of single actors, through the same API and audit log as everywhere. */

import * as api from './api.js';
import { copyText, disclosure } from './copy_text.js';
import { ask } from './dialog.js';
import { h, replace } from './dom.js';
import { count, duration, number } from './format.js';
import { notify } from './frame.js';
import * as rulesFile from './rules_file.js';

const TIMES = [
  ['', 'until someone removes it'],
  ['3600', 'for an hour'],
  ['86400', 'for a day'],
  ['604800', 'for a week'],
  ['2592000', 'for 30 days'],
];

/**
 * An actor under a rule.
 * @typedef {object} Target
 * @property {string} rule the rule's name
 * @property {string} actor the actor's name under this rule
 * @property {string} shown the actor for people, such as `user=ann`
 * @property {number} limit the limit in force
 * @property {Map<string, string>} pairs the actor's fields
 * @property {object} [definition] the rule, as `GET /v1/rules` has it
 * @property {string} [file] name of the rules file
 */

/** Asks for a new limit of an actor, and sets it. */
export function setLimit(target, onDone) {
  const credits = h('input', {
    id: 'limit-credits',
    name: 'credits',
    type: 'number',
    min: 0,
    max: Number.MAX_SAFE_INTEGER,
    step: 1,
    required: true,
    value: target.limit,
    inputmode: 'numeric',
  });
  const time = h(
    'select',
    { id: 'limit-time', name: 'time' },
    TIMES.map(([value, text]) => h('option', { value }, text)),
  );
  const content = [
    h(
      'p',
      {},
      'Actor ',
      h('code', {}, target.shown),
      ' under rule ',
      h('b', {}, target.rule),
      '. The number replaces the rule’s credits from the next hit. Used credits stay used.',
    ),
    h(
      'div',
      { class: 'field' },
      h('label', { for: 'limit-credits' }, 'Credits'),
      credits,
      h('p', { class: 'hint' }, '0 denies everything.'),
    ),
    h('div', { class: 'field' }, h('label', { for: 'limit-time' }, 'The limit lasts'), time),
    target.definition && textOfChange(target, credits),
  ];
  ask({
    title: 'Set a limit',
    content,
    action: 'Set limit',
    act: async () => {
      const body = { credits: Number(credits.value), ...(time.value ? { expiresIn: Number(time.value) } : {}) };
      const set = await api.send('PUT', '/v1/limits', { query: { rule: target.rule, actor: target.actor }, body });
      const ends = set.expiresIn === null ? '' : `, for ${duration(set.expiresIn)}`;
      notify(`${target.shown} has a limit of ${count(set.credits, 'credit')} under ${target.rule}${ends}.`);
      onDone();
    },
  });
  credits.select();
}

/** Asks, and gives the actor the limit of the rule again. */
export function removeLimit(target, onDone) {
  ask({
    title: 'Remove a limit',
    action: 'Remove limit',
    danger: true,
    content: [
      h(
        'p',
        {},
        'Actor ',
        h('code', {}, target.shown),
        ' has the limit of rule ',
        h('b', {}, target.rule),
        ' again, from the next hit. Used credits stay used.',
      ),
    ],
    act: async () => {
      const { removed } = await api.send('DELETE', '/v1/limits', { query: { rule: target.rule, actor: target.actor } });
      notify(
        removed
          ? `The limit of ${target.shown} under ${target.rule} is removed.`
          : `${target.shown} had no limit of its own.`,
      );
      onDone();
    },
  });
}

/** Asks, and forgets the actor's counter, so that it has all credits again. */
export function forgetCounter(target, onDone) {
  const { definition } = target;
  ask({
    title: 'Forget a counter',
    action: 'Forget counter',
    danger: true,
    content: [
      h(
        'p',
        {},
        'Actor ',
        h('code', {}, target.shown || '(everyone)'),
        ' has all credits of rule ',
        h('b', {}, target.rule),
        ' again. What it has used is lost.',
      ),
      definition?.algorithm === 'concurrency' &&
        h('p', {}, 'This also frees all leases, even those of work that still runs.'),
      definition?.counter &&
        h('p', {}, 'All rules with ', h('code', {}, `counter = ${definition.counter}`), ' share this counter.'),
    ],
    act: async () => {
      const { forgotten } = await api.send('DELETE', '/v1/counters', {
        query: { rule: target.rule, actor: target.actor },
      });
      notify(
        forgotten > 0
          ? `The counter of ${target.shown || 'everyone'} under ${target.rule} is forgotten.`
          : 'There was no counter to forget.',
      );
      onDone();
    },
  });
}

/** Offers the limit as a rule, for a change that lasts and is reviewed. */
export function textOfChange(target, credits) {
  const box = h('div', {});
  const show = () => replace(box, ruleText(target, Number(credits.value)));
  credits.addEventListener('input', show);
  return disclosure('The same as a rule, to copy', () => {
    show();
    return [box];
  });
}

function ruleText({ definition, pairs, file }, credits) {
  const rule = rulesFile.ruleForActor(
    definition,
    pairs,
    Number.isSafeInteger(credits) && credits >= 0 ? credits : definition.creditLimit,
  );
  const format = rulesFile.formatOf(file);
  const text = rulesFile.write(rule, format);
  const advice = [`Put it above the rule ${definition.name}. The file is the policy, so this page does not edit it.`];
  if (definition.matchPolicy === 'and')
    advice.push(`Rule ${definition.name} continues to apply to this actor, so the lower of both limits decides.`);
  if ([...pairs.values()].some((value) => value.includes('*')))
    advice.push('In a rule, * stands for any text, so this rule matches other actors, too.');
  if (!definition.counter) advice.push('The new rule counts afresh.');
  if (text) return [copyText(text, 'Rule to copy'), h('p', { class: 'hint' }, advice.join(' '))];
  return [
    copyText(rulesFile.write(rule, 'json'), 'Rule to copy, in JSON'),
    h(
      'p',
      { class: 'hint' },
      'An INI file cannot express this actor. In a JSON file, the rule reads like this. ',
      advice.join(' '),
    ),
  ];
}

/** Returns the words for a limit of an actor. */
export function ownLimitText(credits) {
  return `own limit ${number(credits)}`;
}
