/** The login form. */

import { h, setText } from './dom.js';
import { login } from './session.js';

const LOST_SESSION =
  'Your session has ended. It was unused for too long, the server was restarted, the password was changed, ' +
  'or the same user has logged in too many times since.';

export function mount(host, app) {
  const { passwordOnly } = app.session.server;
  const user = h('input', {
    id: 'login-user',
    name: 'username',
    autocomplete: 'username',
    autocapitalize: 'none',
    spellcheck: 'false',
    maxlength: 128,
    required: true,
  });
  const password = h('input', {
    id: 'login-password',
    name: 'password',
    type: 'password',
    autocomplete: 'current-password',
    maxlength: 512,
    required: true,
  });
  const error = h('p', { class: 'error', role: 'alert', id: 'login-error' });
  const button = h('button', { class: 'primary', id: 'login-submit' }, 'Log in');

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    setText(error, '');
    try {
      app.entered(await login(passwordOnly ? null : user.value, password.value));
    } catch (problem) {
      setText(
        error,
        problem.status === 401
          ? passwordOnly
            ? 'The password is wrong.'
            : 'The name or the password is wrong.'
          : problem.message,
      );
      password.select();
    } finally {
      button.disabled = false;
    }
  }

  host.append(
    h(
      'form',
      { class: 'card narrow login', onsubmit: submit, 'aria-labelledby': 'login-title' },
      h('h1', { id: 'login-title' }, 'Log in to divvy'),
      app.hasLostSession ? h('p', { class: 'note', id: 'login-note', role: 'status' }, LOST_SESSION) : null,
      passwordOnly ? null : h('div', { class: 'field' }, h('label', { for: 'login-user' }, 'User'), user),
      h('div', { class: 'field' }, h('label', { for: 'login-password' }, 'Password'), password),
      error,
      button,
    ),
  );
  (passwordOnly ? password : user).focus();
  return {};
}
