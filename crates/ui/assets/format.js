/** Formats numbers, times and sizes for people, and writes the addresses of views. */

const TENTH = new Intl.NumberFormat('en-US', { maximumFractionDigits: 1 });
const LIST = new Intl.ListFormat('en-GB');
const UNITS = [
  [86400, 'd'],
  [3600, 'h'],
  [60, 'min'],
  [1, 's'],
];

/** Returns a number without decimals, such as "12,345". */
export const number = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 }).format;

/** Returns "1 rule" or "2 rules". */
export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? '' : 's'}`;
}

/** Returns a time span in its two largest units, such as "2 h 5 min". */
export function duration(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  const first = UNITS.findIndex(([size]) => whole >= size);
  if (first < 0) return '0 s';
  const [size, name] = UNITS[first];
  const [nextSize, nextName] = UNITS[first + 1] ?? [1, ''];
  const rest = Math.floor((whole % size) / nextSize);
  return `${number(Math.floor(whole / size))} ${name}${rest > 0 ? ` ${rest} ${nextName}` : ''}`;
}

/** Returns a list as in "a, b and c". */
export const list = (words) => LIST.format(words);

/** Returns a value of the health panel in its unit, `count` or `bytes`. */
export function quantity(value, unit) {
  if (unit !== 'bytes') return number(value);
  let [rest, size] = [value, 'B'];
  for (const larger of ['KiB', 'MiB', 'GiB', 'TiB']) {
    if (rest < 1024) break;
    [rest, size] = [rest / 1024, larger];
  }
  return `${rest < 10 && size !== 'B' ? TENTH.format(rest) : number(rest)} ${size}`;
}

/** Returns a share such as "4 %". A share that is neither nothing nor everything never looks like it. */
export function percent(part, whole) {
  if (!whole) return '0 %';
  const share = (part / whole) * 100;
  if (share > 0 && share < 1) return '< 1 %';
  return `${Math.min(Math.round(share), part < whole ? 99 : 100)} %`;
}

/** Returns a time of the server in this browser's time zone: date, time and seconds, as Swedes write them. */
export function time(seconds) {
  return new Date(seconds * 1000).toLocaleString('sv-SE');
}

/** Returns the name of a store. */
export function storeName(store) {
  return { rocksdb: 'RocksDB', redis: 'Redis' }[store] ?? store;
}

/**
 * Reads the address of a view from the URL's hash, such as `#/rules?search=cookies&rule=by-ip`.
 * @returns {{view: string, params: URLSearchParams}}
 */
export function parseAddress(hash) {
  const [path, query] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  return { view: path || 'rules', params: new URLSearchParams(query ?? '') };
}

/** Returns the hash of a view. Parameters without a value are left out. */
export function link(view, params = {}) {
  const given = Object.entries(params).filter(([, value]) => (value ?? '') !== '');
  const text = new URLSearchParams(given).toString();
  return `#/${view}${text ? `?${text}` : ''}`;
}

/** Goes to a view. With `replace`, the back button skips the present one. */
export function go(hash, { replace = false } = {}) {
  if (location.hash === hash) return;
  if (replace) {
    history.replaceState(null, '', hash);
    window.dispatchEvent(new HashChangeEvent('hashchange'));
  } else {
    location.hash = hash;
  }
}
