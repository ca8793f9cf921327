/** The frame around the views: navigation, session, state of the stream, and notes about the server. The login form. */

import { login } from './api.js';
import { count, duration, link, storeName } from './format.js';
import { html, useEffect, useLayoutEffect, useRef, useState } from './preact_htm.js';
import { Field, Floating } from './widgets.js';

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

/**
 * @param {object} props
 * @param {import('./api.js').Session|null} props.session null if the page could not start
 * @param {Array<{name: string, title: string}>} props.views those that the user may see
 * @param {string} props.current the name of the view in use
 * @param {import('./feed.js').FeedState|null} props.stream
 * @param {import('./feed.js').FeedState|null} props.interruption why figures are not live
 */
export function Frame({ session, views, current, events, stream, interruption, onRetry, onLogout, children }) {
  const main = useRef();
  const isInside = session && !session.login;
  const item = (view) => html`<li><${ViewLink} ...${view} current=${current} events=${events} /></li>`;
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  return html`
    <a class="skip" id="skip" href="#main" onclick=${skip}>Skip to the content</a>
    <header class="top">
      <div class="bar">
        <a class="brand" href="#/rules"><img src="icon.svg" alt="" width="24" height="24" /><span>divvy</span></a>
        <nav id="nav" aria-label="Views" hidden=${!isInside}>
          <ul>${views.map(item)}</ul>
        </nav>
        <div class="session" id="session">
          ${isInside && html`<${Status} stream=${stream} onLogout=${onLogout} ...${session} />`}
        </div>
      </div>
    </header>
    <div class="notes" id="notes">
      ${isInside && session.readOnly && !session.user && html`<p class="note">${READ_ONLY}</p>`}
      ${isInside && session.server.shared && html`<p class="note" id="shared">${SHARED}</p>`}
      ${interruption && html`<${Interruption} ...${interruption} onRetry=${onRetry} />`}
    </div>
    <main id="main" tabindex="-1" ref=${main}>${children}</main>
    <footer class="foot" id="foot">
      ${isInside && `divvy ${session.server.version}, counters in ${storeName(session.server.store)}`}
    </footer>
    <${Floating} />
  `;
}

/** A link to a view, marked if the view has something to look at. */
function ViewLink({ name, title, current, events }) {
  const element = useRef();
  const isCurrent = name === current;
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
export function Failure({ error }) {
  return html`
    <div class="card narrow">
      <h1>This page is not available</h1>
      <p>${error.message}</p>
      <button type="button" class="primary" onclick=${() => location.reload()}>Try again</button>
    </div>
  `;
}

export function Login({ app }) {
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
