/** The panel about one rule: what it is, what it does, and whom it denies. */

import * as api from './api.js';
import { Spark } from './charts.js';
import { count, duration, link, number, percent } from './format.js';
import { actorFields } from './operation.js';
import { OverrideLists } from './overrides.js';
import { html, useEffect, useState } from './preact_htm.js';
import * as rulesFile from './rules_file.js';
import { TopList } from './top.js';
import { ActorLink, CopyText, Disclosure, PagedList, Table, usePolling } from './widgets.js';

const POLICIES = {
  stop: 'The first rule that matches answers: no rule below is asked.',
  and: 'This rule must allow, and so must the next rule that matches.',
  canary: 'A canary counts hits and takes credits, but denies nothing.',
};
/** Rows of a table that is asked for again and again. */
const ROWS = 20;
/** Pause between two looks at the leases, and at a counter that all share (ms). */
const PAUSE = 3000;
const TEXT_HINT =
  'The file is the policy, so this page does not edit it. To limit one actor, look at the actor: its dialog offers a ' +
  'rule to copy.';

/**
 * @param {object} props
 * @param {string} props.name
 * @param {object} [props.shown] the rule and its last minute, from the stream, and when all of it was sent (`toldAt`)
 * @param {boolean} props.isMissing whether the stream has no such rule
 * @param {() => void} props.onClose
 */
export function RulePanel({ name, shown, isMissing, hasTop, onClose }) {
  const [{ rule, error }, setLoaded] = useState({});
  useEffect(() => {
    const adopt = ({ named }) => named.has(name) && setLoaded({ rule: named.get(name) });
    api.loadRules().then(adopt, (problem) => setLoaded({ error: problem }));
  }, [shown?.toldAt]);
  const gone = shown
    ? 'This rule is no longer in force, or no longer in your scope.'
    : 'No rule in force has this name, or it is outside your scope.';
  const operation = isMissing ? gone : shown && `[${shown.operation || 'default'}]`;
  const onKey = (event) => event.key === 'Escape' && onClose();
  const ruleText = () => html`<${RuleText} rule=${rule} file=${shown?.file} />`;
  return html`
    <aside class="card detail" aria-labelledby="detail-title" onkeydown=${onKey}>
      <div class="detail-head">
        <h2 id="detail-title" tabindex="-1">${name}</h2>
        <button type="button" class="quiet" aria-label="Close the panel" onclick=${onClose}>✕</button>
      </div>
      <code class="operation whole">${operation}</code>
      ${shown?.comment && html`<p class="comment">${shown.comment}</p>`}
      ${shown?.hits !== undefined && html`<${Charts} rule=${shown} />`}
      ${rule && hasTop && actorFields(rule).length > 0 && html`<${MostDenied} rule=${rule} />`}
      <dl class="facts">${shown && html`<${Facts} rule=${shown} />`}</dl>
      <div class="parts">
        ${error && html`<p class="error">${error.message}</p>`}
        ${rule && api.counts(rule) && html`<${Counters} rule=${rule} />`}
        ${rule && html`<${Disclosure} title="This rule as text">${ruleText}<//>`}
      </div>
    </aside>
  `;
}

function Facts({ rule }) {
  const where = rule.file ? `${rule.file}, line ${rule.line}` : rule.line ? `line ${rule.line}` : null;
  const facts = [
    ['Limit', rule.limit],
    ['Only for', rule.conditions.join('; ')],
    ['Counts by', rule.actorField ?? 'one counter for all requests'],
    ['Networks of', rule.actorPrefix],
    ['Algorithm', rule.algorithm],
    ['Penalty', rule.penalty],
    ['Policy', POLICIES[rule.canary ? 'canary' : rule.stack ? 'and' : 'stop']],
    ['Place', `rule ${number(rule.index + 1)}${where ? ` · ${where}` : ''}`],
  ];
  return facts.map(([term, text]) => text && html`<div><dt>${term}</dt><dd>${text}</dd></div>`);
}

function Charts({ rule }) {
  const chart = (series, title) => {
    const { past } = rule;
    const [values, sum] = [past.series[series], past.sum(series)];
    const share = series === 'hits' ? '' : ` (${percent(sum, past.sum('hits'))})`;
    const shape = series === 'hits' ? { area: values } : { bars: values, canary: rule.canary };
    return html`
      <figure class="figure-chart ${series}">
        <figcaption><span>${title}</span><b>${number(values[values.length - 1] ?? 0)}/s</b></figcaption>
        <${Spark} height=${24} ...${shape} />
        <span class="more">${number(sum)} in the last minute${share}, at most ${number(past.peak(series))}/s</span>
      </figure>
    `;
  };
  return html`
    <div class="charts">
      ${chart('hits', 'Hits')}
      ${rule.canary ? chart('canaryDenied', 'Would be denied') : chart('denied', 'Denied')}
    </div>
  `;
}

/** The actors that the rule denies the most. */
function MostDenied({ rule }) {
  const title = rule.matchPolicy === 'canary' ? 'Would be denied the most' : 'Denied the most';
  return html`
    <section aria-labelledby="whom-title">
      <div class="part-head">
        <h3 id="whom-title">${title}</h3>
        <a href=${link('top', { rule: rule.name, order: 'denied', last: 60 })}>More</a>
      </div>
      <${TopList} rule=${rule} order="denied" last=${60} count=${5} />
    </section>
  `;
}

function RuleText({ rule, file }) {
  const text = rulesFile.write(rule, rulesFile.formatOf(file)) ?? rulesFile.write(rule, 'json');
  return html`<${CopyText} text=${text} label="This rule as text" /><p class="hint">${TEXT_HINT}</p>`;
}

/** Counters, limits and overrides of the actors of a rule. For a rule that limits concurrency: the leases in use. */
function Counters({ rule }) {
  const fields = actorFields(rule);
  const isConcurrency = rule.algorithm === 'concurrency';
  const isLive = isConcurrency || fields.length === 0;
  const hasLists = api.isNamed(rule) && api.may('read');
  const listOf = (List) => () => html`<${List} rule=${rule} fields=${fields} />`;
  return html`
    <div class="parts">
      ${isLive && html`<${LiveCounters} ...${{ rule, fields, isConcurrency }} />`}
      ${!isLive && html`<${Disclosure} title="Counters">${listOf(CounterList)}<//>`}
      ${hasLists && html`<${Disclosure} title="Limits of single actors">${listOf(LimitList)}<//>`}
      ${hasLists && html`<${OverrideLists} rule=${rule.name} fieldsOf=${() => fields} />`}
    </div>
  `;
}

/** The leases in use, or what is left of the one counter of a rule without actors. */
function LiveCounters({ rule, fields, isConcurrency }) {
  const ask = async (signal) => {
    const page = await api.get('/v1/counters', { rule: rule.name, count: ROWS }, signal);
    return { ...page, own: isConcurrency ? await ownLimits(rule, signal) : null };
  };
  const [{ answer, error }] = usePolling({ question: rule.name, ask, pause: PAUSE, area: '.live' });
  let shown = null;
  if (error) shown = html`<p class="error">${error.message}</p>`;
  else if (answer) {
    const Shown = isConcurrency ? Leases : SharedCounter;
    shown = html`<${Shown} ...${answer} ...${{ rule, fields }} />`;
  }
  return html`
    <section>
      <h3>${isConcurrency ? 'Leases in use' : 'Left now'}</h3>
      <div class="live">${shown}</div>
    </section>
  `;
}

function SharedCounter({ rule, counters: [counter] }) {
  const whole = number(api.capacity(rule));
  if (!counter) return html`<p><b>${whole}</b> of ${whole}</p>`;
  const { balance, remaining, reset } = counter;
  const style = remaining === 0 ? 'some' : '';
  return html`<p><b class=${style}>${number(balance)}</b> of ${whole}, more in ${duration(reset)}</p>`;
}

/** Returns the credits of actors with a limit of their own, or null if there are too many of them. */
async function ownLimits(rule, signal) {
  if (!api.isNamed(rule)) return new Map();
  const { limits, next } = await api.get('/v1/limits', { rule: rule.name, count: 1000 }, signal);
  return next ? null : new Map(limits.map(({ actor, credits }) => [actor, credits]));
}

function Leases({ rule, fields, counters, next, own }) {
  if (counters.length === 0 && !next) return html`<p class="hint">No lease is in use.</p>`;
  const columns = { Actor: '', 'In use': 'number', Free: 'number', 'Next ends in': 'number' };
  const row = ({ actor, balance, remaining, reset }) => {
    const whole = own?.get(actor) ?? rule.creditLimit;
    return html`
      <tr key=${actor}>
        <td><${ActorLink} fields=${fields} name=${actor} /></td>
        <td class="number">${own ? `${number(whole - balance)} of ${number(whole)}` : '–'}</td>
        <td class="number ${remaining === 0 ? 'some' : ''}">${number(remaining)}</td>
        <td class="number">${duration(reset)}</td>
      </tr>
    `;
  };
  return html`
    <${Table} columns=${columns}>${counters.map(row)}<//>
    ${next && html`<p class="hint">The first ${count(counters.length, 'actor')}.</p>`}
  `;
}

function CounterList({ rule, fields }) {
  const whole = number(api.capacity(rule));
  const columns = { Actor: '', Left: 'number', 'More in': 'number' };
  const none = 'Every actor has all of its credits.';
  const row = ({ actor, balance, remaining, reset }) => html`
    <tr>
      <td><${ActorLink} fields=${fields} name=${actor} /></td>
      <td class="number"><span class=${remaining === 0 ? 'some' : ''}>${number(balance)}</span> / ${whole}</td>
      <td class="number">${duration(reset)}</td>
    </tr>
  `;
  const query = { rule: rule.name };
  return html`<${PagedList} path="/v1/counters" member="counters" ...${{ query, columns, none }}>${row}<//>`;
}

function LimitList({ rule, fields }) {
  const columns = { Actor: '', Credits: 'number', 'Ends in': 'number' };
  const none = 'No actor has a limit of its own under this rule.';
  const row = ({ actor, credits, expiresIn }) => html`
    <tr>
      <td><${ActorLink} fields=${fields} name=${actor} /></td>
      <td class="number">${number(credits)}</td>
      <td class="number">${expiresIn === null ? 'never' : duration(expiresIn)}</td>
    </tr>
  `;
  const query = { rule: rule.name };
  return html`<${PagedList} path="/v1/limits" member="limits" ...${{ query, columns, none }}>${row}<//>`;
}
