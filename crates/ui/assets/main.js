/** The page: session, navigation, views, the live stream and notes about the server. The login form. */

import { Actor } from './actor.js';
import { forgetRules, loadSession, login, may, send, whenLoggedOut } from './api.js';
import { Explain } from './explain.js';
import { Feed } from './feed.js';
import { count, duration, link, parseAddress, storeName } from './format.js';
import { Component, html, render, useEffect, useLayoutEffect, useRef, useState } from './preact_htm.js';
import { Rules } from './rules.js';
import { Health, Reloads } from './health.js';
import { Top } from './top.js';
import { Field, Floating } from './widgets.js';

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

const PHASES = { live: 'Live', connecting: 'Connecting', waiting: 'Not live', paused: 'Paused' };
const LOST_SESSION =
  'Your session has ended. It was unused for too long, the server was restarted, the password was changed, ' +
  'or the same user has logged in too many times since.';
const READ_ONLY =
  'Read-only: this server has neither users nor a password, so this page changes nothing. With a password or an ' +
  'access file, those who may can also change limits here.';
const SHARED =
  'Several servers share the counters in Redis. Hits, denials, reloads, health and top actors on this page are of ' +
  'this server only. Counters and limits are those of all servers.';

/** The page. After each change it is drawn again as a whole: preact changes only the elements that differ. */
class App extends Component {
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
  /** @type {import('./feed.js').FeedState|null} */
  #stream = null;
  /** Why figures are not live. */
  #interruption = null;
  #failure = null;
  /** Number of sessions: each begins with new views. */
  #sessions = 0;
  #feed = new Feed(this);
  #main = { current: null };

  async componentDidMount() {
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

  receive(name, data) {
    if (name === 'end') {
      this.#end();
    } else if (name === 'rules') {
      this.rulesFile = data.rules[0]?.file ?? this.rulesFile;
      this.onRules?.(data);
    } else {
      if (name === 'reloads' && this.#events.reloads) forgetRules();
      this.#events = { ...this.#events, [name]: data };
      this.forceUpdate();
    }
  }

  showStream(state) {
    const isSame = state.phase === this.#stream?.phase && state.phase !== 'waiting';
    this.#stream = state;
    if (state.phase === 'waiting') this.#interruption = state;
    if (state.phase === 'live' || state.phase === 'paused') this.#interruption = null;
    if (!isSame) this.forceUpdate();
  }

  async #load() {
    try {
      const session = await loadSession();
      // The stream was refused, but the session is valid: a pause keeps a fault of the server from becoming a flood.
      if (this.session && !session.login) await new Promise((resolve) => setTimeout(resolve, 2000));
      this.enter(session);
    } catch (error) {
      this.#failure = error;
      this.forceUpdate();
    }
  }

  #route(isMove) {
    if (!this.session) return;
    const { view: name, params } = parseAddress(location.hash);
    const view = this.session.login ? LOGIN : (this.#views.find((each) => each.name === name) ?? this.#views[0]);
    const isOther = view && view !== this.#view;
    this.#view = view;
    this.#params = params;
    if (isOther) document.title = `${view.title} · divvy`;
    if (isOther && isMove) {
      this.#main.current.focus({ preventScroll: true });
      window.scrollTo(0, 0);
    }
    this.forceUpdate();
    if (view?.View !== Rules) this.watch({});
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

  render() {
    const { View = Nothing, name } = this.#view ?? {};
    const [events, stream, interruption] = [this.#events, this.#stream, this.#interruption];
    const session = !this.#failure && this.session && !this.session.login ? this.session : null;
    const item = (view) => html`<li><${ViewLink} ...${view} isCurrent=${view.name === name} events=${events} /></li>`;
    const skip = (event) => {
      event.preventDefault();
      this.#main.current.focus();
    };
    return html`
      <a class="skip" id="skip" href="#main" onclick=${skip}>Skip to the content</a>
      <header class="top">
        <div class="bar">
          <a class="brand" href="#/rules"><img src="icon.svg" alt="" width="24" height="24" /><span>divvy</span></a>
          <nav id="nav" aria-label="Views" hidden=${!session}>
            <ul>${this.#views.map(item)}</ul>
          </nav>
          <div class="session" id="session">
            ${session && html`<${Status} stream=${stream} onLogout=${() => this.#logout()} ...${session} />`}
          </div>
        </div>
      </header>
      <div class="notes" id="notes">
        ${session?.readOnly && !session.user && html`<p class="note">${READ_ONLY}</p>`}
        ${session?.server.shared && html`<p class="note" id="shared">${SHARED}</p>`}
        ${interruption && html`<${Interruption} ...${interruption} onRetry=${() => this.#feed.retry()} />`}
      </div>
      <main id="main" tabindex="-1" ref=${this.#main}>
        ${this.#failure && html`<${Failure} error=${this.#failure} />`}
        ${this.session && !this.#failure &&
        html`<${View} key=${`${name} ${this.#sessions}`} app=${this} events=${events} params=${this.#params} />`}
      </main>
      <footer class="foot" id="foot">
        ${session && `divvy ${session.server.version}, counters in ${storeName(session.server.store)}`}
      </footer>
      <${Floating} />
    `;
  }
}

/** A link to a view, marked if the view has something to look at. */
function ViewLink({ name, title, isCurrent, events }) {
  const element = useRef();
  // On a narrow screen, the links scroll.
  useLayoutEffect(() => {
    if (isCurrent) element.current.scrollIntoView({ block: 'nearest', inline: 'center' });
  }, [isCurrent]);
  const [problems, noun] = problemsOf(name, events);
  const mark = html`
    <span class="mark">
      <span aria-hidden="true">${problems}</span><span class="unseen">, ${count(problems, noun)}</span>
    </span>
  `;
  return html`
    <a href=${link(name)} id="nav-${name}" data-title=${title} aria-current=${isCurrent ? 'page' : null} ref=${element}>
      ${title}${problems > 0 && mark}
    </a>
  `;
}

function problemsOf(view, { health, reloads }) {
  if (view === 'health') return [health ? Math.max(health.ready ? 0 : 1, health.problems.length) : 0, 'problem'];
  return [view === 'reloads' && reloads?.[0]?.ok === false ? 1 : 0, 'failed reload'];
}

/** Says whether figures are live, and who is logged in. */
function Status({ stream, user, readOnly, onLogout }) {
  return html`
    <span class="stream" role="status" data-phase=${stream?.phase}>
      ${stream && html`<span class="dot" aria-hidden="true"></span>${PHASES[stream.phase]}`}
    </span>
    ${readOnly && html`<span class="chip" id="read-only">Read-only</span>`}
    ${user &&
    html`
      <span class="user" id="user">${user}</span>
      <button type="button" class="quiet" id="logout" onclick=${onLogout}>Log out</button>
    `}
  `;
}

/** Says why figures are not live. The countdown is not announced. */
function Interruption({ reason, until, onRetry }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const left = duration(Math.max(1, (until - Date.now()) / 1000));
  return html`
    <p class="note bad" id="stream-note">
      ${`The figures on this page are not live. ${reason}`}
      <span aria-hidden="true">${` Next attempt in ${left}. `}</span>
      <button type="button" class="small" onclick=${onRetry}>Try now</button>
    </p>
  `;
}

/** Says that the page could not start. */
function Failure({ error }) {
  return html`
    <div class="card narrow">
      <h1>This page is not available</h1>
      <p>${error.message}</p>
      <button type="button" class="primary" onclick=${() => location.reload()}>Try again</button>
    </div>
  `;
}

function Login({ app }) {
  const { passwordOnly } = app.session.server;
  const [{ error, isBusy }, setState] = useState({ error: '', isBusy: false });
  const form = useRef();
  useLayoutEffect(() => form.current.querySelector('input').focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    const { username, password } = form.current.elements;
    setState({ error: '', isBusy: true });
    try {
      app.enter(await login(passwordOnly ? null : username.value, password.value));
    } catch (problem) {
      const isWrong = problem.status === 401;
      const wrong = passwordOnly ? 'The password is wrong.' : 'The name or the password is wrong.';
      setState({ error: isWrong ? wrong : problem.message, isBusy: false });
      password.select();
    }
  };
  return html`
    <form class="card narrow login" ref=${form} onsubmit=${submit} aria-labelledby="login-title">
      <h1 id="login-title">Log in to divvy</h1>
      ${app.hasLostSession && html`<p class="note" id="login-note" role="status">${LOST_SESSION}</p>`}
      ${!passwordOnly &&
      html`
        <${Field} id="login-user" label="User">
          <input id="login-user" name="username" autocomplete="username" autocapitalize="none" spellcheck=${false}
            maxlength="128" required />
        <//>
      `}
      <${Field} id="login-password" label="Password">
        <input id="login-password" name="password" type="password" autocomplete="current-password" maxlength="512"
          required />
      <//>
      <p class="error" role="alert" id="login-error">${error}</p>
      <button class="primary" id="login-submit" disabled=${isBusy}>Log in</button>
    </form>
  `;
}

/** A user without rights sees no view. */
function Nothing() {
  return html`<p class="note">This user may not see anything on this page: it needs the category read.</p>`;
}

render(html`<${App} />`, document.body);
