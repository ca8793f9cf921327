/** The address of a view, in the URL's hash, so that a colleague can be sent a link: `#/rules?search=cookies&rule=by-ip`. */

/** @returns {{view: string, params: URLSearchParams}} */
export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  return { view: path || 'rules', params: new URLSearchParams(query ?? '') };
}

/** Returns the hash of a view. Parameters without a value are left out. */
export function link(view, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== '') query.set(name, value);
  }
  const text = query.toString();
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
