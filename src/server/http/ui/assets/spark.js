/** Charts of the last minute, made of two paths: an area for hits, and bars for denials. */

import { setAttribute, svg } from './dom.js';
import { number } from './format.js';

const SECONDS = 60;

/** The series of one rule: what happened in each of the last 60 seconds, oldest first. */
export class History {
  constructor(history) {
    this.series = history ?? { hits: [], denied: [], canaryDenied: [] };
  }

  push(row) {
    for (const name of Object.keys(this.series)) {
      this.series[name].push(row[name] ?? 0);
      if (this.series[name].length > SECONDS) this.series[name].shift();
    }
  }

  sum(name) {
    return (this.series[name] ?? []).reduce((sum, value) => sum + value, 0);
  }

  peak(name) {
    return Math.max(0, ...(this.series[name] ?? []));
  }
}

/** Returns the history with the figures of a new second. The server sends a whole history only at the start. */
export function nextHistory(before, row) {
  if (row.history) return new History(row.history);
  const history = before ?? new History();
  history.push(row);
  return history;
}

/** A chart of the last minute. */
export class Spark {
  #hits = svg('path', { class: 'spark-hits' });
  #line = svg('path', { class: 'spark-line' });
  #bars = svg('path', { class: 'spark-denied' });
  #height;

  constructor({ height = 20, label = true } = {}) {
    this.#height = height;
    const names = label ? { role: 'img', 'aria-label': 'No hits yet' } : { 'aria-hidden': 'true' };
    this.element = svg(
      'svg',
      { class: 'spark', viewBox: `0 0 ${SECONDS} ${height}`, preserveAspectRatio: 'none', ...names },
      this.#hits,
      this.#line,
      this.#bars,
    );
  }

  /** Draws series on one scale. `area` or `bars` may be absent. */
  draw({ area, bars, canary = false, text }) {
    const top = Math.max(1, ...(area ?? []), ...(bars ?? []));
    const y = (value) => round(this.#height - (value / top) * (this.#height - 1.5) - 0.5);
    const points = (area ?? []).map((value, at) => `${SECONDS - area.length + at + 0.5} ${y(value)}`);
    const first = SECONDS - points.length + 0.5;
    setAttribute(this.#line, 'd', points.length ? `M${points.join('L')}` : '');
    setAttribute(
      this.#hits,
      'd',
      points.length ? `M${first} ${this.#height}L${points.join('L')}L${SECONDS - 0.5} ${this.#height}Z` : '',
    );
    setAttribute(
      this.#bars,
      'd',
      (bars ?? []).map((value, at) => (value > 0 ? this.#bar(bars.length, at, y(value)) : '')).join(''),
    );
    setAttribute(this.#bars, 'class', canary ? 'spark-canary' : 'spark-denied');
    if (text && this.element.hasAttribute('aria-label')) setAttribute(this.element, 'aria-label', text);
  }

  #bar(length, at, y) {
    return `M${SECONDS - length + at + 0.1} ${this.#height}V${y}h.8V${this.#height}Z`;
  }
}

/** Says in words what a chart of hits and denials shows. */
export function summary(history, isCanary) {
  const denied = history.sum(isCanary ? 'canaryDenied' : 'denied');
  const word = isCanary ? 'would be denied' : 'denied';
  return `Last minute: ${number(history.sum('hits'))} hits, ${number(denied)} ${word}, at most ${number(history.peak('hits'))} hits a second`;
}

function round(value) {
  return Math.round(value * 100) / 100;
}
