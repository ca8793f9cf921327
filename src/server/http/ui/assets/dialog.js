/** Dialogs that ask before anything changes. */

import { h, setText } from './dom.js';

let dialogs = 0;

/**
 * Opens a dialog, and closes it once `act` has succeeded. An error of `act` is shown in the dialog.
 * @param {{title: string, content: Array, action: string, danger?: boolean, act: (form: HTMLFormElement) => Promise<void>}} options
 */
export function ask({ title, content, action, danger = false, act }) {
  dialogs += 1;
  const id = `dialog-${dialogs}`;
  const error = h('p', { class: 'error', role: 'alert' });
  const submit = h('button', { class: danger ? 'danger' : 'primary', value: 'act' }, action);
  const cancel = h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel');
  const form = h(
    'form',
    { method: 'dialog', onsubmit: onSubmit },
    h('h2', { id }, title),
    content,
    error,
    h('div', { class: 'buttons' }, cancel, submit),
  );
  const dialog = h('dialog', { 'aria-labelledby': id, onclose: () => dialog.remove() }, form);

  async function onSubmit(event) {
    event.preventDefault();
    submit.disabled = true;
    setText(error, '');
    try {
      await act(form);
      dialog.close();
    } catch (problem) {
      setText(error, problem.message);
    } finally {
      submit.disabled = false;
    }
  }

  document.body.append(dialog);
  dialog.showModal();
  // Nothing is destroyed by a careless press of Enter.
  if (danger) cancel.focus();
}
