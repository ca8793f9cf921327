/**
 * Builds elements. Text always becomes a text node, and attributes are set by name, so nothing that comes from a client or a
 * rules file is ever read as markup.
 */

const SVG = 'http://www.w3.org/2000/svg';

/**
 * Creates an HTML element.
 * @param {string} name
 * @param {Record<string, unknown>} [attributes] `onclick` and the like add listeners; null, undefined and false leave the attribute out.
 * @param {...(Node|string|number|null|undefined|false|Array)} children
 * @returns {HTMLElement}
 */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Creates an SVG element, as [h] creates an HTML element. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...flat(children));
  return element;
}

/** Replaces all children of an element. */
export function replace(parent, ...children) {
  parent.replaceChildren(...flat(children));
}

/**
 * Replaces the children of an element by newer ones of the same kind. A link or button that has the focus keeps it. Nothing
 * changes while text in the element is selected.
 */
export function refresh(parent, ...children) {
  const selection = getSelection();
  if (!selection.isCollapsed && parent.contains(selection.anchorNode)) return;
  const focused = parent.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  replace(parent, ...children);
  if (focused === null) return;
  const same = [...parent.querySelectorAll('a, button, summary')].find((element) => keyOf(element) === focused);
  same?.focus({ preventScroll: true });
}

function keyOf(element) {
  return [element.tagName, element.getAttribute('href') ?? '', element.textContent].join(' ');
}

/** Sets the text of an element, and leaves the document alone if nothing changed. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Sets an attribute, and leaves the document alone if nothing changed. */
export function setAttribute(element, name, value) {
  const wanted = String(value);
  if (element.getAttribute(name) !== wanted) element.setAttribute(name, wanted);
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}
