/** A list that grows by a page at a time. */

import * as api from './api.js';
import { h, replace } from './dom.js';

const PAGE = 20;

/**
 * @param {object} options
 * @param {string} options.path where the API lists them
 * @param {Record<string, string>} options.query which ones
 * @param {string} options.member the name of the list in the reply
 * @param {{columns: Array<[string, string|Node]>, none: string, of: (entry: object) => HTMLElement}} options.row class and title
 *   of each column, the text for an empty list, and the row of an entry
 * @param {AbortSignal} options.signal
 */
export function pagedList({ path, query, member, row, signal }) {
  const body = h('tbody', {});
  const note = h('p', { class: 'hint' }, 'Loading…');
  const more = h('button', { type: 'button', class: 'small', hidden: true }, 'More');
  const heading = ([name, title]) => h('th', { scope: 'col', class: name || null }, title);
  const list = h(
    'div',
    { hidden: true },
    h('table', { class: 'plain' }, h('thead', {}, h('tr', {}, row.columns.map(heading))), body),
  );
  const load = async (cursor) => {
    more.disabled = true;
    try {
      const page = await api.get(path, { ...query, count: PAGE, ...(cursor ? { cursor } : {}) }, signal);
      body.append(...page[member].map(row.of));
      list.hidden = !body.firstChild;
      note.hidden = Boolean(body.firstChild);
      note.textContent = page.next ? 'None on this page.' : row.none;
      more.hidden = !page.next;
      more.onclick = () => load(page.next);
    } catch (error) {
      if (error.name !== 'AbortError') replace(note, error.message);
      note.hidden = false;
    } finally {
      more.disabled = false;
    }
  };
  load(null);
  return h('div', {}, list, note, more);
}
