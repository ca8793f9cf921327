/** Counters and limits of the actors of one rule, a page at a time. For rules that limit concurrency: the leases in use. */

import * as api from './api.js';
import { actorLink } from './actor_link.js';
import { disclosure } from './copy_text.js';
import { h, refresh, replace } from './dom.js';
import { count, duration, number } from './format.js';
import { actorFields } from './operation.js';
import { overrideLists } from './override_lists.js';
import { pagedList } from './paged_list.js';
import * as policy from './policy.js';

const PAGE = 20;
/** Pause between two looks at the leases, and at a counter that all share (ms). */
const PAUSE = 3000;

export class RuleCounters {
  #rule;
  #fields;
  #abort = new AbortController();
  #timer = null;

  constructor(rule, app) {
    this.#rule = rule;
    this.#fields = actorFields(rule);
    this.element = h('div', { class: 'parts' });
    const isConcurrency = rule.algorithm === 'concurrency';
    const live = h('div', {});
    if (isConcurrency || this.#fields.length === 0) {
      this.element.append(h('section', {}, h('h3', {}, isConcurrency ? 'Leases in use' : 'Left now'), live));
      this.#refresh(live, isConcurrency);
    }
    if (this.#fields.length > 0 && !isConcurrency)
      this.element.append(
        disclosure('Counters', () => [this.#pages('/v1/counters', 'counters', counterRow(this.#fields, rule))]),
      );
    if (policy.isNamed(rule) && app.session.can.includes('read')) {
      this.element.append(
        disclosure('Limits of single actors', () => [this.#pages('/v1/limits', 'limits', limitRow(this.#fields))]),
        ...overrideLists({
          rule: rule.name,
          fieldsOf: () => this.#fields,
          session: app.session,
          signal: this.#abort.signal,
        }),
      );
    }
  }

  close() {
    clearTimeout(this.#timer);
    this.#abort.abort();
  }

  async #refresh(element, isConcurrency) {
    try {
      if (!document.hidden) {
        const page = await api.get('/v1/counters', { rule: this.#rule.name, count: PAGE }, this.#abort.signal);
        refresh(element, isConcurrency ? this.#leases(page, await this.#ownLimits()) : this.#shared(page));
      }
    } catch (error) {
      if (error.name === 'AbortError') return;
      replace(element, h('p', { class: 'error' }, error.message));
    }
    this.#timer = setTimeout(() => this.#refresh(element, isConcurrency), PAUSE);
  }

  /** What is left of the one counter of a rule without actors. */
  #shared({ counters: [counter] }) {
    const whole = policy.capacity(this.#rule);
    if (!counter) return h('p', {}, h('b', {}, number(whole)), ' of ', number(whole));
    return h(
      'p',
      {},
      h('b', { class: counter.remaining === 0 ? 'some' : '' }, number(counter.balance)),
      ` of ${number(whole)}, more in ${duration(counter.reset)}`,
    );
  }

  /** Returns the credits of actors with a limit of their own, or null if there are too many of them. */
  async #ownLimits() {
    if (!policy.isNamed(this.#rule)) return new Map();
    const { limits, next } = await api.get('/v1/limits', { rule: this.#rule.name, count: 1000 }, this.#abort.signal);
    return next ? null : new Map(limits.map(({ actor, credits }) => [actor, credits]));
  }

  #leases({ counters, next }, own) {
    if (counters.length === 0 && !next) return h('p', { class: 'hint' }, 'No lease is in use.');
    const rows = counters.map(({ actor, balance, remaining, reset }) => {
      const whole = own?.get(actor) ?? this.#rule.creditLimit;
      return h(
        'tr',
        {},
        h('td', {}, actorLink(this.#fields, actor)),
        h('td', { class: 'number' }, own ? `${number(whole - balance)} of ${number(whole)}` : '–'),
        h('td', { class: `number ${remaining === 0 ? 'some' : ''}` }, number(remaining)),
        h('td', { class: 'number' }, duration(reset)),
      );
    });
    return [
      table(['Actor', 'In use', 'Free', 'Next ends in'], rows),
      next && h('p', { class: 'hint' }, `The first ${count(counters.length, 'actor')}.`),
    ];
  }

  #pages(path, member, row) {
    return pagedList({ path, query: { rule: this.#rule.name }, member, row, signal: this.#abort.signal });
  }
}

function counterRow(fields, rule) {
  const whole = policy.capacity(rule);
  return {
    columns: [
      ['', 'Actor'],
      ['number', 'Left'],
      ['number', 'More in'],
    ],
    none: 'Every actor has all of its credits.',
    of: ({ actor, balance, remaining, reset }) =>
      h(
        'tr',
        {},
        h('td', {}, actorLink(fields, actor)),
        h(
          'td',
          { class: 'number' },
          h('span', { class: remaining === 0 ? 'some' : '' }, number(balance)),
          ` / ${number(whole)}`,
        ),
        h('td', { class: 'number' }, duration(reset)),
      ),
  };
}

function limitRow(fields) {
  return {
    columns: [
      ['', 'Actor'],
      ['number', 'Credits'],
      ['number', 'Ends in'],
    ],
    none: 'No actor has a limit of its own under this rule.',
    of: ({ actor, credits, expiresIn }) =>
      h(
        'tr',
        {},
        h('td', {}, actorLink(fields, actor)),
        h('td', { class: 'number' }, number(credits)),
        h('td', { class: 'number' }, expiresIn === null ? 'never' : duration(expiresIn)),
      ),
  };
}

function table(columns, rows) {
  return h('table', { class: 'plain' }, h('thead', {}, h('tr', {}, columns.map(heading))), h('tbody', {}, rows));
}

function heading(text, at) {
  return h('th', { scope: 'col', class: at > 0 ? 'number' : null }, text);
}
