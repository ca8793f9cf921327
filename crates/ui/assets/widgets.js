/** Parts that several views share: heads, forms, tables, texts to open or to copy, and questions asked repeatedly. */

import * as api from './api.js';
import { Meter } from './charts.js';
import { notify } from './dialogs.js';
import { go, link, number } from './format.js';
import { actorQuery } from './operation.js';
import { html, useEffect, useLayoutEffect, useRef, useState } from './preact_htm.js';

/** Rows that a list loads at a time. */
const PAGE = 20;

/** The title of a view, and what the view shows. */
export function ViewHead({ title, lead }) {
  return html`<div class="head"><h1>${title}</h1><p class="lead">${lead}</p></div>`;
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
 * The heads of the columns of a table.
 * @param {{columns: Record<string, string>}} props the class of each title. A title with the class `unseen` is only for
 *   screen readers.
 */
export function TableHead({ columns, ...attributes }) {
  const heading = ([title, name]) => {
    const isUnseen = name === 'unseen';
    const text = isUnseen ? html`<span class="unseen">${title}</span>` : title;
    return html`<th scope="col" role="columnheader" class=${isUnseen ? '' : name}>${text}</th>`;
  };
  return html`
    <thead role="rowgroup"><tr role="row" ...${attributes}>${Object.entries(columns).map(heading)}</tr></thead>
  `;
}

/**
 * A table of the kind `plain`, or `cards`, whose rows become cards on narrow screens. Roles are given, because such a
 * layout would hide them from screen readers.
 */
export function Table({ kind = 'plain', label, columns, children }) {
  return html`
    <table class=${kind} role="table" aria-label=${label}>
      <${TableHead} columns=${columns} />
      <tbody role="rowgroup">${children}</tbody>
    </table>
  `;
}

export function Card({ rule, denies, children }) {
  return html`<tr role="row" class=${denies ? 'denies' : null} data-rule=${rule}>${children}</tr>`;
}

/** A cell. On narrow screens, its column's title is next to it. */
export function Cell({ name = '', title = '', children }) {
  return html`<td role="cell" class=${name} data-title=${title}><div>${children}</div></td>`;
}

/** What is left in a cell: a number, and a bar. */
export function Left({ balance, whole, isEmpty = balance <= 0 }) {
  return html`
    <b class=${isEmpty ? 'some' : ''}>${number(balance)}</b>${` / ${number(whole)}`}
    <${Meter} part=${balance} whole=${whole} kind="left" />
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
  return html`
    <div class="copy-box">
      <pre class="copy" tabindex="0" aria-label=${label} ref=${element}>${text}</pre>
      <button type="button" class="small copy-button" onclick=${() => copy(element.current)}>Copy</button>
    </div>
  `;
}

async function copy(element) {
  getSelection().selectAllChildren(element);
  try {
    await navigator.clipboard.writeText(element.textContent);
    notify('Copied.');
  } catch {
    // Browsers offer the clipboard only over TLS and on this machine.
    notify(document.execCommand('copy') ? 'Copied.' : 'The text is selected: copy it with the keyboard.');
  }
}

/**
 * A list that grows by a page at a time.
 * @param {object} props
 * @param {string} props.path where the API lists the entries
 * @param {Record<string, string>} props.query which ones
 * @param {string} props.member the name of the list in the reply
 * @param {Record<string, string>} props.columns as in [TableHead]
 * @param {string} props.none the text for an empty list
 * @param {(entry: object) => any} props.children the row of an entry
 */
export function PagedList({ path, query, member, columns, none, children: row }) {
  const [{ entries, note, next, isLoading }, setList] = useState({ entries: [], note: 'Loading…' });
  const abort = useRef();
  const load = async (cursor) => {
    setList((before) => ({ ...before, isLoading: true }));
    try {
      const asked = { ...query, count: PAGE, ...(cursor ? { cursor } : {}) };
      const page = await api.get(path, asked, abort.current.signal);
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
      ${entries.length > 0 && html`<${Table} columns=${columns}>${entries.map(row)}<//>`}
      ${note && html`<p class="hint">${note}</p>`}
      ${next && html`<${Button} disabled=${isLoading} onclick=${() => load(next)}>More<//>`}
    </div>
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
