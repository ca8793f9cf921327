/** Parts that several views share: heads, forms, tables, lists, charts, dialogs, and questions asked repeatedly. */

import * as api from './api.js';
import { go, link, number } from './format.js';
import { html, useEffect, useLayoutEffect, useRef, useState } from './preact_htm.js';
import { actorQuery } from './rule_text.js';

/** Rows that a list loads at a time. */
const PAGE = 20;
/** Seconds that a chart shows. */
const SECONDS = 60;
/** Time that a message stays (ms). */
const MESSAGE_TIME = 8000;

/** The title of a view, and what the view shows. */
export function ViewHead({ title, lead }) {
  return html`<div class="head"><h1>${title}</h1><p class="lead">${lead}</p></div>`;
}

/** A field of a form, with its label. */
export function Field({ id, label, children }) {
  return html`<div class="field"><label for=${id}>${label}</label>${children}</div>`;
}

/** Returns a reference to a field whose text is `text` again whenever that changes, and the user's in between. */
export function useFieldText(text) {
  const field = useRef();
  useLayoutEffect(() => {
    if (field.current.value !== text) field.current.value = text;
  }, [text]);
  return field;
}

/** The form of a view that answers a question typed as one line. The question is a parameter of the view's address. */
export function QuestionForm({ id, label, placeholder, button, question, addressOf, again }) {
  const field = useFieldText(question);
  useLayoutEffect(() => question === '' && field.current.focus({ preventScroll: true }), [question]);
  const submit = (event) => {
    event.preventDefault();
    const text = field.current.value.trim();
    if (text === question) again();
    else go(addressOf(text));
  };
  return html`
    <form class="ask" onsubmit=${submit}>
      <label for=${id}>${label}</label>
      <input id=${id} ref=${field} class="code" placeholder=${placeholder} required autocomplete="off"
        autocapitalize="none" spellcheck=${false} />
      <button class="primary">${button}</button>
    </form>
  `;
}

/**
 * The name of an actor, which leads to the view of the actor.
 * @param {{fields: string[], name: string}} props `fields`: the rule's `actorField`
 */
export function ActorLink({ fields, name }) {
  if (fields.length === 0) return html`<span>everyone</span>`;
  const address = link('actor', { q: actorQuery(fields, name) });
  return html`<a href=${address} class="actor-name" title=${name}>${name === '' ? '(empty)' : name}</a>`;
}

/** The name of a rule, which leads to its panel. */
export function RuleLink({ name }) {
  return html`<a class="name" href=${link('rules', { rule: name })}>${name}</a>`;
}

/** A small button. Screen readers also read the `unseen` part of its name. */
export function Button({ children, unseen, ...attributes }) {
  const rest = unseen && html`<span class="unseen"> ${unseen}</span>`;
  return html`<button type="button" class="small" ...${attributes}>${children}${rest}</button>`;
}

/**
 * A table of the kind `plain`, `cards` or `rules`, whose rows become cards on narrow screens. Roles are given, because
 * such a layout would hide them from screen readers.
 * @param {object} props
 * @param {Array<[string, string, (row: any, at: number) => any]|false>} props.columns the title, the class and the
 *   content of each column. The title of a column of the class `actions` is only for screen readers.
 * @param {(row: any) => object} [props.attributes] returns the attributes of a row
 */
export function Table({ kind = 'plain', columns: all, rows, attributes = () => ({}), ...others }) {
  const columns = all.filter(Boolean);
  const heading = ([title, name]) => {
    const text = name === 'actions' ? html`<span class="unseen">${title}</span>` : title;
    return html`<th scope="col" role="columnheader" class=${name}>${text}</th>`;
  };
  // On narrow screens, the title of its column is next to a cell.
  const cell = (row, at) => ([title, name, content]) => html`
    <td role="cell" class=${name} data-title=${title}><div>${content(row, at)}</div></td>
  `;
  const row = (each, at) => html`<tr role="row" ...${attributes(each)}>${columns.map(cell(each, at))}</tr>`;
  return html`
    <table class=${kind} role="table" ...${others}>
      <thead role="rowgroup">
        <tr role="row" aria-rowindex=${others['aria-rowcount'] && 1}>${columns.map(heading)}</tr>
      </thead>
      <tbody role="rowgroup">${rows.map(row)}</tbody>
    </table>
  `;
}

/** The column with the actors of a rule. */
export function actorColumn(fields) {
  return ['Actor', '', ({ actor }) => html`<${ActorLink} fields=${fields} name=${actor} />`];
}

/** What is left in a cell: a number, and a bar. */
export function Left({ balance, whole, isEmpty = balance <= 0 }) {
  return html`
    <b class=${isEmpty ? 'some' : ''}>${number(balance)}</b>${` / ${number(whole)}`}
    <${Meter} part=${balance} whole=${whole} />
  `;
}

export const OWN_LIMIT = html`<span class="chip own">own limit</span>`;

/** A heading that opens a part of a panel. `children` makes the part when it is opened for the first time. */
export function Disclosure({ title, open = false, children }) {
  const [wasOpened, setWasOpened] = useState(open);
  return html`
    <details open=${open} ontoggle=${(event) => event.target.open && setWasOpened(true)}>
      <summary>${title}</summary><div class="disclosed">${wasOpened && children()}</div>
    </details>
  `;
}

/** A text to copy, such as a rule. */
export function CopyText({ text, label }) {
  const element = useRef();
  const copy = async () => {
    getSelection().selectAllChildren(element.current);
    try {
      await navigator.clipboard.writeText(text);
      notify('Copied.');
    } catch {
      // Browsers offer the clipboard only over TLS and on this machine.
      notify(document.execCommand('copy') ? 'Copied.' : 'The text is selected: copy it with the keyboard.');
    }
  };
  return html`
    <div class="copy-box">
      <pre class="copy" tabindex="0" aria-label=${label} ref=${element}>${text}</pre>
      <button type="button" class="small copy-button" onclick=${copy}>Copy</button>
    </div>
  `;
}

/**
 * A list of the API that grows by a page at a time.
 * @param {object} props
 * @param {string} props.member the name of the list in the path and in the reply
 * @param {Record<string, string>} props.query which entries
 * @param {Array} props.columns as in [Table]
 * @param {string} props.none the text for an empty list
 */
export function PagedList({ member, query, columns, none }) {
  const [{ entries, note, next, isLoading }, setList] = useState({ entries: [], note: 'Loading…' });
  const abort = useRef();
  const load = async (cursor) => {
    setList((before) => ({ ...before, isLoading: true }));
    try {
      const asked = { ...query, count: PAGE, ...(cursor ? { cursor } : {}) };
      const page = await api.get(`/v1/${member}`, asked, abort.current.signal);
      setList((before) => {
        const all = [...before.entries, ...page[member]];
        const empty = page.next ? 'None on this page.' : none;
        return { entries: all, note: all.length > 0 ? null : empty, next: page.next };
      });
    } catch (error) {
      if (error.name !== 'AbortError') setList((before) => ({ ...before, isLoading: false, note: error.message }));
    }
  };
  useEffect(() => {
    abort.current = new AbortController();
    load();
    return () => abort.current.abort();
  }, []);
  return html`
    <div>
      ${entries.length > 0 && html`<${Table} columns=${columns} rows=${entries} />`}
      ${note && html`<p class="hint">${note}</p>`}
      ${next && html`<${Button} disabled=${isLoading} onclick=${() => load(next)}>More<//>`}
    </div>
  `;
}

export function sum(series) {
  return series.reduce((all, value) => all + value, 0);
}

/**
 * Draws an area for hits and bars for denials, on one scale. Without a label, the words around the chart say the same.
 * @param {{area?: number[], bars?: number[], canary?: boolean, height?: number, label?: string}} props
 */
export function Spark({ area = [], bars = [], canary = false, height = 20, label }) {
  const top = Math.max(1, ...area, ...bars);
  const y = (value) => Math.round((height - (value / top) * (height - 1.5) - 0.5) * 100) / 100;
  const points = area.map((value, at) => `${SECONDS - area.length + at + 0.5} ${y(value)}`).join('L');
  const [first, last] = [SECONDS - area.length + 0.5, SECONDS - 0.5];
  const bar = (value, at) =>
    value > 0 ? `M${SECONDS - bars.length + at + 0.1} ${height}V${y(value)}h.8V${height}Z` : '';
  const names = label ? { role: 'img', 'aria-label': label } : { 'aria-hidden': 'true' };
  return html`
    <svg class="spark" viewBox="0 0 ${SECONDS} ${height}" preserveAspectRatio="none" ...${names}>
      <path class="spark-hits" d=${points && `M${first} ${height}L${points}L${last} ${height}Z`} />
      <path class="spark-line" d=${points && `M${points}`} />
      <path class=${canary ? 'spark-canary' : 'spark-denied'} d=${bars.map(bar).join('')} />
    </svg>
  `;
}

/**
 * A bar that shows a share.
 * @param {object} props
 * @param {string} [props.state] `ok`, `warning` or `bad`. Without one, the bar shows what is left, and is bad when empty.
 */
export function Meter({ part, whole, state }) {
  const share = whole > 0 ? Math.max(0, Math.min(1, part / whole)) : 0;
  const left = share === 0 ? 'bad' : share < 0.1 ? 'warning' : 'ok';
  return html`
    <svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
      <rect class="meter-back" width="100" height="6" />
      <rect class="meter-fill ${state ?? left}" width=${Math.round(share * 1000) / 10} height="6" />
    </svg>
  `;
}

let show = () => {};
let messageTimer;

/** The place for a dialog and a message above the page. It is on the page once. */
export function Floating() {
  const [{ dialog, message }, setShown] = useState({});
  show = (change) => setShown((before) => ({ ...before, ...change }));
  return html`
    ${dialog}
    <div class="toast" id="toast" role="status">${message && html`<p class="toast-text">${message}</p>`}</div>
  `;
}

/** Shows a message for a few seconds, and to screen readers. */
function notify(message) {
  clearTimeout(messageTimer);
  show({ message });
  messageTimer = setTimeout(() => show({ message: null }), MESSAGE_TIME);
}

/** Opens a [Dialog]. */
export function open(dialog) {
  show({ dialog });
}

/**
 * A dialog that asks before anything changes. It closes once its request has succeeded, and shows an error of it.
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.action the text of the button that acts
 * @param {boolean} [props.danger] whether something is lost
 * @param {string} [props.field] id of the field that has the focus at the start
 * @param {(form: HTMLFormElement) => Array} props.request returns the arguments of `api.send`
 * @param {(reply: object, query: object) => string} props.done returns the message about what was done
 * @param {() => void} props.onDone
 */
export function Dialog({ title, action, danger = false, field, request, done, onDone, children }) {
  const [{ error, isBusy }, setState] = useState({ error: '', isBusy: false });
  const [dialog, cancel] = [useRef(), useRef()];
  useLayoutEffect(() => {
    dialog.current.showModal();
    const start = field && document.getElementById(field);
    start?.focus();
    // A number is replaced by typing another one.
    if (start?.type === 'number') start.select();
    // Nothing is destroyed by a careless press of Enter.
    if (danger) cancel.current.focus();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setState({ error: '', isBusy: true });
    try {
      const [method, path, options] = request(event.target);
      notify(done(await api.send(method, path, options), options.query));
      onDone();
      dialog.current.close();
    } catch (problem) {
      setState({ error: problem.message, isBusy: false });
    }
  };
  return html`
    <dialog aria-labelledby="dialog-title" ref=${dialog} onclose=${() => show({ dialog: null })}>
      <form method="dialog" onsubmit=${submit}>
        <h2 id="dialog-title">${title}</h2>
        ${children}
        <p class="error" role="alert">${error}</p>
        <div class="buttons">
          <button type="button" ref=${cancel} onclick=${() => dialog.current.close()}>Cancel</button>
          <button class=${danger ? 'danger' : 'primary'} value="act" disabled=${isBusy}>${action}</button>
        </div>
      </form>
    </dialog>
  `;
}

/**
 * Asks a question at once, and again after each pause, unless nobody looks at the page or a dialog is open. The answer
 * does not change while text of it is selected.
 * @param {object} options
 * @param {string} options.question what is asked; the empty text asks nothing
 * @param {(signal: AbortSignal) => Promise<any>} options.ask
 * @param {number} options.pause (ms)
 * @param {string} options.area selector of the elements that show the answer
 * @param {any} [options.version] asks again when this changes
 * @returns {[{question?: string, answer?: any, error?: Error}, () => void]} the last answer with its question, which
 *   may be an older one, and a function that asks again at once
 */
export function usePolling({ question, ask, pause, area, version }) {
  const [state, setState] = useState({});
  const current = useRef({ again() {} }).current;
  current.ask = ask;
  useEffect(() => {
    let [abort, timer] = [null, null];
    const wait = () => {
      timer = setTimeout(() => (document.hidden || document.querySelector('dialog') ? wait() : load()), pause);
    };
    const stop = () => {
      clearTimeout(timer);
      abort?.abort();
    };
    async function load() {
      stop();
      const { signal } = (abort = new AbortController());
      try {
        const answer = await current.ask(signal);
        if (!signal.aborted) setState((before) => (isSelected(area) ? before : { question, answer }));
      } catch (error) {
        if (signal.aborted) return;
        setState((before) => (before.question === question ? { ...before, error } : { question, error }));
        // A question that the server refuses is refused again, until a rule or the rights change.
        if (![0, 404, 429].includes(error.status) && !(error.status >= 500)) return;
      }
      if (!signal.aborted) wait();
    }
    current.again = load;
    if (question) load();
    else setState({});
    return () => {
      stop();
      // A dialog may outlive the view that opened it.
      current.again = () => {};
    };
  }, [question, version]);
  return [state, () => current.again()];
}

function isSelected(area) {
  const selection = getSelection();
  return !selection.isCollapsed && Boolean(selection.anchorNode?.parentElement?.closest(area));
}
