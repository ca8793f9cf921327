/** Charts of the last minute, and bars that show a share. */

import { number } from './format.js';
import { html } from './preact_htm.js';

const SECONDS = 60;

/** The series of one rule: what happened in each of the last 60 seconds, oldest first. */
export class History {
  constructor(series) {
    this.series = series ?? { hits: [], denied: [], canaryDenied: [] };
  }

  push(row) {
    for (const name of Object.keys(this.series)) {
      this.series[name].push(row[name] ?? 0);
      if (this.series[name].length > SECONDS) this.series[name].shift();
    }
    return this;
  }

  sum(name) {
    return this.series[name].reduce((sum, value) => sum + value, 0);
  }

  peak(name) {
    return Math.max(0, ...this.series[name]);
  }
}

/** Returns the history with the figures of a new second. The server sends a whole history only at the start. */
export function nextHistory(before, row) {
  return row.history ? new History(row.history) : (before ?? new History()).push(row);
}

/** Says in words what a chart of hits and denials shows. */
export function summary(history, isCanary) {
  const denied = history.sum(isCanary ? 'canaryDenied' : 'denied');
  const word = isCanary ? 'would be denied' : 'denied';
  const [hits, peak] = [history.sum('hits'), history.peak('hits')];
  return `Last minute: ${number(hits)} hits, ${number(denied)} ${word}, at most ${number(peak)} hits a second`;
}

/**
 * Draws an area for hits and bars for denials, on one scale. Without a label, the words around the chart say the same.
 * @param {{area?: number[], bars?: number[], canary?: boolean, height?: number, label?: string}} props
 */
export function Spark({ area = [], bars = [], canary = false, height = 20, label }) {
  const top = Math.max(1, ...area, ...bars);
  const y = (value) => Math.round((height - (value / top) * (height - 1.5) - 0.5) * 100) / 100;
  const points = area.map((value, at) => `${SECONDS - area.length + at + 0.5} ${y(value)}`).join('L');
  const [first, last] = [SECONDS - area.length + 0.5, SECONDS - 0.5];
  const bar = (value, at) =>
    value > 0 ? `M${SECONDS - bars.length + at + 0.1} ${height}V${y(value)}h.8V${height}Z` : '';
  const names = label ? { role: 'img', 'aria-label': label } : { 'aria-hidden': 'true' };
  return html`
    <svg class="spark" viewBox="0 0 ${SECONDS} ${height}" preserveAspectRatio="none" ...${names}>
      <path class="spark-hits" d=${points && `M${first} ${height}L${points}L${last} ${height}Z`} />
      <path class="spark-line" d=${points && `M${points}`} />
      <path class=${canary ? 'spark-canary' : 'spark-denied'} d=${bars.map(bar).join('')} />
    </svg>
  `;
}

/**
 * A bar that shows how much of something is left or in use.
 * @param {object} props
 * @param {'left'|'used'|'share'} props.kind `left` is bad when empty, `used` when full
 * @param {string} [props.state] `ok`, `warning` or `bad`, if the server has judged
 */
export function Meter({ part, whole, kind, state }) {
  const share = whole > 0 ? Math.max(0, Math.min(1, part / whole)) : 0;
  return html`
    <svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
      <rect class="meter-back" width="100" height="6" />
      <rect class="meter-fill ${state ?? judge(share, kind)}" width=${Math.round(share * 1000) / 10} height="6" />
    </svg>
  `;
}

function judge(share, kind) {
  if (kind === 'left') return share === 0 ? 'bad' : share < 0.1 ? 'warning' : 'ok';
  return kind === 'used' && share > 0.9 ? 'warning' : 'ok';
}
