/** The frame around the views: navigation, session, state of the stream, notes about the server, and messages. */

import { h, replace, setText } from './dom.js';
import { count, duration, storeName } from './format.js';
import { link } from './route.js';

const byId = (id) => document.getElementById(id);

/** Shows a message for a few seconds, and to screen readers. */
export function notify(text, kind = 'ok') {
  const toast = byId('toast');
  clearTimeout(notify.timer);
  replace(toast, h('p', { class: `toast-text ${kind}` }, text));
  notify.timer = setTimeout(() => toast.replaceChildren(), 8000);
}

export class Frame {
  #links = new Map();
  #stream = h('span', { class: 'stream', role: 'status' });
  #health = h('span', { class: 'health-mark' });
  #countdown = null;
  #session = null;

  constructor() {
    byId('skip').addEventListener('click', (event) => {
      event.preventDefault();
      byId('main').focus();
    });
  }

  showSession(session, views, onLogout) {
    this.#session = session;
    const nav = byId('nav');
    nav.hidden = session.login;
    this.#links.clear();
    for (const { name, title } of views)
      this.#links.set(name, h('a', { href: link(name), id: `nav-${name}`, 'data-title': title }, title));
    replace(
      nav,
      h(
        'ul',
        {},
        [...this.#links.values()].map((element) => h('li', {}, element)),
      ),
    );
    this.#stream.replaceChildren();
    this.#health.replaceChildren();
    replace(byId('session'), session.login ? null : [this.#stream, this.#account(session, onLogout)]);
    replace(byId('notes'), notes(session));
    const { version, store } = session.server;
    replace(byId('foot'), session.login ? null : `divvy ${version}, counters in ${storeName(store)}`);
  }

  #account({ user, readOnly }, onLogout) {
    const mark = readOnly ? h('span', { class: 'chip', id: 'read-only' }, 'Read-only') : null;
    if (!user) return mark;
    return [
      mark,
      h('span', { class: 'user', id: 'user' }, user),
      h('button', { type: 'button', class: 'quiet', id: 'logout', onclick: onLogout }, 'Log out'),
    ];
  }

  showView(name, title) {
    for (const [other, element] of this.#links) {
      if (other !== name) element.removeAttribute('aria-current');
      else element.setAttribute('aria-current', 'page');
    }
    // On a narrow screen, the links scroll.
    this.#links.get(name)?.scrollIntoView({ block: 'nearest', inline: 'center' });
    document.title = `${title} · divvy`;
  }

  /** Says whether figures are live. Changes are announced, a countdown is not. */
  showStream(state, retry) {
    clearInterval(this.#countdown);
    const kind = { live: 'live', connecting: 'wait', waiting: 'down', paused: 'wait' }[state.phase];
    const word = { live: 'Live', connecting: 'Connecting', waiting: 'Not live', paused: 'Paused' }[state.phase];
    if (this.#stream.dataset.kind !== kind || this.#stream.textContent !== word) {
      this.#stream.dataset.kind = kind;
      replace(this.#stream, h('span', { class: 'dot', 'aria-hidden': 'true' }), word);
    }
    const old = byId('stream-note');
    if (state.phase === 'live' || state.phase === 'paused') old?.remove();
    if (state.phase !== 'waiting') return;
    const left = h('span', { 'aria-hidden': 'true' });
    const tick = () => setText(left, ` Next attempt in ${duration(Math.max(1, (state.until - Date.now()) / 1000))}.`);
    tick();
    this.#countdown = setInterval(tick, 1000);
    const note = h(
      'p',
      { class: 'note bad', id: 'stream-note' },
      `The figures on this page are not live. ${state.reason}`,
      left,
      ' ',
      h('button', { type: 'button', class: 'small', onclick: retry }, 'Try now'),
    );
    if (old) old.replaceWith(note);
    else byId('notes').append(note);
  }

  receive(name, data) {
    if (name === 'health')
      this.#mark('health', data.ready ? data.problems.length : Math.max(1, data.problems.length), 'problem');
    if (name === 'reloads') this.#mark('reloads', data[0] && !data[0].ok ? 1 : 0, 'failed reload');
  }

  /** Marks a view that has something to look at. */
  #mark(view, problems, noun) {
    const element = this.#links.get(view);
    if (!element || Number(element.dataset.marks ?? 0) === problems) return;
    element.dataset.marks = problems;
    element.querySelector('.mark')?.remove();
    if (problems > 0) {
      element.append(
        h(
          'span',
          { class: 'mark' },
          h('span', { 'aria-hidden': 'true' }, problems),
          h('span', { class: 'unseen' }, `, ${count(problems, noun)}`),
        ),
      );
    }
  }

  /** Says that the page could not start. */
  showFailure(error, retry) {
    byId('nav').hidden = true;
    replace(
      byId('main'),
      h(
        'div',
        { class: 'card narrow' },
        h('h1', {}, 'This page is not available'),
        h('p', {}, error.message),
        h('button', { type: 'button', class: 'primary', onclick: retry }, 'Try again'),
      ),
    );
  }
}

function notes(session) {
  if (session.login) return null;
  const open = session.readOnly && !session.user;
  return [
    open &&
      h(
        'p',
        { class: 'note' },
        'Read-only: this server has neither users nor a password, so this page changes nothing. ',
        'With a password or an access file, those who may can also change limits here.',
      ),
    session.server.shared &&
      h(
        'p',
        { class: 'note', id: 'shared' },
        'Several servers share the counters in Redis. Hits, denials, ',
        'reloads, health and top actors on this page are of this server only. Counters and limits are those of all servers.',
      ),
  ];
}
