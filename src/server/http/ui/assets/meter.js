/** A bar that shows how much of something is left or in use. */

import { svg, setAttribute } from './dom.js';

/**
 * @param {number} part
 * @param {number} whole
 * @param {'left'|'used'|'share'} kind `left` is bad when empty, `used` when full
 * @param {string} [state] `ok`, `warning` or `bad`, if the server has judged
 */
export function meter(part, whole, kind, state) {
  const share = whole > 0 ? Math.max(0, Math.min(1, part / whole)) : 0;
  const fill = svg('rect', { class: `meter-fill ${state ?? judge(share, kind)}`, width: 0, height: 6 });
  setAttribute(fill, 'width', Math.round(share * 1000) / 10);
  return svg(
    'svg',
    { class: 'meter', viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    svg('rect', { class: 'meter-back', width: 100, height: 6 }),
    fill,
  );
}

function judge(share, kind) {
  if (kind === 'left') return share === 0 ? 'bad' : share < 0.1 ? 'warning' : 'ok';
  return kind === 'used' && share > 0.9 ? 'warning' : 'ok';
}
