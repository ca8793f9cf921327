/** Starts the page: session, views and the live stream. */

import { configure } from './api.js';
import { replace, h } from './dom.js';
import { Feed } from './feed.js';
import { Frame } from './frame.js';
import * as policy from './policy.js';
import { parse } from './route.js';
import * as session from './session.js';
import { mount as mountActor } from './actor_view.js';
import { mount as mountExplain } from './explain_view.js';
import { mount as mountHealth } from './health_view.js';
import { mount as mountLogin } from './login_view.js';
import { mount as mountReloads } from './reloads_view.js';
import { mount as mountRules } from './rules_view.js';
import { mount as mountTop } from './top_view.js';

/** Views in the order of the navigation, and the category of requests that each needs. */
const VIEWS = [
  { name: 'rules', title: 'Rules', needs: 'read', mount: mountRules },
  { name: 'explain', title: 'Explain', needs: 'read', mount: mountExplain },
  { name: 'actor', title: 'Actor', needs: 'status', mount: mountActor },
  { name: 'top', title: 'Top actors', needs: 'read', mount: mountTop },
  { name: 'reloads', title: 'Reloads', needs: 'read', mount: mountReloads },
  { name: 'health', title: 'Health', needs: 'metrics', mount: mountHealth },
];

/** Returns the views that a user may see, and that this server has. */
function viewsOf(state) {
  const has = (view) => view.name !== 'top' || state.server.top;
  return VIEWS.filter((view) => session.may(state, view.needs) && has(view));
}

/** What the views share. Events of the stream are kept, so that a view shows the last one at once. */
class App {
  session = null;
  /** Name of the rules file: its ending says in which syntax changes are written. */
  rulesFile = null;
  /** Whether the last session has ended without a logout. */
  hasLostSession = false;
  latest = {};
  #current = null;
  #frame = new Frame();
  #feed = new Feed(
    (name, data) => this.#receive(name, data),
    (state) => this.#frame.showStream(state, () => this.#feed.retry()),
  );

  async start() {
    configure({ onLogout: () => this.#end() });
    window.addEventListener('hashchange', () => this.#route(true));
    try {
      this.#enter(await session.load());
    } catch (error) {
      this.#frame.showFailure(error, () => location.reload());
    }
  }

  /** Asks the stream for rules. One rule is enough for the views that show none: it names the rules file. */
  watch(query) {
    if (session.may(this.session, 'read')) this.#feed.watch({ first: 0, count: 1, ...query });
  }

  #enter(state) {
    this.session = state;
    this.latest = {};
    this.#current?.view.close?.();
    this.#current = null;
    policy.forget();
    this.#frame.showSession(state, viewsOf(state), () => this.#logout());
    this.#route(false);
  }

  #route(isMove) {
    if (!this.session) return;
    if (this.session.login) {
      this.#show('login', { title: 'Log in', mount: mountLogin }, new URLSearchParams());
      return;
    }
    const { view: name, params } = parse(location.hash);
    const allowed = viewsOf(this.session);
    const view = allowed.find((candidate) => candidate.name === name) ?? allowed[0];
    if (view) this.#show(view.name, view, params, isMove);
    else
      replace(
        document.getElementById('main'),
        h('p', { class: 'note' }, 'This user may not see anything on this page: it needs the category read.'),
      );
  }

  #show(name, view, params, isMove = false) {
    const main = document.getElementById('main');
    if (this.#current?.name !== name) {
      this.#current?.view.close?.();
      main.replaceChildren();
      this.#current = { name, view: view.mount(main, this, params) };
      this.#frame.showView(name, view.title);
      if (isMove) main.focus({ preventScroll: true });
      if (isMove) window.scrollTo(0, 0);
      for (const [event, data] of Object.entries(this.latest)) this.#current.view.receive?.(event, data);
    }
    this.#current.view.update?.(params);
    this.watch(this.#current.view.query?.() ?? {});
  }

  #receive(name, data) {
    if (name === 'end') {
      this.#end();
      return;
    }
    if (name === 'reloads' && this.latest.reloads) policy.forget();
    if (name === 'rules') this.rulesFile = data.rules[0]?.file ?? this.rulesFile;
    else this.latest[name] = data;
    this.#frame.receive(name, data);
    this.#current?.view.receive?.(name, data);
  }

  /** Shows the form again, after the session has ended. */
  async #end(isLogout = false) {
    this.hasLostSession = !isLogout;
    this.#feed.watch(null);
    try {
      const state = await session.load();
      // The stream was refused, but the session is valid: a pause keeps a fault of the server from becoming a flood.
      if (!state.login) await new Promise((resolve) => setTimeout(resolve, 2000));
      this.#enter(state);
    } catch (error) {
      this.#frame.showFailure(error, () => location.reload());
    }
  }

  async #logout() {
    try {
      await session.logout();
    } finally {
      await this.#end(true);
    }
  }

  /** Takes a new session from the form. */
  entered(state) {
    this.#enter(state);
  }
}

new App().start();
