/** An operation, the rule that answers it, why others do not, and what their counters have left now. */

import * as api from './api.js';
import { h, refresh, replace, setText } from './dom.js';
import { explained, mismatches } from './explain_list.js';
import { counterStates } from './counter_states.js';
import { count, duration, list, number } from './format.js';
import { parse } from './operation.js';
import * as policy from './policy.js';
import { questionForm } from './question.js';
import { go, link } from './route.js';
import { may } from './session.js';
import { viewHead } from './view_head.js';

/** Findings about rules that do not match. */
const MISMATCHES = ['key-missing', 'value-differs', 'condition-fails'];

/** Pause between two looks at the counters (ms). */
const PAUSE = 2000;
/** Age after which the rules are explained again (ms). An explanation of many rules is long, and seldom changes. */
const MAX_AGE = 30_000;

export function mount(host, app) {
  const view = new ExplainView(host, app);
  return {
    update: (params) => view.update(params),
    receive: (name) => name === 'reloads' && view.reload(),
    close: () => view.close(),
  };
}

class ExplainView {
  #app;
  #text = null;
  #input;
  #verdict = h('div', { class: 'verdict', id: 'verdict' });
  #said = h('p', { class: 'unseen', role: 'status' });
  #matching = h('div', { id: 'matching' });
  #others = h('div', {});
  /** The last explanation, and when it was made. */
  #known = null;
  #abort = null;
  #timer = null;

  constructor(host, app) {
    this.#app = app;
    const { form, input } = questionForm({
      id: 'operation',
      label: 'Operation',
      placeholder: 'method=GET path=/status ip=192.0.2.7',
      button: 'Explain',
      onsubmit: (event) => this.#submit(event),
    });
    this.#input = input;
    host.append(
      viewHead(
        'Explain',
        'Which rule answers a request, why the others do not, and what is left now. Nothing is taken.',
      ),
      form,
      this.#said,
      this.#verdict,
      this.#matching,
      this.#others,
    );
  }

  update(params) {
    const text = params.get('op') ?? '';
    if (text === this.#text) return;
    this.#text = text;
    if (this.#input.value !== text) this.#input.value = text;
    if (text === '') this.#input.focus({ preventScroll: true });
    this.#ask(true);
  }

  /** The rules have changed. */
  reload() {
    this.#known = null;
    if (this.#text) this.#ask(false);
  }

  close() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
  }

  #submit(event) {
    event.preventDefault();
    const text = this.#input.value.trim();
    if (text === this.#text) this.#ask(true);
    else go(link('explain', { op: text }));
  }

  async #ask(isNew) {
    this.close();
    if (!this.#text) {
      this.#show(null);
      return;
    }
    const abort = (this.#abort = new AbortController());
    try {
      const pairs = parse(this.#text);
      const operation = Object.fromEntries(pairs);
      const { found, named } = await this.#explain(operation, abort.signal, isNew);
      const [answer, states] = await Promise.all([
        this.#peek(operation, abort.signal),
        counterStates(found, named, pairs, abort.signal),
      ]);
      if (abort !== this.#abort) return;
      this.#show({ found, named, answer, states });
      if (isNew) setText(this.#said, this.#verdict.textContent);
    } catch (error) {
      if (error.name === 'AbortError' || abort !== this.#abort) return;
      this.#show(null);
      replace(this.#verdict, h('p', { class: 'error', role: 'alert', id: 'explain-error' }, error.message));
      const mayPass = error.status === 0 || error.status >= 500;
      if (!mayPass) return;
    }
    this.#timer = setTimeout(() => this.#again(), PAUSE);
  }

  async #explain(operation, signal, isNew) {
    if (isNew || !this.#known || Date.now() >= this.#known.until) {
      const [{ rules: found }, { named }] = await Promise.all([
        api.post('/v1/explain', { operation }, signal),
        policy.load(),
      ]);
      const now = Date.now();
      // The explanation is wrong once an override has ended.
      const ends = found.map(({ grants }) => grants?.override?.endsIn).filter((seconds) => typeof seconds === 'number');
      this.#known = { found, named, at: now, until: now + Math.min(MAX_AGE, ...ends.map((seconds) => seconds * 1000)) };
    }
    const { found, named, at } = this.#known;
    return { found: found.map((rule) => later(rule, (Date.now() - at) / 1000)), named };
  }

  #again() {
    if (document.hidden) this.#timer = setTimeout(() => this.#again(), PAUSE);
    else this.#ask(false);
  }

  /** Asks what a hit would get. Only users who may send hits can ask. */
  async #peek(operation, signal) {
    if (!may(this.#app.session, 'hit')) return null;
    try {
      return await api.post('/v1/peek', { operation }, signal);
    } catch (error) {
      if (error.status === 409 || error.status === 403) return null;
      throw error;
    }
  }

  #show(result) {
    if (!result) {
      for (const element of [this.#verdict, this.#matching, this.#others]) element.replaceChildren();
      return;
    }
    const { found, named, states, answer } = result;
    const matching = found.filter(({ finding }) => !MISMATCHES.includes(finding));
    refresh(this.#verdict, verdict(result, matching));
    refresh(this.#matching, explained(matching, named, states, denyingOf(answer)));
    const others = found.filter((rule) => !matching.includes(rule));
    if (this.#others.dataset.of !== this.#text || this.#others.dataset.count !== String(others.length)) {
      this.#others.dataset.of = this.#text;
      this.#others.dataset.count = others.length;
      replace(this.#others, mismatches(others));
    }
  }
}

function verdict({ answer }, matching) {
  const last = matching[matching.length - 1];
  if (!last) return h('p', { class: 'big' }, 'No rule in your scope answers this operation.');
  if (last.finding === 'refuses')
    return [
      h('span', { class: 'pill bad' }, 'Error'),
      h('p', {}, h('b', {}, last.name), ` cannot count this operation: ${last.reason}`),
    ];
  if (!answer)
    return h('p', { class: 'big' }, h('b', {}, last.name), ' answers', matching.length > 1 ? ' last' : '', '.');
  const left = answer.limit > 0 ? `: ${number(answer.balance)} of ${count(answer.limit, 'credit')} left` : '';
  if (answer.allowed) {
    const isStack = matching.filter(({ finding }) => finding !== 'canary').length > 1;
    const words = isStack
      ? ['The least is left under ', h('b', {}, answer.rule)]
      : [h('b', {}, answer.rule), ' answers'];
    return [h('span', { class: 'pill ok' }, 'Allowed'), h('p', {}, words, left, more(answer), '.')];
  }
  const deny = [...denyingOf(answer)];
  if (answer.blocked) return blockedVerdict(answer, deny);
  const wait =
    answer.retryAfter === null
      ? ' Waiting does not help.'
      : ` The next hit is allowed in ${duration(answer.retryAfter)}.`;
  return [
    h('span', { class: 'pill bad' }, 'Denied'),
    h('p', {}, h('b', {}, list(deny)), deny.length > 1 ? ' deny it' : ' denies it', left, '.', wait),
  ];
}

/** Says why a blocked actor is denied, and for how long. */
function blockedVerdict({ blocked, retryAfter }, deny) {
  return [
    h('span', { class: 'pill bad' }, 'Denied'),
    h(
      'p',
      {},
      h('b', {}, list(deny)),
      deny.length > 1 ? ' deny it: the actor is blocked' : ' denies it: the actor is blocked',
      retryAfter === null ? ' until someone removes the block' : ` for another ${duration(retryAfter)}`,
      blocked.reason !== null && [', because of “', h('bdi', {}, blocked.reason), '”'],
      '.',
    ),
  ];
}

/** Returns a rule of an explanation, as it is after some seconds: a block or an allow ends sooner. */
function later(rule, seconds) {
  const override = rule.grants?.override;
  if (!override || override.endsIn === null) return rule;
  const endsIn = Math.max(0, override.endsIn - seconds);
  return { ...rule, grants: { ...rule.grants, override: { ...override, endsIn } } };
}

/** Returns the rules that deny. */
function denyingOf(answer) {
  if (!answer || answer.allowed) return new Set();
  return new Set(answer.violatedPolicies ?? [answer.rule]);
}

function more(answer) {
  return answer.reset > 0 ? `, more in ${duration(answer.reset)}` : '';
}
