/** Requests to the server: the same API that programs use. */

/** The token against requests from other sites, which belongs to the session. */
let token = null;
let onLogout = () => {};

/** An error reply (RFC 9457), or no reply at all (status 0). */
export class Problem extends Error {
  constructor(status, detail, retryAfter = null) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Sets the session's token, and the function to call when the server no longer knows the session. */
export function configure(options) {
  token = options.token ?? null;
  onLogout = options.onLogout ?? onLogout;
}

/** Returns the headers of a request in this session. */
export function headers(extra = {}) {
  return token ? { ...extra, 'X-Divvy-Token': token } : extra;
}

export async function get(path, query, signal) {
  return send('GET', path, { query, signal });
}

export async function post(path, body, signal) {
  return send('POST', path, { body, signal });
}

/**
 * Sends a request, and returns the body of the reply.
 * @throws {Problem}
 */
export async function send(method, path, { query, body, signal } = {}) {
  const url = query ? `${path}?${new URLSearchParams(query)}` : path;
  const type = body === undefined ? {} : { 'Content-Type': 'application/json' };
  const content = body === undefined ? undefined : JSON.stringify(body);
  let response;
  try {
    response = await fetch(url, {
      method,
      headers: headers(type),
      body: content,
      signal,
      cache: 'no-store',
      redirect: 'error',
    });
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
  return new Problem(response.status, sentence(detail), retry > 0 ? retry : null);
}

function sentence(text) {
  const ended = /[.!?…]$/.test(text) ? text : `${text}.`;
  return ended.charAt(0).toUpperCase() + ended.slice(1);
}
