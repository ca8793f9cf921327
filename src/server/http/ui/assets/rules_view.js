/** The rules in order, with what they do now. */

import { h, replace, setText } from './dom.js';
import { count, number } from './format.js';
import { go, link } from './route.js';
import { RuleDetail } from './rule_detail.js';
import { RulesTable } from './rules_table.js';
import * as policy from './policy.js';

/** Pause after typing or scrolling before other rules are asked for (ms). */
const DEBOUNCE = 150;

export function mount(host, app) {
  const view = new RulesView(host, app);
  return {
    update: (params) => view.update(params),
    receive: (name, data) => name === 'rules' && view.receive(data),
    query: () => view.query(),
    close: () => view.close(),
  };
}

class RulesView {
  #app;
  #search = '';
  #only = '';
  #rule = '';
  #timer = null;
  /** Where the list was scrolled to when the panel took its place. */
  #listScroll = 0;
  #table;
  #detail = null;
  #elements;

  constructor(host, app) {
    this.#app = app;
    const search = h('input', {
      type: 'search',
      id: 'search',
      placeholder: 'Label, operation or comment',
      autocomplete: 'off',
      spellcheck: 'false',
      oninput: () => this.#later(() => this.#go({ search: search.value, rule: this.#rule }, true)),
    });
    const only = h('input', {
      type: 'checkbox',
      id: 'only-denied',
      onchange: () => this.#go({ only: only.checked ? 'denied' : '' }),
    });
    const form = h(
      'form',
      { class: 'filters', role: 'search', onsubmit: (event) => event.preventDefault() },
      h('label', { for: 'search', class: 'unseen' }, 'Search rules'),
      search,
      h('label', { class: 'check' }, only, 'Only rules that denied in the last minute'),
    );
    const [sum, found, side] = [
      h('div', { class: 'sum', id: 'sum' }),
      h('p', { class: 'found', role: 'status' }),
      h('div', { class: 'side' }),
    ];
    this.#elements = { search, only, sum, found, side, layout: null };
    this.#table = new RulesTable(
      () => this.#later(() => this.#app.watch(this.query())),
      (name) => this.#href(name),
    );
    const layout = h(
      'div',
      { class: 'split' },
      h('section', { class: 'list', 'aria-labelledby': 'rules-title' }, this.#table.element),
      side,
    );
    this.#elements.layout = layout;
    host.append(
      h('div', { class: 'head' }, h('h1', { id: 'rules-title' }, 'Rules'), sum),
      h('div', { class: 'tools' }, form, found),
      layout,
    );
  }

  update(params) {
    const [search, only, rule] = ['search', 'only', 'rule'].map((name) => params.get(name) ?? '');
    if (this.#elements.search.value !== search) this.#elements.search.value = search;
    this.#elements.only.checked = only === 'denied';
    if (search !== this.#search || only !== this.#only) this.#table.restart();
    const isStart = !this.#detail && rule && this.#table.isEmpty();
    if (rule !== this.#rule) this.#select(rule);
    [this.#search, this.#only, this.#rule] = [search, only, rule];
    if (isStart && !search && !only) this.#scrollTo(rule);
  }

  query() {
    const query = this.#table.window();
    if (this.#search) query.search = this.#search;
    if (this.#only) query.only = this.#only;
    if (this.#rule) query.rule = this.#rule;
    return query;
  }

  receive(event) {
    this.#table.receive(event);
    this.#detail?.receive(event.selected ?? event.rules.find((rule) => rule.name === this.#rule) ?? null, event);
    this.#showSum(event);
    const { total, matching } = event;
    const isFiltered = this.#search || this.#only;
    setText(this.#elements.found, isFiltered ? `${count(matching, 'rule')} of ${number(total)}` : count(total, 'rule'));
  }

  close() {
    clearTimeout(this.#timer);
    this.#table.close();
    this.#detail?.close();
  }

  #showSum({ sum, denying }) {
    if (!sum) return;
    const { sum: element } = this.#elements;
    if (!element.firstChild) {
      replace(
        element,
        [
          ['denying', 'rules deny now'],
          ['denied', 'denied/s'],
          ['hits', 'hits/s'],
          ['canary', 'canary denials/s'],
        ].map(([key, text]) =>
          h('div', { class: `figure ${key}`, 'data-key': key }, h('b', {}), ' ', h('span', {}, text)),
        ),
      );
    }
    const values = { denying, denied: sum.denied, hits: sum.hits, canary: sum.canaryDenied };
    for (const figure of element.children) {
      const value = values[figure.dataset.key];
      setText(figure.firstChild, number(value));
      if (figure.dataset.key === 'canary') figure.hidden = value === 0;
      figure.classList.toggle('active', value > 0);
      if (figure.dataset.key === 'denying')
        setText(figure.lastChild, value === 1 ? 'rule denies now' : 'rules deny now');
    }
  }

  #select(rule) {
    const before = window.scrollY;
    const wasShown = this.#table.isShown();
    this.#detail?.close();
    this.#detail = rule ? new RuleDetail(rule, this.#app, () => this.#go({ rule: '' })) : null;
    replace(this.#elements.side, this.#detail?.element);
    this.#elements.layout.classList.toggle('open', Boolean(rule));
    this.#table.select(rule);
    // On a narrow screen the panel and the list take turns.
    if (wasShown && !this.#table.isShown()) {
      this.#listScroll = before;
      window.scrollTo(0, 0);
    } else if (!wasShown && this.#table.isShown()) {
      window.scrollTo(0, this.#listScroll);
    }
    this.#table.measure();
  }

  /** Shows a rule that a link names in the list, too. */
  async #scrollTo(rule) {
    try {
      const { rules } = await policy.load();
      const at = rules.findIndex((candidate) => candidate.name === rule);
      if (at >= 0) this.#table.scrollTo(at);
    } catch {
      // The panel with the rule says what is wrong.
    }
  }

  #href(name) {
    return link('rules', { search: this.#search, only: this.#only, rule: name });
  }

  #go(changes, replaces = false) {
    go(link('rules', { search: this.#search, only: this.#only, rule: this.#rule, ...changes }), { replace: replaces });
  }

  #later(action) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(action, DEBOUNCE);
  }
}
