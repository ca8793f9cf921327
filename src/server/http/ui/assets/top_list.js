/** The actors that take the most, or are denied the most, under one rule. */

import * as api from './api.js';
import { actorLink } from './actor_link.js';
import { h, refresh, replace } from './dom.js';
import { number } from './format.js';
import { meter } from './meter.js';

/** Pause between two questions (ms). */
const PAUSE = 5000;

/**
 * Returns a list that refreshes itself until it is closed.
 * @param {{rule: string, order: 'denied'|'taken', last: number, count: number, fields: string[]}} options
 */
export function topList({ rule, order, last, count, fields, onReply = () => {} }) {
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
    onReply(reply);
    const most = reply.top[0]?.count ?? 0;
    if (reply.top.length === 0) {
      const span = last === 60 ? 'minute' : 'hour';
      replace(
        element,
        h(
          'p',
          { class: 'hint' },
          order === 'denied' ? `Nobody was denied in the last ${span}.` : `Nobody took anything in the last ${span}.`,
        ),
      );
      return;
    }
    const rows = reply.top.map(({ actor, count: times }, at) =>
      h(
        'tr',
        {},
        h('td', { class: 'place' }, at + 1),
        h(
          'td',
          { class: 'who' },
          actorLink(fields, actor),
          meter(times, most, 'share', order === 'denied' ? 'bad' : 'ok'),
        ),
        h('td', { class: 'number' }, number(times)),
      ),
    );
    replaceTable(element, rows, order === 'denied' ? 'Denied' : 'Taken');
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

function replaceTable(element, rows, word) {
  refresh(
    element,
    h(
      'table',
      { class: 'plain' },
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          h('th', { scope: 'col', class: 'place' }, '#'),
          h('th', { scope: 'col' }, 'Actor'),
          h('th', { scope: 'col', class: 'number' }, word),
        ),
      ),
      h('tbody', {}, rows),
    ),
  );
}
