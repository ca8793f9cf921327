/** The actors who take the most under a rule, and those who are denied the most. */

import * as api from './api.js';
import { go, link, number, percent } from './format.js';
import { html, useEffect, useState } from './preact_htm.js';
import { actorFields } from './rule_text.js';
import { ActorLink, Meter, Table, useFieldText, usePolling, ViewHead } from './widgets.js';

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
  const choice = (legend, group, current, texts) => html`
    <fieldset>
      <legend class="unseen">${legend}</legend>
      ${Object.entries(texts).map(
        ([value, text]) => html`
          <label class="check">
            <input type="radio" name=${group} checked=${value === String(current)}
              onchange=${() => goTo({ [group]: value })} />${text}
          </label>
        `,
      )}
    </fieldset>
  `;
  const suggestion = (rule) => html`<option value=${rule.name}></option>`;
  const submit = (event) => {
    event.preventDefault();
    goTo();
  };
  const rule = rules?.named?.get(name);
  const reason = name ? 'No rule in force has this name, or it is outside your scope.' : 'No rule counts by actor.';
  return html`
    <${ViewHead} title="Top actors" lead="Who is denied the most, and who takes the most, under one rule." />
    <form class="filters" onsubmit=${submit}>
      <div class="field inline">
        <label for="top-rule">Rule</label>
        <input id="top-rule" ref=${field} list="rule-names" autocomplete="off" spellcheck=${false}
          onchange=${() => goTo()} />
        <datalist id="rule-names">${counting.slice(0, SUGGESTED).map(suggestion)}</datalist>
      </div>
      ${choice('Order', 'order', order, { denied: 'Denied', taken: 'Taken' })}
      ${choice('Time', 'last', last, { 60: 'Last minute', 3600: 'Last hour' })}
    </form>
    <div class="card" id="top-result">
      ${rules?.error && html`<p class="error">${rules.error.message}</p>`}
      ${rule && html`<${TopList} ...${{ rule, order, last }} count=${COUNT} />`}
      ${rules?.named && !rule && html`<p class="hint">${reason}</p>`}
    </div>
  `;
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
  const actor = ({ actor: name, cut, count }) => html`
    ${cut
      ? html`<code title="Only the beginning of the name is known">${`${name}…`}</code>`
      : html`<${ActorLink} fields=${fields} name=${name} />`}
    <${Meter} part=${count} whole=${top[0].count} state=${order === 'denied' ? 'bad' : 'ok'} />
  `;
  const counted = ({ count, error }) =>
    html`${number(count)}${error > 0 && html`<span class="more"> ± ${number(error)}</span>`}`;
  const columns = [
    ['#', 'place', (_, at) => at + 1],
    ['Actor', '', actor],
    [order === 'denied' ? 'Denied' : 'Credits taken', 'number', counted],
    total > 0 && ['Share', 'number', ({ count }) => percent(count, total)],
  ];
  return html`
    <${Table} columns=${columns} rows=${top} />
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
