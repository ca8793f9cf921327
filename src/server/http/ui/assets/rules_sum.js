/** The figures of all rules together, above their list. */

import { h, setText } from './dom.js';
import { number } from './format.js';

const FIGURES = [
  ['denying', 'rules deny now'],
  ['denied', 'denied/s'],
  ['hits', 'hits/s'],
  ['canary', 'canary denials/s'],
];

export class RulesSum {
  #figures = new Map();

  constructor() {
    this.element = h('div', { class: 'sum', id: 'sum' });
  }

  /** Shows the sums; nothing without them. */
  receive({ sum, denying }) {
    this.element.hidden = !sum;
    if (!sum) return;
    this.#show('denying', denying, denying === 1 ? 'rule denies now' : 'rules deny now');
    this.#show('denied', sum.denied);
    this.#show('hits', sum.hits);
    this.#show('canary', sum.canaryDenied);
  }

  #show(name, value, text) {
    const figure = this.#figures.get(name) ?? this.#add(name);
    setText(figure.firstChild, number(value));
    if (text) setText(figure.lastChild, text);
    figure.classList.toggle('active', value > 0);
    // Many servers have no canaries. Once there were some, the figure stays, so that nothing moves.
    if (value > 0) figure.hidden = false;
  }

  #add(name) {
    const [, text] = FIGURES.find(([candidate]) => candidate === name);
    const figure = h(
      'div',
      { class: `figure ${name}`, hidden: name === 'canary' },
      h('b', {}),
      ' ',
      h('span', {}, text),
    );
    this.#figures.set(name, figure);
    this.element.append(figure);
    return figure;
  }
}
