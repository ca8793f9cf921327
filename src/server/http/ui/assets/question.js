/** The form of a view that answers a question typed as one line. */

import { h } from './dom.js';

/** Returns a form with one field, and the field. */
export function questionForm({ id, label, placeholder, button, onsubmit }) {
  const input = h('input', {
    id,
    class: 'code',
    autocomplete: 'off',
    autocapitalize: 'none',
    spellcheck: 'false',
    placeholder,
    required: true,
  });
  const form = h(
    'form',
    { class: 'ask', onsubmit },
    h('label', { for: id }, label),
    input,
    h('button', { class: 'primary' }, button),
  );
  return { form, input };
}
