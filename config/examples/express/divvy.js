// Middleware for Express that asks divvy over HTTP. No dependencies; Node 18 or newer.

/**
 * @param {object} options
 * @param {string} options.url        divvy's HTTP address, such as http://127.0.0.1:8322
 * @param {(request) => object} options.operation   the pairs that divvy's rules see
 * @param {(request) => number} [options.cost]      how many credits a request takes; without it, the rule decides
 * @param {string} [options.token]    divvy's password (--requirepass), if it has one
 * @param {boolean} [options.failOpen]   when divvy does not answer, let requests through (default: answer 503)
 * @param {number} [options.timeout]     how long to wait for divvy, in milliseconds
 */
function divvy({ url, operation, cost, token, failOpen = false, timeout = 250 }) {
  const endpoint = new URL('/v1/hit', url);
  const headers = { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token}` }) };
  return async (request, response, next) => {
    // Outside the try block: an error in the application's own functions must not count as divvy's, nor fail open.
    const body = JSON.stringify({ operation: operation(request), ...(cost && { cost: cost(request) }) });
    let answer;
    try {
      answer = await fetch(endpoint, {
        method: 'POST',
        headers,
        body,
        signal: AbortSignal.timeout(timeout),
      });
      // Read the body to its end, so that the connection can be reused.
      const text = await answer.text();
      if (answer.status >= 500) throw new Error(`it answered with ${answer.status}: ${text}`);
      if (answer.status !== 200 && answer.status !== 429) {
        // The application asks in a wrong way: the rules, the password or its own operation must be corrected. This is no outage,
        // so it fails open or not in the same way at any time.
        console.error(`divvy refuses the question with ${answer.status}: ${detail(text)}`);
        return failOpen ? next() : response.sendStatus(500);
      }
    } catch (error) {
      console.error('divvy does not answer:', error.message);
      return failOpen ? next() : response.sendStatus(503);
    }
    for (const name of ['ratelimit', 'ratelimit-policy', 'retry-after']) {
      const value = answer.headers.get(name);
      if (value !== null) response.set(name, value);
    }
    return answer.status === 200 ? next() : response.sendStatus(429);
  };
}

// Problems are JSON objects (RFC 9457) that say in `detail` what is wrong.
function detail(text) {
  try {
    return JSON.parse(text).detail ?? text;
  } catch {
    return text;
  }
}

module.exports = divvy;
