/** The head of a view. */

import { h } from './dom.js';

/** Returns the title of a view, and what the view shows. */
export function viewHead(title, lead) {
  return h('div', { class: 'head' }, h('h1', {}, title), h('p', { class: 'lead' }, lead));
}
