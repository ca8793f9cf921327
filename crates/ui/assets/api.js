/** Requests to the server, by the same API that programs use: the session, and the rules in force. */

/** Age after which the rules are fetched again, for users who are not told of reloads (ms). */
const MAX_AGE = 60_000;

/**
 * The session: who is logged in, and what they may do.
 * @typedef {object} Session
 * @property {string|null} user
 * @property {string} [token] the token against requests from other sites
 * @property {boolean} login whether a login is needed
 * @property {string[]} can categories of requests
 * @property {boolean} readOnly
 * @property {{version: string, store: string, shared: boolean, passwordOnly: boolean, top: boolean}} server
 */
let session = null;
let onLogout = () => {};
let rules = null;
let rulesFetchedAt = 0;

/** An error reply (RFC 9457), or no reply at all (status 0). */
export class Problem extends Error {
  constructor(status, detail, retryAfter = null) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Sets the function to call when the server no longer knows the session. */
export function whenLoggedOut(action) {
  onLogout = action;
}

/** Returns the headers of a request in this session. */
export function headers(extra = {}) {
  return session?.token ? { ...extra, 'X-Divvy-Token': session.token } : extra;
}

export const get = (path, query, signal) => send('GET', path, { query, signal });
export const post = (path, body, signal) => send('POST', path, { body, signal });

/**
 * Sends a request, and returns the body of the reply.
 * @throws {Problem}
 */
export async function send(method, path, { query, body, signal } = {}) {
  const url = query ? `${path}?${new URLSearchParams(query)}` : path;
  const type = body === undefined ? {} : { 'Content-Type': 'application/json' };
  const content = body === undefined ? undefined : JSON.stringify(body);
  const options = { method, headers: headers(type), body: content, signal, cache: 'no-store', redirect: 'error' };
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, 'The server cannot be reached.');
  }
  if (response.ok) return response.status === 204 ? null : response.json();
  const problem = await problemOf(response);
  if (problem.status === 401 && !path.startsWith('/ui/api/')) onLogout();
  throw problem;
}

/** Reads an error reply. */
export async function problemOf(response) {
  const retry = Number(response.headers.get('Retry-After'));
  let detail = response.statusText || 'error';
  try {
    detail = (await response.json()).detail ?? detail;
  } catch {
    // Not divvy's own reply: its status says enough.
  }
  const sentence = /[.!?…]$/.test(detail) ? detail : `${detail}.`;
  return new Problem(response.status, sentence.charAt(0).toUpperCase() + sentence.slice(1), retry > 0 ? retry : null);
}

/** @returns {Promise<Session>} */
export async function loadSession() {
  return adopt(await get('/ui/api/session'));
}

export async function login(user, password) {
  return adopt(await post('/ui/api/login', user ? { user, password } : { password }));
}

export async function logout() {
  await send('POST', '/ui/api/logout');
}

function adopt(loaded) {
  session = loaded;
  forgetRules();
  return session;
}

/** Returns whether the session may make requests of a category. */
export function may(category) {
  return session.can.includes(category) || (category === 'status' && session.can.includes('read'));
}

/** Returns whether the session may change anything of this category. */
export function mayChange(category) {
  return !session.readOnly && session.can.includes(category);
}

/**
 * Returns the rules in force, as `GET /v1/rules` lists them. They are kept until a reload.
 * @returns {Promise<{rules: object[], named: Map<string, object>}>}
 */
export function loadRules() {
  if (!rules || Date.now() - rulesFetchedAt > MAX_AGE) {
    rulesFetchedAt = Date.now();
    const index = ({ rules: list }) => ({ rules: list, named: new Map(list.map((rule) => [rule.name, rule])) });
    rules = get('/v1/rules').then(index);
    rules.catch(() => forgetRules());
  }
  return rules;
}

export function forgetRules() {
  rules = null;
}

/** Returns whether a rule counts anything. */
export function counts(rule) {
  return rule.creditLimit > 0 && rule.resetSeconds !== 0;
}

/** Returns the most credits that a counter of this rule can have left. */
export function capacity(rule) {
  return rule.burst ?? rule.creditLimit;
}

/** Returns whether limits and counters of single actors can be changed under this rule. */
export function isNamed(rule) {
  return Boolean(rule.label) || rule.name === 'default';
}

/** Returns the same for a rule with this name, whose definition only some users may read. */
export function hasLastingName(name, definition) {
  return definition ? isNamed(definition) : !/^rule-\d+$/.test(name);
}
