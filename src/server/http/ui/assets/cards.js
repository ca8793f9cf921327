/** Tables whose rows become cards on narrow screens. Roles are given, because such a layout would hide them from screen readers. */

import { h } from './dom.js';

/**
 * @param {string} label says what the table shows
 * @param {Array<[string, string|Node]>} columns class and title of each column
 * @param {HTMLElement[]} rows
 */
export function cards(label, columns, rows) {
  const heading = ([name, title]) => h('th', { scope: 'col', role: 'columnheader', class: name }, title);
  return h(
    'table',
    { class: 'cards', role: 'table', 'aria-label': label },
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, columns.map(heading))),
    h('tbody', { role: 'rowgroup' }, rows),
  );
}

/** @param {{rule: string, denies: boolean}} options */
export function card({ rule, denies }, ...cells) {
  return h('tr', { role: 'row', class: denies ? 'denies' : null, 'data-rule': rule }, cells);
}

/** A cell. On narrow screens, its column's title is next to it. */
export function cell(name, title, ...children) {
  return h('td', { role: 'cell', class: name, 'data-title': title }, h('div', {}, children));
}
