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
class Problem extends Error {
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

export const get = (path, query, signal) => send('GET', path, { query, signal });
export const post = (path, body, signal) => send('POST', path, { body, signal });

/**
 * Sends a request, and returns the body of the reply.
 * @throws {Problem}
 */
export async function send(method, path, { query, body, signal } = {}) {
  const type = body === undefined ? {} : { 'Content-Type': 'application/json' };
  const content = body === undefined ? undefined : JSON.stringify(body);
  const response = await request(path, query, { method, headers: type, body: content, signal, redirect: 'error' });
  return response.status === 204 ? null : response.json();
}

/**
 * Sends a request in this session, and returns the response, whose body may still be on its way.
 * @throws {Problem}
 */
export async function request(path, query, options) {
  const token = session?.token ? { 'X-Divvy-Token': session.token } : {};
  const headers = { ...options.headers, ...token };
  const url = query ? `${path}?${new URLSearchParams(query)}` : path;
  let response;
  try {
    response = await fetch(url, { cache: 'no-store', ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem(0, 'The server cannot be reached.');
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (problem.status === 401 && !path.startsWith('/ui/api/')) onLogout();
  throw problem;
}

async function problemOf(response) {
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
