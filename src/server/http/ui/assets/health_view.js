/** The server's state: store, journal, disk and memory against their bounds, durability, and errors by kind. */

import { h, replace } from './dom.js';
import { number, percent, quantity, storeName } from './format.js';
import { meter } from './meter.js';
import { viewHead } from './view_head.js';

const STATES = { ok: 'OK', warning: 'Warning', bad: 'Bad' };

export function mount(host) {
  const result = h('div', { id: 'health' }, h('p', { class: 'hint' }, 'Loading…'));
  host.append(
    viewHead('Health', 'What this server uses, and the bounds that it has.'),
    result,
  );
  return { receive: (name, data) => name === 'health' && replace(result, health(data)) };
}

function health({ ready, problems, values, durability, store, errors, last_errors: lastErrors }) {
  return [
    h(
      'div',
      { class: 'verdict' },
      h('span', { class: `pill ${ready ? 'ok' : 'bad'}` }, ready ? 'Ready' : 'Not ready'),
      h(
        'div',
        {},
        h('p', {}, `Store: ${storeName(store)}. Durability: ${durability}.`),
        problems.length > 0 &&
          h(
            'ul',
            { class: 'problems' },
            problems.map((problem) => h('li', {}, problem)),
          ),
      ),
    ),
    h(
      'div',
      { class: 'split-even' },
      h(
        'section',
        { 'aria-labelledby': 'values-title' },
        h('h2', { id: 'values-title' }, 'Use and bounds'),
        valueTable(values),
      ),
      h(
        'section',
        { 'aria-labelledby': 'errors-title' },
        h('h2', { id: 'errors-title' }, 'Errors since the start'),
        errorTable(errors),
        lastErrors.length > 0 && lastErrorList(lastErrors),
      ),
    ),
  ];
}

function valueTable(values) {
  const column = (name, text) => h('th', { scope: 'col', class: name }, text);
  const columns = [column('', 'Of'), column('number', 'In use'), column('number', 'Share'), column('', 'State')];
  return h(
    'table',
    { class: 'plain health' },
    h('thead', {}, h('tr', {}, columns)),
    h('tbody', {}, values.map(valueRow)),
  );
}

function valueRow({ text, used, bound, unit, state }) {
  const isBounded = bound !== null && bound !== undefined;
  return h(
    'tr',
    { class: state === 'ok' ? null : state },
    h('td', {}, text, isBounded && meter(used, bound, 'used', state)),
    h(
      'td',
      { class: 'number' },
      quantity(used, unit),
      isBounded && [' ', h('span', { class: 'more' }, `of ${quantity(bound, unit)}`)],
    ),
    h('td', { class: 'number' }, isBounded ? percent(used, bound) : '–'),
    h('td', {}, h('span', { class: `chip ${state}` }, STATES[state])),
  );
}

function errorTable(errors) {
  if (errors.length === 0) return h('p', { class: 'hint' }, 'None.');
  return h(
    'table',
    { class: 'plain' },
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Kind'), h('th', { scope: 'col', class: 'number' }, 'Count'))),
    h(
      'tbody',
      {},
      errors.map(({ kind, count }) =>
        h('tr', {}, h('td', {}, h('code', {}, kind)), h('td', { class: 'number' }, number(count))),
      ),
    ),
  );
}

/** The last error of each kind on each front, so that one finds out who sends what. */
function lastErrorList(errors) {
  const line = ({ front, kind, age, peer, user, reason }) =>
    h(
      'li',
      {},
      h('code', {}, `${front} ${kind}`),
      `, ${number(age)} s ago, from ${peer ?? 'an unknown address'}${user ? ` (${user})` : ''}: ${reason}`,
    );
  return [h('h3', {}, 'The last of each kind'), h('ul', { class: 'last-errors' }, errors.map(line))];
}
