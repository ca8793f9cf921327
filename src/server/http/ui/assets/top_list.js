/** The actors that take the most, or are denied the most, under one rule. */

import * as api from './api.js';
import { actorLink } from './actor_link.js';
import { h, refresh, replace } from './dom.js';
import { number, percent } from './format.js';
import { meter } from './meter.js';

/** Pause between two questions (ms). */
const PAUSE = 5000;
const SPANS = { 60: 'minute', 3600: 'hour' };

/**
 * Returns a list that refreshes itself until it is closed.
 * @param {{rule: string, order: 'denied'|'taken', last: 60|3600, count: number, fields: string[]}} options
 */
export function topList({ rule, order, last, count, fields }) {
  const element = h('div', { class: 'top-list' }, h('p', { class: 'hint' }, 'Loading…'));
  const abort = new AbortController();
  let timer;

  async function load() {
    try {
      if (!document.hidden) show(await api.get('/v1/top', { rule, order, last, count }, abort.signal));
    } catch (error) {
      if (error.name === 'AbortError') return;
      replace(element, h('p', { class: 'error' }, error.message));
    }
    timer = setTimeout(load, PAUSE);
  }

  function show(reply) {
    if (reply.top.length > 0) refresh(element, table(reply, fields), notes(reply));
    else refresh(element, h('p', { class: 'hint' }, nobody(reply)));
  }

  load();
  return {
    element,
    close() {
      clearTimeout(timer);
      abort.abort();
    },
  };
}

function nobody({ order, last, hasRoom, total }) {
  if (hasRoom === false) return 'The memory for ranking actors (--top-memory) is in use by other rules.';
  const span = `in the last ${SPANS[last]}`;
  // Without a total, only one actor is in the user's scope.
  if (total === null) return `Your actor ${order === 'denied' ? 'was not denied' : 'took no credits'} ${span}.`;
  return `Nobody ${order === 'denied' ? 'was denied' : 'took credits'} ${span}.`;
}

function table({ top, order, total }, fields) {
  const heading = (name, text) => h('th', { scope: 'col', class: name }, text);
  const columns = [
    heading('place', '#'),
    heading('', 'Actor'),
    heading('number', order === 'denied' ? 'Denied' : 'Credits taken'),
    total ? heading('number', 'Share') : null,
  ];
  const most = top[0].count;
  const rows = top.map(({ actor, cut, count, error }, at) =>
    h(
      'tr',
      {},
      h('td', { class: 'place' }, at + 1),
      h(
        'td',
        { class: 'who' },
        cut ? h('code', { title: 'Only the beginning of the name is known' }, `${actor}…`) : actorLink(fields, actor),
        meter(count, most, 'share', order === 'denied' ? 'bad' : 'ok'),
      ),
      h(
        'td',
        { class: 'number' },
        number(count),
        error > 0 ? h('span', { class: 'more' }, ` ± ${number(error)}`) : null,
      ),
      total ? h('td', { class: 'number' }, percent(count, total)) : null,
    ),
  );
  return h('table', { class: 'plain' }, h('thead', {}, h('tr', {}, columns)), h('tbody', {}, rows));
}

function notes({ sampled }) {
  return sampled
    ? h('p', { class: 'hint' }, 'This server was busy, so these are estimates: ± holds for 95 % of them.')
    : null;
}
