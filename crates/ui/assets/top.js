/** The actors who take the most under a rule, and those who are denied the most. */

import * as api from './api.js';
import { Meter } from './charts.js';
import { go, link, number, percent } from './format.js';
import { actorFields } from './operation.js';
import { html, useEffect, useState } from './preact_htm.js';
import { ActorLink, Table, useFieldText, usePolling, ViewHead } from './widgets.js';

const COUNT = 50;
/** Names that the field for the rule suggests. */
const SUGGESTED = 500;
/** Pause between two questions (ms). */
const PAUSE = 5000;
const SPANS = { 60: 'minute', 3600: 'hour' };

export function Top({ params }) {
  const [rules, setRules] = useState(null);
  useEffect(() => {
    api.loadRules().then(setRules, (error) => setRules({ error }));
  }, [params]);
  const counting = rules?.rules?.filter((rule) => actorFields(rule).length > 0) ?? [];
  const order = params.get('order') === 'taken' ? 'taken' : 'denied';
  const last = params.get('last') === '3600' ? 3600 : 60;
  const name = params.get('rule') || (counting[0]?.name ?? '');
  const field = useFieldText(name);
  const goTo = (change = {}) => go(link('top', { rule: field.current.value, order, last, ...change }));
  const radio = (group, value, text, isChecked) => html`
    <label class="check">
      <input type="radio" name=${group} checked=${isChecked} onchange=${() => goTo({ [group]: value })} />${text}
    </label>
  `;
  const suggestion = (rule) => html`<option value=${rule.name}></option>`;
  const submit = (event) => {
    event.preventDefault();
    goTo();
  };
  return html`
    <${ViewHead} title="Top actors" lead="Who is denied the most, and who takes the most, under one rule." />
    <form class="filters" onsubmit=${submit}>
      <div class="field inline">
        <label for="top-rule">Rule</label>
        <input id="top-rule" ref=${field} list="rule-names" autocomplete="off" spellcheck=${false}
          onchange=${() => goTo()} />
        <datalist id="rule-names">${counting.slice(0, SUGGESTED).map(suggestion)}</datalist>
      </div>
      <fieldset>
        <legend class="unseen">Order</legend>
        ${radio('order', 'denied', 'Denied', order === 'denied')} ${radio('order', 'taken', 'Taken', order === 'taken')}
      </fieldset>
      <fieldset>
        <legend class="unseen">Time</legend>
        ${radio('last', '60', 'Last minute', last === 60)} ${radio('last', '3600', 'Last hour', last === 3600)}
      </fieldset>
    </form>
    <div class="card" id="top-result">
      ${rules?.error && html`<p class="error">${rules.error.message}</p>`}
      ${rules?.named && html`<${Result} rule=${rules.named.get(name)} ...${{ name, order, last }} />`}
    </div>
  `;
}

function Result({ rule, name, order, last }) {
  if (rule) return html`<${TopList} ...${{ rule, order, last }} count=${COUNT} />`;
  const reason = name ? 'No rule in force has this name, or it is outside your scope.' : 'No rule counts by actor.';
  return html`<p class="hint">${reason}</p>`;
}

/**
 * The first actors of one rule.
 * @param {{rule: object, order: 'denied'|'taken', last: 60|3600, count: number}} props
 */
export function TopList({ rule, order, last, count }) {
  const query = { rule: rule.name, order, last, count };
  const question = JSON.stringify(query);
  const ask = (signal) => api.get('/v1/top', query, signal);
  const [{ question: answered, answer, error }] = usePolling({ question, ask, pause: PAUSE, area: '.top-list' });
  let shown = html`<p class="hint">Loading…</p>`;
  if (answered === question && error) shown = html`<p class="error">${error.message}</p>`;
  else if (answered === question) shown = html`<${Ranking} reply=${answer} fields=${actorFields(rule)} />`;
  return html`<div class="top-list">${shown}</div>`;
}

function Ranking({ reply, fields }) {
  const { top, order, total, sampled } = reply;
  if (top.length === 0) return html`<p class="hint">${nobody(reply)}</p>`;
  const counted = order === 'denied' ? 'Denied' : 'Credits taken';
  const columns = { '#': 'place', Actor: '', [counted]: 'number', ...(total > 0 ? { Share: 'number' } : {}) };
  const row = ({ actor, cut, count, error }, at) => html`
    <tr>
      <td class="place">${at + 1}</td>
      <td class="who">
        ${cut
          ? html`<code title="Only the beginning of the name is known">${`${actor}…`}</code>`
          : html`<${ActorLink} fields=${fields} name=${actor} />`}
        <${Meter} part=${count} whole=${top[0].count} kind="share" state=${order === 'denied' ? 'bad' : 'ok'} />
      </td>
      <td class="number">${number(count)}${error > 0 && html`<span class="more"> ± ${number(error)}</span>`}</td>
      ${total > 0 && html`<td class="number">${percent(count, total)}</td>`}
    </tr>
  `;
  return html`
    <${Table} columns=${columns}>${top.map(row)}<//>
    ${sampled && html`<p class="hint">This server was busy, so these are estimates: ± holds for 95 % of them.</p>`}
  `;
}

function nobody({ order, last, hasRoom, total }) {
  if (hasRoom === false) return 'The memory for ranking actors (--top-memory) is in use by other rules.';
  const span = `in the last ${SPANS[last]}`;
  // Without a total, only one actor is in the user's scope.
  if (total === null) return `Your actor ${order === 'denied' ? 'was not denied' : 'took no credits'} ${span}.`;
  return `Nobody ${order === 'denied' ? 'was denied' : 'took credits'} ${span}.`;
}
