/** Reloads of the rules file, with what changed. */

import { h, replace } from './dom.js';
import { duration, time } from './format.js';
import { viewHead } from './view_head.js';

export function mount(host) {
  const list = h('div', { class: 'reloads', id: 'reloads' }, h('p', { class: 'hint' }, 'Loading…'));
  host.append(
    viewHead('Reloads', 'The last 20 loads of the rules file since the server started, newest first.'),
    list,
  );
  let seconds = 0;
  let isShown = false;

  function receive(name, data) {
    if (name === 'reloads') {
      isShown = true;
      const none = h('p', { class: 'hint' }, 'The rules have not changed since the server started.');
      replace(list, data.length > 0 ? data.map(reload) : none);
    }
    // The server sends reloads only to users who may see all of them.
    seconds += name === 'rules' ? 1 : 0;
    if (!isShown && seconds === 2)
      replace(list, h('p', { class: 'hint' }, 'Only users with all rules in their scope see reloads.'));
  }

  return { receive };
}

function reload({ time: at, ok, lines }) {
  const iso = new Date(at * 1000).toISOString();
  return h(
    'section',
    { class: 'card reload' },
    h(
      'div',
      { class: 'reload-head' },
      h('h2', {}, h('time', { datetime: iso }, time(at))),
      h('span', { class: `pill ${ok ? 'ok' : 'bad'}` }, ok ? 'In force' : 'Refused'),
      h('span', { class: 'more' }, `${duration(Math.max(0, Date.now() / 1000 - at))} ago`),
    ),
    !ok && h('p', {}, 'The previous rules stay in force.'),
    h('ul', { class: 'diff' }, lines.map(line)),
  );
}

function line(text) {
  const [sign, kind] = text.startsWith('+')
    ? ['+', 'added']
    : text.startsWith('-')
      ? ['−', 'removed']
      : text.startsWith('problem')
        ? ['!', 'problem']
        : ['·', 'changed'];
  return h(
    'li',
    { class: kind },
    h('span', { class: 'sign', 'aria-hidden': 'true' }, sign),
    h('code', {}, text.replace(/^([+-]|problem:?) /, '')),
  );
}
