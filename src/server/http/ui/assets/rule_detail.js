/** The panel about one rule: what it is, what it does, and whom it denies. */

import { copyText, disclosure } from './copy_text.js';
import { h, replace, setText } from './dom.js';
import { number, percent } from './format.js';
import { actorFields } from './operation.js';
import * as policy from './policy.js';
import { link } from './route.js';
import * as rulesFile from './rules_file.js';
import { RuleCounters } from './rule_counters.js';
import { nextHistory, Spark } from './spark.js';
import { topList } from './top_list.js';

const POLICIES = {
  stop: 'The first rule that matches answers: no rule below is asked.',
  and: 'This rule must allow, and so must the next rule that matches.',
  canary: 'A canary counts hits and takes credits, but denies nothing.',
};

export class RuleDetail {
  #name;
  #app;
  #rule = null;
  #past = null;
  #charts = h('div', { class: 'charts' });
  #facts = h('dl', { class: 'facts' });
  #who = h('div', {});
  #more = h('div', { class: 'parts' });
  #comment = h('p', { class: 'comment', hidden: true });
  #operation = h('code', { class: 'operation whole' });
  #sparks = new Map();
  #closers = [];
  #isClosed = false;

  constructor(name, app, onClose) {
    this.#name = name;
    this.#app = app;
    this.element = h(
      'aside',
      {
        class: 'card detail',
        'aria-labelledby': 'detail-title',
        onkeydown: (event) => event.key === 'Escape' && onClose(),
      },
      h(
        'div',
        { class: 'detail-head' },
        h('h2', { id: 'detail-title', tabindex: -1 }, name),
        h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close the panel', onclick: onClose }, '✕'),
      ),
      this.#operation,
      this.#comment,
      this.#charts,
      this.#who,
      this.#facts,
      this.#more,
    );
    this.#loadParts();
  }

  close() {
    this.#isClosed = true;
    this.#closeParts();
  }

  focus() {
    this.element.querySelector('h2').focus();
  }

  #closeParts() {
    for (const close of this.#closers.splice(0)) close();
  }

  receive(rule) {
    if (!rule) {
      const gone = 'This rule is no longer in force, or no longer in your scope.';
      setText(this.#operation, this.#rule ? gone : 'No rule in force has this name, or it is outside your scope.');
      return;
    }
    const isNew = rule.limit !== undefined;
    if (isNew && this.#rule) this.#loadParts();
    this.#rule = { ...this.#rule, ...rule };
    this.#past = nextHistory(this.#past, rule);
    if (isNew) this.#showFacts(this.#rule);
    this.#showCharts();
  }

  #showFacts(rule) {
    setText(this.#operation, `[${rule.operation || 'default'}]`);
    setText(this.#comment, rule.comment ?? '');
    this.#comment.hidden = !rule.comment;
    const where = rule.file ? `${rule.file}, line ${rule.line}` : rule.line ? `line ${rule.line}` : null;
    const match = rule.canary ? 'canary' : rule.stack ? 'and' : 'stop';
    replace(
      this.#facts,
      [
        ['Limit', rule.limit],
        ['Only for', rule.conditions.join('; ')],
        ['Counts by', rule.actorField ?? 'one counter for all requests'],
        ['Networks of', rule.actorPrefix],
        ['Algorithm', rule.algorithm],
        ['Penalty', rule.penalty],
        ['Policy', POLICIES[match]],
        ['Place', `rule ${number(rule.index + 1)}${where ? ` · ${where}` : ''}`],
      ]
        .filter(([, text]) => text)
        .map(([term, text]) => h('div', {}, h('dt', {}, term), h('dd', {}, text))),
    );
  }

  #showCharts() {
    this.#charts.hidden = this.#rule.hits === undefined;
    if (this.#charts.hidden) return;
    const past = this.#past;
    const denials = this.#rule.canary ? ['canaryDenied', 'Would be denied'] : ['denied', 'Denied'];
    for (const [series, title] of [['hits', 'Hits'], denials]) {
      const chart = this.#sparks.get(series) ?? this.#addChart(series, title);
      const [values, sum] = [past.series[series], past.sum(series)];
      const now = values[values.length - 1] ?? 0;
      setText(chart.now, `${number(now)}/s`);
      const share = series === 'hits' ? '' : ` (${percent(sum, past.sum('hits'))})`;
      setText(chart.sum, `${number(sum)} in the last minute${share}, at most ${number(past.peak(series))}/s`);
      const shape = series === 'hits' ? { area: values } : { bars: values, canary: this.#rule.canary };
      chart.spark.draw(shape);
    }
  }

  #addChart(series, title) {
    const chart = {
      spark: new Spark({ height: 24, label: false }),
      now: h('b', {}),
      sum: h('span', { class: 'more' }),
    };
    this.#sparks.set(series, chart);
    this.#charts.append(
      h(
        'figure',
        { class: `figure-chart ${series}` },
        h('figcaption', {}, h('span', {}, title), chart.now),
        chart.spark.element,
        chart.sum,
      ),
    );
    return chart;
  }

  async #loadParts() {
    try {
      const { named } = await policy.load();
      const rule = named.get(this.#name);
      if (rule && !this.#isClosed) this.#showParts(rule);
    } catch (error) {
      replace(this.#more, h('p', { class: 'error' }, error.message));
    }
  }

  #showParts(rule) {
    this.#closeParts();
    const fields = actorFields(rule);
    const parts = [];
    if (policy.counts(rule)) {
      const counters = new RuleCounters(rule, this.#app);
      this.#closers.push(() => counters.close());
      parts.push(counters.element);
    }
    if (fields.length > 0 && this.#app.session.server.top) replace(this.#who, this.#whom(rule, fields));
    parts.push(disclosure('This rule as text', () => this.#text(rule)));
    replace(this.#more, parts);
  }

  /** Lists the actors that the rule denies the most. */
  #whom(rule, fields) {
    const top = topList({ rule: rule.name, order: 'denied', last: 60, count: 5, fields });
    this.#closers.push(top.close);
    return h(
      'section',
      { 'aria-labelledby': 'whom-title' },
      h(
        'div',
        { class: 'part-head' },
        h('h3', { id: 'whom-title' }, rule.matchPolicy === 'canary' ? 'Would be denied the most' : 'Denied the most'),
        h('a', { href: link('top', { rule: rule.name, order: 'denied', last: 60 }) }, 'More'),
      ),
      top.element,
    );
  }

  #text(rule) {
    const format = rulesFile.formatOf(this.#rule?.file);
    const text = rulesFile.write(rule, format) ?? rulesFile.write(rule, 'json');
    return [
      copyText(text, 'This rule as text'),
      h(
        'p',
        { class: 'hint' },
        'The file is the policy, so this page does not edit it. To limit one actor, look at the actor: its dialog offers a rule to copy.',
      ),
    ];
  }
}
