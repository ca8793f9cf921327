/** One actor: what it has used and has left under each rule, and what may be changed about it. */

import * as api from './api.js';
import { actorTable, otherRules } from './actor_table.js';
import { h, refresh, replace, setText } from './dom.js';
import { actorFields, parse, SyntaxMistake, writeActor } from './operation.js';
import { overrideLists } from './override_lists.js';
import * as policy from './policy.js';
import { questionForm } from './question.js';
import { go, link } from './route.js';
import { may } from './session.js';
import { viewHead } from './view_head.js';

/** Pause between two looks (ms). */
const PAUSE = 3000;
const MISTAKE = 'Name the fields of the actor, as in user=ann or tenant=acme user=ann.';

export function mount(host, app) {
  const view = new ActorView(host, app);
  return {
    update: (params) => view.update(params),
    receive: (name, data) => view.receive(name, data),
    close: () => view.close(),
  };
}

class ActorView {
  #app;
  #text = null;
  #input;
  #said = h('p', { class: 'unseen', role: 'status' });
  #error = h('p', { class: 'error', role: 'alert', id: 'actor-error' });
  #result = h('div', { id: 'actor-result' });
  #others = h('div', { id: 'actor-others' });
  /** The actors that are blocked or allowed, while no actor is asked for. */
  #overrides = h('div', { id: 'actor-overrides', class: 'parts' });
  #lists = null;
  #abort = null;
  #timer = null;
  /** The actor and the rules of the list of other rules. */
  #shown = '';

  constructor(host, app) {
    this.#app = app;
    const { form, input } = questionForm({
      id: 'actor',
      label: 'Actor',
      placeholder: 'user=ann',
      button: 'Show',
      onsubmit: (event) => this.#submit(event),
    });
    this.#input = input;
    host.append(
      viewHead(
        'Actor',
        'What one actor has used and has left, under each rule. Give all fields of the rules’ actorField, and no others.',
      ),
      form,
      this.#said,
      this.#error,
      this.#result,
      this.#others,
      this.#overrides,
    );
  }

  update(params) {
    const text = params.get('q') ?? '';
    if (text === this.#text) return;
    this.#text = text;
    if (this.#input.value !== text) this.#input.value = text;
    if (text === '') this.#input.focus({ preventScroll: true });
    this.#shown = '';
    this.#load(true);
    this.#showOverrides();
  }

  receive(name) {
    if (name === 'reloads' && this.#text) this.#load(false);
  }

  close() {
    this.#stop();
    this.#lists?.abort();
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
  }

  /** Lists the actors that are blocked or allowed, to users who may read them. */
  async #showOverrides() {
    this.#lists?.abort();
    replace(this.#overrides);
    if (this.#text || !may(this.#app.session, 'read')) return;
    const lists = (this.#lists = new AbortController());
    const { named } = await policy.load().catch(() => ({ named: new Map() }));
    if (lists.signal.aborted) return;
    const fieldsOf = (rule) => (named.has(rule) ? actorFields(named.get(rule)) : null);
    replace(this.#overrides, overrideLists({ fieldsOf, session: this.#app.session, signal: lists.signal }));
  }

  #submit(event) {
    event.preventDefault();
    const text = this.#input.value.trim();
    if (text === this.#text) this.#load(true);
    else go(link('actor', { q: text }));
  }

  async #load(isNew) {
    this.#stop();
    if (isNew) {
      setText(this.#error, '');
      for (const element of [this.#result, this.#others]) element.replaceChildren();
    }
    if (!this.#text) return;
    const abort = (this.#abort = new AbortController());
    try {
      const pairs = readActor(this.#text);
      const [rules, status] = await Promise.all([this.#rules(), this.#status(pairs, abort.signal)]);
      if (abort !== this.#abort) return;
      this.#show(pairs, rules, status);
      setText(this.#error, '');
      if (isNew)
        setText(
          this.#said,
          status.rules.length
            ? `${writeActor(pairs)} has counters under ${status.rules.length} rules.`
            : `${writeActor(pairs)} has all credits.`,
        );
    } catch (error) {
      if (error.name === 'AbortError' || abort !== this.#abort) return;
      setText(this.#error, error.message);
      const mayPass = error.status === 0 || error.status >= 500;
      if (!mayPass) return;
    }
    this.#timer = setTimeout(() => this.#again(), PAUSE);
  }

  #again() {
    if (document.hidden || document.querySelector('dialog')) this.#timer = setTimeout(() => this.#again(), PAUSE);
    else this.#load(false);
  }

  /** Returns the rules in force, for users who may read them. */
  async #rules() {
    if (!this.#app.session.can.includes('read')) return [];
    return (await policy.load()).rules;
  }

  async #status(pairs, signal) {
    const query = [...pairs].map(([field, value]) => [field, value]);
    if (pairs.has('count') || pairs.has('cursor'))
      throw new SyntaxMistake('The fields count and cursor cannot be asked for here: use divvy actor in a shell.');
    return api.get('/v1/status', [...query, ['count', '1000']], signal);
  }

  #show(pairs, rules, status) {
    const actor = {
      pairs,
      shown: writeActor(pairs),
      rules: policy.rulesOfActor(rules, pairs),
      file: this.#app.rulesFile,
    };
    const onChange = () => this.#load(false);
    refresh(this.#result, actorTable(actor, status, this.#app.session, onChange));
    // The list of other rules may have a field that somebody is typing in.
    const others = JSON.stringify([actor.shown, actor.rules.length, status.rules.map(({ rule }) => rule)]);
    if (others === this.#shown) return;
    this.#shown = others;
    const open = this.#others.querySelector('details')?.open ?? false;
    refresh(this.#others, otherRules(actor, status, this.#app.session, onChange, open));
  }
}

function readActor(text) {
  const pairs = parse(text, { escapes: true });
  if (pairs.size === 0) throw new SyntaxMistake(MISTAKE);
  return pairs;
}
