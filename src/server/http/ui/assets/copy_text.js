/** A text to copy, such as a rule. */

import { h, replace } from './dom.js';
import { notify } from './frame.js';

export function copyText(text, label) {
  const pre = h('pre', { class: 'copy', tabindex: 0, 'aria-label': label }, text);
  return h(
    'div',
    { class: 'copy-box' },
    pre,
    h('button', { type: 'button', class: 'small copy-button', onclick: () => copy(pre) }, 'Copy'),
  );
}

/** A heading that opens a part of a panel. The content is made when it is opened. */
export function disclosure(title, content, { open = false } = {}) {
  const body = h('div', { class: 'disclosed' });
  const element = h('details', {}, h('summary', {}, title), body);
  element.addEventListener('toggle', () => {
    if (element.open && !body.firstChild) replace(body, content());
  });
  element.open = open;
  return element;
}

async function copy(pre) {
  const range = document.createRange();
  range.selectNodeContents(pre);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  try {
    await navigator.clipboard.writeText(pre.textContent);
    notify('Copied.');
  } catch {
    // Browsers offer the clipboard only over TLS and on this machine.
    notify(document.execCommand('copy') ? 'Copied.' : 'The text is selected: copy it with the keyboard.');
  }
}
