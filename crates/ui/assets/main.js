/** Starts the page: session, views and the live stream. */

import { Actor } from './actor.js';
import { forgetRules, loadSession, may, send, whenLoggedOut } from './api.js';
import { Explain } from './explain.js';
import { Feed } from './feed.js';
import { parseAddress } from './format.js';
import { Failure, Frame, Login } from './frame.js';
import { html, render } from './preact_htm.js';
import { Rules } from './rules.js';
import { Health, Reloads } from './status.js';
import { Top } from './top.js';

/** Views in the order of the navigation, and the category of requests that each needs. */
const VIEWS = [
  { name: 'rules', title: 'Rules', needs: 'read', View: Rules },
  { name: 'explain', title: 'Explain', needs: 'read', View: Explain },
  { name: 'actor', title: 'Actor', needs: 'status', View: Actor },
  { name: 'top', title: 'Top actors', needs: 'read', View: Top },
  { name: 'reloads', title: 'Reloads', needs: 'read', View: Reloads },
  { name: 'health', title: 'Health', needs: 'metrics', View: Health },
];
const LOGIN = { name: 'login', title: 'Log in', View: Login };

/** A user without rights sees no view. */
function Nothing() {
  return html`<p class="note">This user may not see anything on this page: it needs the category read.</p>`;
}

/** The page. After each change it is drawn again as a whole: preact changes only the elements that differ. */
class App {
  /** @type {import('./api.js').Session|null} */
  session = null;
  /** Name of the rules file: its ending says in which syntax changes are written. */
  rulesFile = null;
  /** Whether the last session has ended without a logout. */
  hasLostSession = false;
  /** Takes the events about rules, while a view shows them. */
  onRules = null;
  /** Views that the user may see, and that this server has. */
  #views = [];
  #view = null;
  #params = new URLSearchParams();
  /** The last event of each other kind, so that a view shows it at once. */
  #events = {};
  #stream = null;
  #interruption = null;
  #failure = null;
  /** Number of sessions: each begins with new views. */
  #sessions = 0;
  #feed = new Feed(
    (name, data) => this.#receive(name, data),
    (state) => this.#showStream(state),
  );

  async start() {
    whenLoggedOut(() => this.#end());
    window.addEventListener('hashchange', () => this.#route(true));
    await this.#load();
  }

  /** Asks the stream for rules. One rule is enough for the views that show none: it names the rules file. */
  watch(query) {
    if (may('read')) this.#feed.watch({ first: 0, count: 1, ...query });
  }

  /** Begins a session. */
  enter(session) {
    const has = (view) => view.name !== 'top' || session.server.top;
    this.session = session;
    this.#views = VIEWS.filter((view) => may(view.needs) && has(view));
    this.#view = null;
    this.#events = {};
    this.#stream = null;
    this.#interruption = null;
    this.#sessions += 1;
    this.#route(false);
  }

  async #load() {
    try {
      const session = await loadSession();
      // The stream was refused, but the session is valid: a pause keeps a fault of the server from becoming a flood.
      if (this.session && !session.login) await new Promise((resolve) => setTimeout(resolve, 2000));
      this.enter(session);
    } catch (error) {
      this.#failure = error;
      this.#draw();
    }
  }

  #route(isMove) {
    if (!this.session) return;
    const { view: name, params } = parseAddress(location.hash);
    const view = this.session.login ? LOGIN : (this.#views.find((each) => each.name === name) ?? this.#views[0]);
    const isOther = view !== this.#view;
    this.#view = view;
    this.#params = params;
    if (view && isOther) document.title = `${view.title} · divvy`;
    if (view && isOther && isMove) {
      document.getElementById('main').focus({ preventScroll: true });
      window.scrollTo(0, 0);
    }
    this.#draw();
    if (view?.View !== Rules) this.watch({});
  }

  #receive(name, data) {
    if (name === 'end') {
      this.#end();
      return;
    }
    if (name === 'reloads' && this.#events.reloads) forgetRules();
    if (name === 'rules') {
      this.rulesFile = data.rules[0]?.file ?? this.rulesFile;
      this.onRules?.(data);
      return;
    }
    this.#events = { ...this.#events, [name]: data };
    this.#draw();
  }

  #showStream(state) {
    const isSame = state.phase === this.#stream?.phase && state.phase !== 'waiting';
    this.#stream = state;
    if (state.phase === 'waiting') this.#interruption = state;
    if (state.phase === 'live' || state.phase === 'paused') this.#interruption = null;
    if (!isSame) this.#draw();
  }

  /** Shows the form again, after the session has ended. */
  async #end(isLogout = false) {
    this.hasLostSession = !isLogout;
    this.#feed.watch(null);
    await this.#load();
  }

  async #logout() {
    try {
      await send('POST', '/ui/api/logout');
    } finally {
      await this.#end(true);
    }
  }

  #draw() {
    const { View = Nothing, name } = this.#view ?? {};
    const events = this.#events;
    const content = this.#failure
      ? html`<${Failure} error=${this.#failure} />`
      : html`<${View} key=${`${name} ${this.#sessions}`} app=${this} events=${events} params=${this.#params} />`;
    const page = html`
      <${Frame} session=${this.#failure ? null : this.session} views=${this.#views} current=${name} events=${events}
        stream=${this.#stream} interruption=${this.#interruption} onRetry=${() => this.#feed.retry()}
        onLogout=${() => this.#logout()}>
        ${content}
      <//>
    `;
    render(page, document.body);
  }
}

new App().start();
