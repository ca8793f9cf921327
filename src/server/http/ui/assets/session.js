/** Who is logged in, and what they may do. */

import * as api from './api.js';

/**
 * @typedef {object} Session
 * @property {string|null} user
 * @property {boolean} login whether a login is needed
 * @property {string[]} can categories of requests
 * @property {boolean} readOnly
 * @property {{version: string, store: string, shared: boolean, passwordOnly: boolean, top: boolean}} server
 */

/** @returns {Promise<Session>} */
export async function load() {
  return adopt(await api.get('/ui/api/session'));
}

export async function login(user, password) {
  return adopt(await api.post('/ui/api/login', user ? { user, password } : { password }));
}

export async function logout() {
  await api.send('POST', '/ui/api/logout');
}

/** Returns whether the session may make requests of a category. */
export function may(session, category) {
  if (session.can.includes(category)) return true;
  return category === 'status' && session.can.includes('read');
}

/** Returns whether the session may change anything of this category. */
export function mayChange(session, category) {
  return !session.readOnly && session.can.includes(category);
}

function adopt(session) {
  api.configure({ token: session.token });
  return session;
}
