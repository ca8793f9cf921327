/** What floats above the page: dialogs that ask before anything changes, and messages. */

import { html, useLayoutEffect, useRef, useState } from './preact_htm.js';

/** Time that a message stays (ms). */
const MESSAGE_TIME = 8000;

let show = () => {};
let timer;

/** The place for a dialog and a message. It is on the page once. */
export function Floating() {
  const [{ dialog, message }, setShown] = useState({});
  show = (change) => setShown((before) => ({ ...before, ...change }));
  return html`
    ${dialog}
    <div class="toast" id="toast" role="status">${message && html`<p class="toast-text">${message}</p>`}</div>
  `;
}

/** Shows a message for a few seconds, and to screen readers. */
export function notify(message) {
  clearTimeout(timer);
  show({ message });
  timer = setTimeout(() => show({ message: null }), MESSAGE_TIME);
}

/** Opens a [Dialog]. */
export function open(dialog) {
  show({ dialog });
}

/**
 * A dialog, which closes once `act` has succeeded. It shows an error of `act`.
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.action the text of the button that acts
 * @param {boolean} [props.danger] whether something is lost
 * @param {string} [props.field] id of the field that has the focus at the start
 * @param {(form: HTMLFormElement) => Promise<void>} props.act
 */
export function Dialog({ title, action, danger = false, field, act, children }) {
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
      await act(event.target);
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

/** A field of a form, with its label. */
export function Field({ id, label, children }) {
  return html`<div class="field"><label for=${id}>${label}</label>${children}</div>`;
}
