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
      await answer.arrayBuffer();
      if (answer.status !== 200 && answer.status !== 429) {
        throw new Error(`divvy answered with ${answer.status}`);
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

module.exports = divvy;
