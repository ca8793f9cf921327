/** A row of the table of rules. */

import { h, setAttribute, setText } from './dom.js';
import { number } from './format.js';
import { Spark, summary } from './spark.js';

export class RuleRow {
  #href;
  #place = h('td', { role: 'cell', class: 'place' });
  #name = h('a', { class: 'name' });
  #chips = h('span', { class: 'chips' });
  #operation = h('code', { class: 'operation' });
  #limit = h('span', { class: 'what' });
  #actor = h('span', { class: 'more' });
  #spark = new Spark();
  #hits = h('b', {});
  #hitsSum = h('span', { class: 'more' });
  #denied = h('b', {});
  #deniedSum = h('span', { class: 'more' });
  #shown = null;

  constructor(position, href) {
    this.#href = href;
    const cell = (name, ...children) => h('td', { role: 'cell', class: name }, ...children);
    this.element = h(
      'tr',
      { role: 'row', 'aria-rowindex': position + 2 },
      this.#place,
      cell('rule', h('div', { class: 'line' }, this.#name, this.#chips), this.#operation),
      cell('limit', this.#limit, this.#actor),
      cell('chart', this.#spark.element),
      cell('hits number', this.#hits, this.#hitsSum),
      cell('denied number', this.#denied, this.#deniedSum),
    );
  }

  /** Shows a rule; null while its figures are on their way. */
  show(rule, selected, isMember) {
    this.element.classList.toggle('loading', !rule);
    if (!rule) {
      if (this.#shown) this.#clear();
      return;
    }
    if (this.#isNew(rule)) this.#showRule(rule);
    this.#shown = rule;
    setAttribute(this.#name, 'href', this.#href(rule.name));
    this.element.classList.toggle('continues', Boolean(rule.stack));
    this.element.classList.toggle('member', isMember);
    this.mark(selected);
    this.#showFigures(rule);
  }

  mark(selected) {
    const isSelected = Boolean(selected) && this.#shown?.name === selected;
    this.element.classList.toggle('selected', isSelected);
    if (isSelected) this.#name.setAttribute('aria-current', 'true');
    else this.#name.removeAttribute('aria-current');
  }

  #isNew(rule) {
    const shown = this.#shown;
    return (
      !shown ||
      ['name', 'index', 'operation', 'limit', 'stack', 'canary'].some((member) => shown[member] !== rule[member])
    );
  }

  #showRule(rule) {
    setText(this.#place, number(rule.index + 1));
    setText(this.#name, rule.name);
    const operation = rule.operation === 'default' || !rule.operation ? 'every other request' : rule.operation;
    setText(this.#operation, operation);
    this.#operation.title = operation;
    setText(this.#limit, rule.limit ?? '');
    this.#limit.title = rule.limit ?? '';
    setText(this.#actor, rule.actorField ? `by ${rule.actorField}${rule.actorPrefix ? `, networks of ${rule.actorPrefix}` : ''}` : 'one counter for all');
    this.#actor.hidden = /^always/.test(rule.limit ?? '');
    this.#chips.replaceChildren(
      ...[
        rule.canary && h('span', { class: 'chip canary', title: 'Counts, and denies nothing' }, 'canary'),
        rule.stack && h('span', { class: 'chip', title: 'The next rule that matches must allow, too' }, 'and'),
        rule.algorithm === 'concurrency' && h('span', { class: 'chip', title: 'Limits requests in flight. Select the rule to see the leases in use.' }, 'leases'),
      ].filter(Boolean),
    );
  }

  /** Shows the counts, unless the user may not see those of all actors. */
  #showFigures(rule) {
    if (rule.hits === undefined) return;
    const series = rule.canary ? 'canaryDenied' : 'denied';
    const denied = rule[series] ?? 0;
    setText(this.#hits, number(rule.hits));
    setText(this.#hitsSum, `${number(rule.past.sum('hits'))}/min`);
    setText(this.#denied, number(denied));
    setText(this.#deniedSum, `${number(rule.past.sum(series))}/min`);
    const some = rule.canary ? 'canary-some' : 'some';
    this.#deniedSum.className = rule.past.sum(series) > 0 ? `more ${some}` : 'more';
    this.#hits.className = rule.hits === 0 ? 'none' : '';
    this.#denied.className = denied === 0 ? 'none' : rule.canary ? 'canary-some' : 'some';
    this.#spark.draw({
      area: rule.past.series.hits,
      bars: rule.past.series[series],
      canary: rule.canary,
      text: summary(rule.past, rule.canary),
    });
  }

  #clear() {
    this.#shown = null;
    for (const element of [
      this.#name,
      this.#operation,
      this.#limit,
      this.#actor,
      this.#hits,
      this.#hitsSum,
      this.#denied,
      this.#deniedSum,
      this.#place,
    ]) {
      setText(element, '');
    }
    this.#chips.replaceChildren();
    this.#name.removeAttribute('href');
    this.#spark.draw({});
  }
}
