/** Names of actors, which lead to the view of the actor. */

import { h } from './dom.js';
import { actorQuery } from './operation.js';
import { link } from './route.js';

/** @param {string[]} fields the rule's `actorField` */
export function actorLink(fields, name) {
  if (fields.length === 0) return h('span', {}, 'everyone');
  return h(
    'a',
    { href: link('actor', { q: actorQuery(fields, name) }), class: 'actor-name', title: name },
    name === '' ? '(empty)' : name,
  );
}
