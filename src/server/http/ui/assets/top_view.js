/** The actors who take the most under a rule, and those who are denied the most. */

import { h, replace } from './dom.js';
import { actorFields } from './operation.js';
import * as policy from './policy.js';
import { go, link } from './route.js';
import { topList } from './top_list.js';
import { viewHead } from './view_head.js';

const COUNT = 50;
/** Names that the field for the rule suggests. */
const SUGGESTED = 500;

export function mount(host, app) {
  const view = new TopView(host, app);
  return { update: (params) => view.update(params), close: () => view.close() };
}

class TopView {
  #list = null;
  /** Parameters of the list; null once the view is closed. */
  #params = null;
  #rule;
  #names = h('datalist', { id: 'rule-names' });
  #form;
  #result = h('div', { class: 'card', id: 'top-result' });

  constructor(host) {
    this.#rule = h('input', {
      id: 'top-rule',
      list: 'rule-names',
      autocomplete: 'off',
      spellcheck: 'false',
      onchange: () => this.#go(),
    });
    const radio = (name, value, text) =>
      h('label', { class: 'check' }, h('input', { type: 'radio', name, value, onchange: () => this.#go() }), text);
    this.#form = h(
      'form',
      {
        class: 'filters',
        onsubmit: (event) => {
          event.preventDefault();
          this.#go();
        },
      },
      h('div', { class: 'field inline' }, h('label', { for: 'top-rule' }, 'Rule'), this.#rule, this.#names),
      h(
        'fieldset',
        {},
        h('legend', { class: 'unseen' }, 'Order'),
        radio('order', 'denied', 'Denied'),
        radio('order', 'taken', 'Taken'),
      ),
      h(
        'fieldset',
        {},
        h('legend', { class: 'unseen' }, 'Time'),
        radio('last', '60', 'Last minute'),
        radio('last', '3600', 'Last hour'),
      ),
    );
    host.append(
      viewHead('Top actors', 'Who is denied the most, and who takes the most, under one rule.'),
      this.#form,
      this.#result,
    );
  }

  async update(params) {
    this.close();
    this.#params = params;
    const [order, last] = [
      params.get('order') === 'taken' ? 'taken' : 'denied',
      params.get('last') === '3600' ? 3600 : 60,
    ];
    this.#form.elements.order.value = order;
    this.#form.elements.last.value = String(last);
    try {
      const { rules, named } = await policy.load();
      if (this.#params !== params) return;
      const counting = rules.filter((rule) => actorFields(rule).length > 0);
      this.#suggest(counting);
      const name = params.get('rule') || counting[0]?.name || '';
      this.#rule.value = name;
      this.#show(named.get(name), name, order, last);
    } catch (error) {
      replace(this.#result, h('p', { class: 'error' }, error.message));
    }
  }

  close() {
    this.#params = null;
    this.#list?.close();
    this.#list = null;
  }

  #suggest(rules) {
    replace(
      this.#names,
      rules.slice(0, SUGGESTED).map((rule) => h('option', { value: rule.name })),
    );
  }

  #show(rule, name, order, last) {
    this.close();
    if (!rule) {
      replace(
        this.#result,
        h(
          'p',
          { class: 'hint' },
          name ? 'No rule in force has this name, or it is outside your scope.' : 'No rule counts by actor.',
        ),
      );
      return;
    }
    this.#list = topList({ rule: name, order, last, count: COUNT, fields: actorFields(rule) });
    replace(this.#result, this.#list.element);
  }

  #go() {
    const { order, last } = this.#form.elements;
    go(link('top', { rule: this.#rule.value, order: order.value, last: last.value }));
  }
}
