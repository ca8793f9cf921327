/** The live stream of figures. It reconnects, after longer and longer pauses, and stops while nobody looks. */

import { request } from './api.js';

/** Pauses before a new connection (ms). */
const FIRST_PAUSE = 500;
const LAST_PAUSE = 15_000;
/** Silence after which a connection is given up (ms). An event comes every second. */
const PATIENCE = 10_000;
/** Time after which a change to other rules is slow (ms). */
const SLOW = 1500;

/**
 * @typedef {object} FeedState
 * @property {'connecting'|'live'|'waiting'|'paused'} phase
 * @property {string} [reason] why there is no connection
 * @property {number} [until] when the next attempt begins (ms, as `Date.now`)
 */
export class Feed {
  #query = null;
  #abort = null;
  #timer = null;
  #failures = 0;
  #isLive = false;
  #listener;

  /** @param {{receive(name: string, data: any): void, showStream(state: FeedState): void}} listener */
  constructor(listener) {
    this.#listener = listener;
    document.addEventListener('visibilitychange', () => this.#start());
  }

  /** Asks for these rules from now on; null closes the stream. Asking for the same again changes nothing. */
  watch(query) {
    const wanted = query && new URLSearchParams(query).toString();
    if (wanted === this.#query) return;
    this.#query = wanted;
    this.#start();
  }

  /** Tries again at once. */
  retry() {
    this.#failures = 0;
    this.#start();
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  #start() {
    this.#stop();
    if (this.#query === null) return;
    if (document.hidden) {
      this.#isLive = false;
      this.#listener.showStream({ phase: 'paused' });
    } else {
      this.#read((this.#abort = new AbortController()));
    }
  }

  async #read(abort) {
    // A stream that only shows other rules is not worth a word.
    const pause = this.#isLive ? SLOW : 0;
    const slow = setTimeout(() => this.#failures === 0 && this.#listener.showStream({ phase: 'connecting' }), pause);
    let watchdog;
    const expectMore = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => abort.abort(new Error('The server sent nothing for 10 seconds.')), PATIENCE);
    };
    try {
      expectMore();
      const { body } = await request('/ui/api/feed', this.#query, { signal: abort.signal });
      for await (const [name, data] of events(body)) {
        if (abort !== this.#abort) return;
        expectMore();
        clearTimeout(slow);
        this.#failures = 0;
        this.#isLive = true;
        this.#listener.showStream({ phase: 'live' });
        this.#listener.receive(name, JSON.parse(data));
      }
      throw new Error('The server closed the connection.');
    } catch (error) {
      if (abort === this.#abort) this.#wait(error);
    } finally {
      clearTimeout(watchdog);
      clearTimeout(slow);
    }
  }

  #wait(error) {
    this.#stop();
    if (error.status === 401) {
      this.#listener.receive('end');
      return;
    }
    const growing = Math.min(FIRST_PAUSE * 2 ** this.#failures, LAST_PAUSE);
    this.#failures += 1;
    // A little chance keeps the pages of a whole team from coming back in the same instant.
    const pause = Math.max(growing, (error.retryAfter ?? 0) * 1000) * (1 + Math.random() / 4);
    const reason = error.name === 'TypeError' ? 'The server cannot be reached.' : error.message;
    this.#isLive = false;
    this.#listener.showStream({ phase: 'waiting', reason, until: Date.now() + pause });
    this.#timer = setTimeout(() => this.#start(), pause);
  }
}

/**
 * Yields the server-sent events of a response. EventSource would hide its status, and the time when to try again.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<[string, string]>} names and data
 */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (pending + value).split('\n\n');
      pending = blocks.pop();
      for (const block of blocks) yield /^event: (.*)\ndata: (.*)$/.exec(block).slice(1);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
