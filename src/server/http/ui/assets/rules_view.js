/** The rules in order, with what they do now. */

import { h, replace, setText } from './dom.js';
import { count, number } from './format.js';
import { go, link } from './route.js';
import { RuleDetail } from './rule_detail.js';
import { RulesSum } from './rules_sum.js';
import { RulesTable } from './rules_table.js';
import * as policy from './policy.js';

/** Pause after typing or scrolling before other rules are asked for (ms). */
const DEBOUNCE = 150;

/** Returns a function that acts once it has not been called for a moment. */
function debounced(action) {
  let timer;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(action, DEBOUNCE);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

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
  #searchLater = debounced(() => this.#go({ search: this.#elements.search.value }, true));
  #watchLater = debounced(() => this.#app.watch(this.query()));
  /** Where the list was scrolled to when the panel took its place. */
  #listScroll = 0;
  #table;
  #sum = new RulesSum();
  #isNewSearch = false;
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
      oninput: this.#searchLater,
    });
    const only = h('input', {
      type: 'checkbox',
      id: 'only-denied',
      onchange: () => this.#go({ only: only.checked ? 'denied' : '' }),
    });
    const onlyLabel = h('label', { class: 'check' }, only, 'Only rules that denied in the last minute');
    const hidden = h(
      'p',
      { class: 'note', id: 'no-counts', hidden: true },
      'Your scope has one actor. The hits and denials of a rule are those of all actors, so they are not shown.',
    );
    const form = h(
      'form',
      { class: 'filters', role: 'search', onsubmit: (event) => event.preventDefault() },
      h('label', { for: 'search', class: 'unseen' }, 'Search rules'),
      search,
      onlyLabel,
    );
    const said = h('p', { class: 'unseen', role: 'status' });
    const [found, side] = [h('p', { class: 'found' }), h('div', { class: 'side' })];
    this.#elements = { search, only, onlyLabel, hidden, found, said, side, layout: null };
    this.#table = new RulesTable(this.#watchLater, (name) => this.#href(name));
    const layout = h(
      'div',
      { class: 'split' },
      h('section', { class: 'list', 'aria-labelledby': 'rules-title' }, this.#table.element),
      side,
    );
    this.#elements.layout = layout;
    host.append(
      h('div', { class: 'head' }, h('h1', { id: 'rules-title' }, 'Rules'), this.#sum.element),
      hidden,
      h('div', { class: 'tools' }, form, found, said),
      layout,
    );
  }

  update(params) {
    const [search, only, rule] = ['search', 'only', 'rule'].map((name) => params.get(name) ?? '');
    if (this.#elements.search.value !== search) this.#elements.search.value = search;
    this.#elements.only.checked = only === 'denied';
    if (search !== this.#search || only !== this.#only) {
      this.#table.restart();
      this.#isNewSearch = true;
    }
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
    this.#sum.receive(event);
    this.#showWhetherCounted(Boolean(event.sum));
    const { total, matching } = event;
    const isFiltered = this.#search || this.#only;
    const found = isFiltered ? `${count(matching, 'rule')} of ${number(total)}` : count(total, 'rule');
    setText(this.#elements.found, found);
    // Only a new search is announced, because the number of rules that deny changes each second.
    if (this.#isNewSearch) setText(this.#elements.said, isFiltered ? `${found} found` : '');
    this.#isNewSearch = false;
  }

  /** Leaves out the columns of counts if the server does. */
  #showWhetherCounted(isCounted) {
    this.#elements.layout.classList.toggle('uncounted', !isCounted);
    this.#elements.onlyLabel.hidden = !isCounted;
    this.#elements.hidden.hidden = isCounted;
  }

  close() {
    this.#searchLater.cancel();
    this.#watchLater.cancel();
    this.#table.close();
    this.#detail?.close();
  }

  #select(rule) {
    const before = window.scrollY;
    const wasShown = this.#table.isShown();
    const hadFocus = this.#elements.side.contains(document.activeElement);
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
    if (hadFocus && !rule) this.#table.focus(this.#rule);
    else if (!this.#table.isShown()) this.#detail?.focus();
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
}
