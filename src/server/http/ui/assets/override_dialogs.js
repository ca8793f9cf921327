/** The dialogs that block and allow actors, through the same API and audit log as everywhere. */

import * as api from './api.js';
import { ask } from './dialog.js';
import { h } from './dom.js';
import { duration } from './format.js';
import { notify } from './frame.js';
import { ALL_RULES, pathOf, underRules } from './overrides.js';
import { hasLastingName } from './policy.js';

const UNITS = [
  [60, 'minutes'],
  [3600, 'hours'],
  [86_400, 'days'],
];
/** Maximum number of bytes of a reason. */
const MAX_REASON = 256;
const WORDS = {
  block: {
    title: 'Block an actor',
    action: 'Block',
    done: 'is blocked',
    effect: 'Every hit is denied, from the next one. Counters do not change.',
    reason: 'Denied clients may see it.',
  },
  allow: {
    title: 'Allow an actor',
    action: 'Allow',
    done: 'is always allowed',
    effect: 'No hit is denied, from the next one. Hits count up to the limit.',
    reason: 'For people who look at this entry.',
  },
};

/**
 * Asks how long and why, and blocks or allows an actor.
 * @param {'block'|'allow'} kind
 * @param {import('./changes.js').Target} target
 * @param {{endsIn: number|null, reason: string|null}|null} before the rule's own entry that this one replaces
 */
export function setOverride(kind, target, before, onDone) {
  const words = WORDS[kind];
  const places = before ? ownPlace(target) : placesOf(target);
  const place = h(
    'select',
    { id: 'override-place' },
    places.map(({ rule, actor }, at) =>
      h('option', { value: at }, rule === ALL_RULES ? `all rules, as ${actor}` : `rule ${rule}`),
    ),
  );
  const { time, unit, seconds } = timeFields(before);
  const reason = h('input', {
    id: 'override-reason',
    maxlength: MAX_REASON,
    autocomplete: 'off',
    'aria-describedby': 'override-reason-hint',
    value: before?.reason,
  });
  const content = [
    h('p', {}, 'Actor ', h('code', {}, target.shown), '. ', words.effect),
    field('override-place', 'It concerns', place),
    field(
      'override-time',
      'It lasts',
      h('div', { class: 'joined' }, time, unit),
      h('p', { class: 'hint', id: 'override-time-hint' }, 'Without a number, it lasts until someone removes it.'),
    ),
    field(
      'override-reason',
      'Reason',
      reason,
      h('p', { class: 'hint', id: 'override-reason-hint' }, words.reason),
    ),
  ];
  ask({
    title: words.title,
    content,
    action: words.action,
    act: async () => {
      const { rule, actor } = places[Number(place.value)];
      const body = {
        ...(reason.value ? { reason: reason.value } : {}),
        ...(seconds() === null ? {} : { expiresIn: seconds() }),
      };
      const set = await api.send('PUT', pathOf(kind), { query: { rule, actor }, body });
      const ends = set.expiresIn === null ? '' : `, for ${duration(set.expiresIn)}`;
      notify(`${rule === ALL_RULES ? set.actor : target.shown} ${words.done} ${underRules(rule)}${ends}.`);
      onDone();
    },
  });
  reason.focus();
}

/** Returns where the actor may be blocked or allowed: by each field under all rules, and under its rule. */
function placesOf(target) {
  const everywhere = [...target.pairs].map(([field, value]) => ({ rule: ALL_RULES, actor: `${field}=${value}` }));
  return [...everywhere, ...ownPlace(target)];
}

/** Returns the actor's rule, if it has a lasting name. */
function ownPlace({ rule, actor, definition }) {
  return hasLastingName(rule, definition) ? [{ rule, actor }] : [];
}

/** Returns the fields for a time, and a function that returns its seconds, or null without an end. */
function timeFields(before) {
  const minutes = before && before.endsIn !== null ? Math.ceil(before.endsIn / 60) : null;
  const time = h('input', {
    id: 'override-time',
    type: 'number',
    min: 1,
    step: 1,
    inputmode: 'numeric',
    'aria-describedby': 'override-time-hint',
    value: before ? minutes : 1,
  });
  const selected = before ? 60 : 3600;
  const unit = h(
    'select',
    { 'aria-label': 'Unit of the time' },
    UNITS.map(([size, name]) => h('option', { value: size, selected: size === selected }, name)),
  );
  return { time, unit, seconds: () => (time.value === '' ? null : Number(time.value) * Number(unit.value)) };
}

function field(id, label, ...content) {
  return h('div', { class: 'field' }, h('label', { for: id }, label), content);
}

/**
 * Asks, and removes a block or an allow.
 * @param {'block'|'allow'} kind
 * @param {{rule: string, actor: string, shown: string}} of
 */
export function removeOverride(kind, { rule, actor, shown }, onDone) {
  const consequence =
    rule === ALL_RULES
      ? [' under all rules ends. It may concern other actors, too.']
      : [' under rule ', h('b', {}, rule), ' ends.'];
  ask({
    title: `Remove ${kind === 'block' ? 'a block' : 'an allow'}`,
    action: `Remove ${kind}`,
    danger: true,
    content: [h('p', {}, `The ${kind} of `, h('code', {}, shown), consequence)],
    act: async () => {
      const { removed } = await api.send('DELETE', pathOf(kind), { query: { rule, actor } });
      notify(
        removed ? `The ${kind} of ${shown} ${underRules(rule)} is removed.` : `${shown} had no ${kind} any more.`,
      );
      onDone();
    },
  });
}
