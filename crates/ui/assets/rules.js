/** The rules in order, with what they do now. Only the rows in view and some around them exist and are received. */

import * as api from './api.js';
import { count, go, link, number } from './format.js';
import { Component, html, useRef } from './preact_htm.js';
import { RulePanel } from './rule.js';
import { Spark, sum, Table, useFieldText } from './widgets.js';

/** Pause after typing or scrolling before other rules are asked for (ms). */
const DEBOUNCE = 150;
/** Rows kept above and below those in view. */
const MARGIN = 12;
/** Most rules that a stream carries. */
const MOST = 100;
const NO_COUNTS =
  'Your scope has one actor. The hits and denials of a rule are those of all actors, so they are not shown.';
const LEASES = 'Limits requests in flight. Select the rule to see the leases in use.';

/** The view. Its parameters are `search`, `only` and `rule`, the rule whose panel is open. */
export class Rules extends Component {
  state = { matching: 0, event: null, said: '', rowHeight: 60 };
  #panel = { name: '', shown: null, isMissing: false };
  /** The part of the list that is asked for. */
  #asked = { first: 0, count: 40 };
  #isNewSearch = false;
  /** Where the list was scrolled to when the panel took its place. */
  #listScroll = 0;
  #scroll = { current: null };
  #side = { current: null };
  #frame = 0;
  #watchTimer = null;

  componentDidMount() {
    addEventListener('scroll', this.#measureSoon, { passive: true });
    addEventListener('resize', this.#measureSoon, { passive: true });
    this.props.app.onRules = (event) => this.#receive(event);
    this.#watch();
    const { rule, search, only } = this.#params();
    if (!rule) return;
    if (!this.#isListShown()) {
      scrollTo(0, 0);
      this.#focusPanel();
    }
    if (!search && !only) this.#scrollToRule(rule);
  }

  componentWillUnmount() {
    removeEventListener('scroll', this.#measureSoon);
    removeEventListener('resize', this.#measureSoon);
    this.props.app.onRules = null;
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#watchTimer);
  }

  getSnapshotBeforeUpdate() {
    const hadFocus = this.#side.current.contains(document.activeElement);
    return { scroll: window.scrollY, wasShown: this.#isListShown(), hadFocus };
  }

  componentDidUpdate({ params }, _, { scroll, wasShown, hadFocus }) {
    if (params === this.props.params) return;
    const [before, now] = [this.#params(params), this.#params()];
    if (before.search !== now.search || before.only !== now.only) {
      this.#asked = { ...this.#asked, first: 0 };
      this.#isNewSearch = true;
      if (this.#scroll.current.getBoundingClientRect().top < 0) scrollTo(0, 0);
    }
    if (before.rule !== now.rule) {
      const isShown = this.#isListShown();
      // On a narrow screen the panel and the list take turns.
      if (wasShown && !isShown) {
        this.#listScroll = scroll;
        scrollTo(0, 0);
      } else if (!wasShown && isShown) {
        scrollTo(0, this.#listScroll);
      }
      const links = [...this.#scroll.current.querySelectorAll('tbody a')];
      const linkBefore = links.find((element) => element.textContent === before.rule);
      if (hadFocus && !now.rule) linkBefore?.focus({ preventScroll: true });
      else if (now.rule && !isShown) this.#focusPanel();
      this.#measureSoon();
    }
    this.#watch();
  }

  #params(params = this.props.params) {
    return Object.fromEntries(['search', 'only', 'rule'].map((name) => [name, params.get(name) ?? '']));
  }

  /** Asks the stream for the rules in view, some around them, and the one of the panel. */
  #watch() {
    const wanted = Object.entries(this.#params()).filter(([, value]) => value !== '');
    this.props.app.watch({ ...this.#asked, ...Object.fromEntries(wanted) });
  }

  #receive(event) {
    const { rule, search, only } = this.#params();
    const before = this.#panel.name === rule ? this.#panel.shown : null;
    const shown = [event.selected, ...event.rules].find((each) => each?.name === rule);
    this.#panel = { name: rule, shown: shown ?? before, isMissing: !shown };
    const { matching } = event;
    // Only a new search is announced, because the number of rules that deny changes each second.
    const said = this.#isNewSearch ? { said: search || only ? `${foundOf(event, true)} found` : '' } : {};
    this.#isNewSearch = false;
    this.setState({ event, matching, ...said }, () => this.#measure());
  }

  #isListShown() {
    return this.#scroll.current.offsetParent !== null;
  }

  #measureSoon = () => {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#measure());
  };

  /** Asks for other rules once they come into view. */
  #measure() {
    if (!this.#isListShown()) return;
    const list = this.#scroll.current;
    const rowHeight = list.querySelector('tbody tr')?.getBoundingClientRect().height || this.state.rowHeight;
    if (rowHeight !== this.state.rowHeight) this.setState({ rowHeight });
    const { matching } = this.state;
    const hidden = Math.max(0, -list.getBoundingClientRect().top);
    const size = Math.min(MOST, Math.ceil(window.innerHeight / rowHeight) + 1 + 2 * MARGIN);
    const start = Math.max(0, Math.min(Math.floor(hidden / rowHeight) - MARGIN, matching - size));
    const { first, count: asked } = this.#asked;
    if (start < first || Math.min(start + size, matching) > first + asked || size > asked) {
      this.#asked = { first: start, count: size };
      clearTimeout(this.#watchTimer);
      this.#watchTimer = setTimeout(() => this.#watch(), DEBOUNCE);
    }
  }

  /** Shows a rule that a link names in the list, too. */
  async #scrollToRule(name) {
    try {
      const { rules } = await api.loadRules();
      const at = rules.findIndex((rule) => rule.name === name);
      if (at < 0 || !this.#isListShown()) return;
      const { rowHeight, matching } = this.state;
      const top = this.#scroll.current.getBoundingClientRect().top + window.scrollY;
      const bottom = top + (at + 1) * rowHeight;
      if (bottom < window.scrollY + window.innerHeight) return;
      this.setState({ matching: Math.max(matching, at + 1) }, () => {
        scrollTo(0, bottom - window.innerHeight / 2);
        this.#measure();
      });
    } catch {
      // The panel with the rule says what is wrong.
    }
  }

  #focusPanel() {
    this.#side.current.querySelector('h2')?.focus();
  }

  render({ app }, { event, said, matching, rowHeight }) {
    const { search, only, rule: selected } = this.#params();
    const panel = this.#panel.name === selected ? this.#panel : { name: selected };
    const goTo = (change, options) => go(link('rules', { ...this.#params(), ...change }), options);
    const isUncounted = Boolean(event) && !event.sum;
    const { first, rules } = event ?? { first: 0, rules: [] };
    const [above, below] = [first, Math.max(0, matching - first - rules.length)].map((rows) => `${rows * rowHeight}px`);
    const href = (name) => link('rules', { search, only, rule: name });
    const row = (rule, at) => {
      const [isSelected, isMember] = [rule.name === selected, rules[at - 1]?.stack];
      return { ...rule, position: first + at, isSelected, isMember, href };
    };
    const columns = isUncounted ? COLUMNS : [...COLUMNS, ...COUNT_COLUMNS];
    return html`
      <div class="head">
        <h1 id="rules-title">Rules</h1>
        ${!isUncounted && html`<div class="sum" id="sum">${event && html`<${Sum} ...${event} />`}</div>`}
      </div>
      ${isUncounted && html`<p class="note" id="no-counts">${NO_COUNTS}</p>`}
      <div class="tools">
        <${Filters} search=${search} only=${only} isCounted=${!isUncounted} goTo=${goTo} />
        <p class="found">${event && foundOf(event, search || only)}</p>
        <p class="unseen" role="status">${said}</p>
      </div>
      <div class="split ${selected ? 'open' : ''} ${isUncounted ? 'uncounted' : ''}">
        <section class="list" aria-labelledby="rules-title">
          <div ref=${this.#scroll} style=${{ paddingTop: above, paddingBottom: below }}>
            <${Table} kind="rules" aria-labelledby="rules-title" aria-rowcount=${event && event.matching + 1}
              onkeydown=${onKey} attributes=${attributesOf} columns=${columns} rows=${rules.map(row)} />
            ${event && matching === 0 && html`<p class="empty">No rule matches.</p>`}
          </div>
        </section>
        <div class="side" ref=${this.#side}>
          ${selected &&
          html`
            <${RulePanel} key=${selected} ...${panel} version=${event?.version} hasTop=${app.session.server.top}
              onClose=${() => goTo({ rule: '' })} />
          `}
        </div>
      </div>
    `;
  }
}

/** Says how many rules there are, or how many of them match. */
function foundOf({ matching, total }, isFiltered) {
  return isFiltered ? `${count(matching, 'rule')} of ${number(total)}` : count(total, 'rule');
}

/** Moves between rules with the arrow keys. */
function onKey(event) {
  const step = { ArrowDown: 'nextElementSibling', ArrowUp: 'previousElementSibling' }[event.key];
  const next = event.target.closest('tbody tr')?.[step];
  const target = next?.querySelector('a');
  if (!target || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  target.focus({ preventScroll: true });
  next.scrollIntoView({ block: 'nearest' });
}

/** The figures of all rules together. */
function Sum({ sum: { hits, denied, canaryDenied }, denying }) {
  // Many servers have no canaries. Once there were some, the figure stays, so that nothing moves.
  const hadCanaries = useRef(false);
  hadCanaries.current ||= canaryDenied > 0;
  const figure = (name, value, text) => html`
    <div class="figure ${name} ${value > 0 ? 'active' : ''}"><b>${number(value)}</b> <span>${text}</span></div>
  `;
  return html`
    ${figure('denying', denying, denying === 1 ? 'rule denies now' : 'rules deny now')}
    ${figure('denied', denied, 'denied/s')} ${figure('hits', hits, 'hits/s')}
    ${hadCanaries.current && figure('canary', canaryDenied, 'canary denials/s')}
  `;
}

function Filters({ search: asked, only, isCounted, goTo }) {
  const field = useFieldText(asked);
  const timer = useRef();
  const searchSoon = () => {
    clearTimeout(timer.current);
    const search = () => field.current && goTo({ search: field.current.value }, { replace: true });
    timer.current = setTimeout(search, DEBOUNCE);
  };
  return html`
    <form class="filters" role="search" onsubmit=${(event) => event.preventDefault()}>
      <label for="search" class="unseen">Search rules</label>
      <input type="search" id="search" ref=${field} placeholder="Label, operation or comment" autocomplete="off"
        spellcheck=${false} oninput=${searchSoon} />
      <label class="check" hidden=${!isCounted}>
        <input type="checkbox" id="only-denied" checked=${only === 'denied'}
          onchange=${(event) => goTo({ only: event.target.checked ? 'denied' : '' })} />
        Only rules that denied in the last minute
      </label>
    </form>
  `;
}

function attributesOf({ position, isSelected, stack, isMember }) {
  const states = [isSelected && 'selected', stack && 'continues', isMember && 'member'].filter(Boolean);
  return { key: position, class: states.join(' '), 'aria-rowindex': position + 2 };
}

function RuleCell({ name, operation, isSelected, href, canary, stack, algorithm }) {
  const shown = operation === 'default' || !operation ? 'every other request' : operation;
  return html`
    <div class="line">
      <a class="name" href=${href(name)} aria-current=${isSelected ? 'true' : null}>${name}</a>
      <span class="chips">
        ${canary && html`<span class="chip canary" title="Counts, and denies nothing">canary</span>`}
        ${stack && html`<span class="chip" title="The next rule that matches must allow, too">and</span>`}
        ${algorithm === 'concurrency' && html`<span class="chip" title=${LEASES}>leases</span>`}
      </span>
    </div>
    <code class="operation" title=${shown}>${shown}</code>
  `;
}

function LimitCell({ limit, actorField, actorPrefix }) {
  const networks = actorPrefix ? `, networks of ${actorPrefix}` : '';
  const actor = actorField ? `by ${actorField}${networks}` : 'one counter for all';
  return html`
    <span class="what" title=${limit}>${limit}</span>
    <span class="more" hidden=${limit.startsWith('always')}>${actor}</span>
  `;
}

function Chart({ canary, history: { hits, denied } }) {
  const words = canary ? 'would be denied' : 'denied';
  const [allHits, allDenied, most] = [sum(hits), sum(denied), Math.max(0, ...hits)].map(number);
  const label = `Last minute: ${allHits} hits, ${allDenied} ${words}, at most ${most} hits a second`;
  return html`<${Spark} area=${hits} bars=${denied} canary=${canary} label=${label} />`;
}

/** A count of the last second, and those of the last minute. */
function Count({ now, series, style }) {
  const all = sum(series);
  return html`
    <b class=${now === 0 ? 'none' : style}>${number(now)}</b>
    <span class="more ${all > 0 ? style : ''}">${number(all)}/min</span>
  `;
}

const COLUMNS = [
  ['#', 'place', ({ index }) => number(index + 1)],
  ['Rule', 'rule', (rule) => html`<${RuleCell} ...${rule} />`],
  ['Limit', 'limit', (rule) => html`<${LimitCell} ...${rule} />`],
];
const COUNT_COLUMNS = [
  ['Last minute', 'chart', (rule) => html`<${Chart} ...${rule} />`],
  ['Hits/s', 'hits', ({ hits, history }) => html`<${Count} now=${hits} series=${history.hits} style="" />`],
  ['Denied/s', 'denied', ({ denied, history, canary }) => html`
    <${Count} now=${denied} series=${history.denied} style=${canary ? 'canary-some' : 'some'} />
  `],
];
