/** Lists of the actors that are blocked, and of those that are allowed. */

import { actorLink } from './actor_link.js';
import { disclosure } from './copy_text.js';
import { h, replace } from './dom.js';
import { duration } from './format.js';
import { removeOverride } from './override_dialogs.js';
import { ALL_RULES, pathOf, underRules } from './overrides.js';
import { pagedList } from './paged_list.js';
import { mayChange } from './session.js';

const TITLES = { block: 'Blocked actors', allow: 'Allowed actors' };

/**
 * Returns a list of blocks and one of allows, which load when they are opened.
 * @param {{rule?: string, fieldsOf: (rule: string) => string[]|null, session: object, signal: AbortSignal}} options `rule`: only
 *   those of one rule. `fieldsOf` returns the fields of the actors of a rule, if it is known.
 */
export function overrideLists(options) {
  return ['block', 'allow'].map((kind) =>
    disclosure(TITLES[kind], () => {
      const box = h('div', {});
      const show = () => replace(box, list(kind, options, show));
      show();
      return [box];
    }),
  );
}

function list(kind, options, onChange) {
  return pagedList({
    path: pathOf(kind),
    query: options.rule === undefined ? {} : { rule: options.rule },
    member: `${kind}s`,
    row: row(kind, options, onChange),
    signal: options.signal,
  });
}

function row(kind, { rule: only, fieldsOf, session }, onChange) {
  const changes = mayChange(session, 'block');
  const whose = only === undefined;
  return {
    columns: [
      ['', 'Actor'],
      ...(whose ? [['', 'Rule']] : []),
      ['number', 'Ends in'],
      ['', 'Reason'],
      ...(changes ? [['', h('span', { class: 'unseen' }, 'Actions')]] : []),
    ],
    none: `No actor is ${kind === 'block' ? 'blocked' : 'allowed'}${whose ? '' : ' under this rule alone'}.`,
    of: ({ rule, actor, expiresIn, reason, orphan }) =>
      h(
        'tr',
        {},
        h('td', {}, name(fieldsOf(rule), rule, actor)),
        whose &&
          h(
            'td',
            {},
            rule === ALL_RULES ? 'all rules' : rule,
            orphan && [' ', h('span', { class: 'chip' }, 'not in force')],
          ),
        h('td', { class: 'number' }, expiresIn === null ? 'never' : duration(expiresIn)),
        h('td', {}, reason === null ? '–' : h('bdi', {}, reason)),
        changes &&
          h(
            'td',
            { class: 'number' },
            h(
              'button',
              {
                type: 'button',
                class: 'small',
                onclick: () => removeOverride(kind, { rule, actor, shown: actor || 'everyone' }, onChange),
              },
              'Remove',
              h('span', { class: 'unseen' }, ` the ${kind} of ${actor || 'everyone'} ${underRules(rule)}`),
            ),
          ),
      ),
  };
}

/** Returns the name of an actor, which leads to its view if its fields are known. */
function name(fields, rule, actor) {
  return fields && rule !== ALL_RULES ? actorLink(fields, actor) : h('code', {}, actor);
}
