/** The table of rules. Only the rows in view exist, however many rules there are, and only their figures are received. */

import { h } from './dom.js';
import { RuleRow } from './rule_row.js';
import { nextHistory } from './spark.js';

/** Rows kept above and below those in view. */
const MARGIN = 12;
/** Most rules that a stream carries. */
const MOST = 100;

export class RulesTable {
  #body = h('tbody', { role: 'rowgroup' });
  #table;
  #rows = new Map();
  #rules = new Map();
  #known = new Map();
  #matching = 0;
  #selected = '';
  #rowHeight = 60;
  #asked = { first: 0, count: 40 };
  #onWindow;
  #href;
  #onScroll = () => this.#frame();
  #scheduled = 0;

  /**
   * @param {() => void} onWindow called when other rules have come into view
   * @param {(name: string) => string} href the address that shows a rule
   */
  constructor(onWindow, href) {
    this.#onWindow = onWindow;
    this.#href = href;
    const column = (name, text) => h('th', { scope: 'col', role: 'columnheader', class: name }, text);
    const head = h(
      'thead',
      { role: 'rowgroup' },
      h(
        'tr',
        { role: 'row', 'aria-rowindex': 1 },
        column('place', '#'),
        column('rule', 'Rule'),
        column('limit', 'Limit'),
        column('chart', 'Last minute'),
        column('hits', 'Hits/s'),
        column('denied', 'Denied/s'),
      ),
    );
    this.#table = h(
      'table',
      { class: 'rules', role: 'table', 'aria-labelledby': 'rules-title', onkeydown: (event) => this.#onKey(event) },
      head,
      this.#body,
    );
    this.element = h(
      'div',
      { class: 'scroll' },
      this.#table,
      h('p', { class: 'empty', hidden: true }, 'No rule matches.'),
    );
    addEventListener('scroll', this.#onScroll, { passive: true });
    addEventListener('resize', this.#onScroll, { passive: true });
  }

  close() {
    cancelAnimationFrame(this.#scheduled);
    removeEventListener('scroll', this.#onScroll);
    removeEventListener('resize', this.#onScroll);
  }

  /** Returns the rules to ask for: those in view, and some around them. */
  window() {
    return { ...this.#asked };
  }

  isShown() {
    return this.element.offsetParent !== null;
  }

  isEmpty() {
    return this.#rules.size === 0;
  }

  /** Forgets the rows, because another list follows. */
  restart() {
    this.#rules.clear();
    this.#asked = { ...this.#asked, first: 0 };
    if (this.element.getBoundingClientRect().top < 0) scrollTo(0, 0);
  }

  select(name) {
    this.#selected = name;
    for (const row of this.#rows.values()) row.mark(name);
  }

  /** Moves the focus to a rule, if it is in view. */
  focus(name) {
    const link = [...this.#body.querySelectorAll('a')].find((candidate) => candidate.textContent === name);
    link?.focus({ preventScroll: true });
  }

  scrollTo(position) {
    const top = this.element.getBoundingClientRect().top + window.scrollY;
    const bottom = top + (position + 1) * this.#rowHeight;
    if (!this.isShown() || bottom < window.scrollY + window.innerHeight) return;
    this.#matching = Math.max(this.#matching, position + 1);
    this.#render();
    window.scrollTo(0, bottom - window.innerHeight / 2);
    this.#render();
  }

  receive({ first, matching, rules }) {
    this.#matching = matching;
    this.#rules.clear();
    rules.forEach((rule, at) => this.#rules.set(first + at, this.#merge(rule)));
    const names = new Set(rules.map((rule) => rule.name));
    for (const name of this.#known.keys()) if (!names.has(name)) this.#known.delete(name);
    this.element.lastChild.hidden = matching > 0;
    this.#table.setAttribute('aria-rowcount', matching + 1);
    this.#render();
  }

  /** Adds what the server sends only once, and the history. */
  #merge(rule) {
    const before = this.#known.get(rule.name);
    const merged = { ...before, ...rule };
    merged.past = nextHistory(before?.past, rule);
    this.#known.set(rule.name, merged);
    return merged;
  }

  /** Measures a row again, after the layout has changed. */
  measure() {
    this.#frame();
  }

  #frame() {
    cancelAnimationFrame(this.#scheduled);
    this.#scheduled = requestAnimationFrame(() => this.#render());
  }

  #render() {
    if (!this.isShown()) return;
    const height = this.#body.firstElementChild?.getBoundingClientRect().height;
    if (height) this.#rowHeight = height;
    const hidden = Math.max(0, -this.element.getBoundingClientRect().top);
    const inView = Math.ceil(window.innerHeight / this.#rowHeight) + 1;
    const size = Math.min(MOST, inView + 2 * MARGIN);
    const last = Math.max(0, this.#matching - size);
    const start = Math.max(0, Math.min(Math.floor(hidden / this.#rowHeight) - MARGIN, last));
    const end = Math.min(start + size, Math.max(this.#matching, 0));
    this.element.style.paddingTop = `${start * this.#rowHeight}px`;
    this.element.style.paddingBottom = `${Math.max(0, this.#matching - end) * this.#rowHeight}px`;
    this.#fill(start, end);
    const moved = start < this.#asked.first || end > this.#asked.first + this.#asked.count;
    if (moved || size > this.#asked.count) {
      this.#asked = { first: Math.max(0, start), count: size };
      this.#onWindow();
    }
  }

  #fill(start, end) {
    for (const [position, row] of this.#rows) {
      if (position < start || position >= end) {
        row.element.remove();
        this.#rows.delete(position);
      }
    }
    let next = null;
    for (let position = end - 1; position >= start; position -= 1) {
      let row = this.#rows.get(position);
      if (!row) {
        row = new RuleRow(position, this.#href);
        this.#rows.set(position, row);
        this.#body.insertBefore(row.element, next);
      }
      row.show(this.#rules.get(position) ?? null, this.#selected, this.#rules.get(position - 1)?.stack ?? false);
      next = row.element;
    }
  }

  /** Moves between rules with the arrow keys. */
  #onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest('tbody tr');
    if (!step || !row || event.altKey || event.ctrlKey || event.metaKey) return;
    const next = step > 0 ? row.nextElementSibling : row.previousElementSibling;
    const target = next?.querySelector('a');
    if (!target) return;
    event.preventDefault();
    target.focus({ preventScroll: true });
    next.scrollIntoView({ block: 'nearest' });
  }
}
