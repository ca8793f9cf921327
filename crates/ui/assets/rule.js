/** The panel about one rule: what it is, what it does, and whom it denies. */

import * as api from './api.js';
import { OverrideLists } from './changes.js';
import { count, duration, link, number, percent } from './format.js';
import { html, useEffect, useState } from './preact_htm.js';
import { actorFields, capacity, counts, formatOf, isNamed, write } from './rule_text.js';
import { TopList } from './top.js';
import { actorColumn, CopyText, Disclosure, PagedList, Spark, sum, Table, usePolling } from './widgets.js';

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
 * @param {object} [props.shown] the rule and its last minute, from the stream
 * @param {number} [props.version] number that changes with the rules
 * @param {boolean} props.isMissing whether the stream has no such rule
 * @param {() => void} props.onClose
 */
export function RulePanel({ name, shown, version, isMissing, hasTop, onClose }) {
  const [{ rule, error }, setLoaded] = useState({});
  useEffect(() => {
    const adopt = ({ named }) => named.has(name) && setLoaded({ rule: named.get(name) });
    api.loadRules().then(adopt, (problem) => setLoaded({ error: problem }));
  }, [version]);
  const gone = shown
    ? 'This rule is no longer in force, or no longer in your scope.'
    : 'No rule in force has this name, or it is outside your scope.';
  const operation = isMissing ? gone : shown && `[${shown.operation || 'default'}]`;
  const onKey = (event) => event.key === 'Escape' && onClose();
  const ruleText = () => html`
    <${CopyText} text=${write(rule, formatOf(shown?.file)) ?? write(rule, 'json')} label="This rule as text" />
    <p class="hint">${TEXT_HINT}</p>
  `;
  return html`
    <aside class="card detail" aria-labelledby="detail-title" onkeydown=${onKey}>
      <div class="detail-head">
        <h2 id="detail-title" tabindex="-1">${name}</h2>
        <button type="button" class="quiet" aria-label="Close the panel" onclick=${onClose}>✕</button>
      </div>
      <code class="operation whole">${operation}</code>
      ${shown?.comment && html`<p class="comment">${shown.comment}</p>`}
      ${shown?.hits !== undefined && html`<${Charts} ...${shown} />`}
      ${rule && hasTop && actorFields(rule).length > 0 && html`<${MostDenied} rule=${rule} />`}
      <dl class="facts">${shown && html`<${Facts} rule=${shown} />`}</dl>
      <div class="parts">
        ${error && html`<p class="error">${error.message}</p>`}
        ${rule && counts(rule) && html`<${Counters} rule=${rule} />`}
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

function Charts({ canary, history: { hits, denied } }) {
  const chart = (name, title, series, shape, share) => html`
    <figure class="figure-chart ${name}">
      <figcaption><span>${title}</span><b>${number(series.at(-1) ?? 0)}/s</b></figcaption>
      <${Spark} height=${24} ...${shape} />
      <span class="more">
        ${number(sum(series))} in the last minute${share}, at most ${number(Math.max(0, ...series))}/s
      </span>
    </figure>
  `;
  const share = ` (${percent(sum(denied), sum(hits))})`;
  return html`
    <div class="charts">
      ${chart('hits', 'Hits', hits, { area: hits }, '')}
      ${chart('denied', canary ? 'Would be denied' : 'Denied', denied, { bars: denied, canary }, share)}
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

/** Counters, limits and overrides of the actors of a rule. For a rule that limits concurrency: the leases in use. */
function Counters({ rule }) {
  const fields = actorFields(rule);
  const isConcurrency = rule.algorithm === 'concurrency';
  const isLive = isConcurrency || fields.length === 0;
  const whole = number(capacity(rule));
  const list = (title, member, none, ...columns) => {
    const content = () => html`
      <${PagedList} query=${{ rule: rule.name }} columns=${[actorColumn(fields), ...columns]} ...${{ member, none }} />
    `;
    return html`<${Disclosure} title=${title}>${content}<//>`;
  };
  const left = ({ balance, remaining }) =>
    html`<span class=${remaining === 0 ? 'some' : ''}>${number(balance)}</span> / ${whole}`;
  const moreIn = ['More in', 'number', ({ reset }) => duration(reset)];
  const credits = ['Credits', 'number', (limit) => number(limit.credits)];
  const ends = ['Ends in', 'number', ({ expiresIn }) => (expiresIn === null ? 'never' : duration(expiresIn))];
  const noLimit = 'No actor has a limit of its own under this rule.';
  return html`
    <div class="parts">
      ${isLive && html`<${LiveCounters} ...${{ rule, fields, isConcurrency }} />`}
      ${!isLive && list('Counters', 'counters', 'Every actor has all of its credits.', ['Left', 'number', left], moreIn)}
      ${isNamed(rule) && api.may('read') &&
      html`
        ${list('Limits of single actors', 'limits', noLimit, credits, ends)}
        <${OverrideLists} rule=${rule.name} fieldsOf=${() => fields} />
      `}
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
  const Shown = isConcurrency ? Leases : SharedCounter;
  return html`
    <section>
      <h3>${isConcurrency ? 'Leases in use' : 'Left now'}</h3>
      <div class="live">
        ${error ? html`<p class="error">${error.message}</p>` : answer && html`<${Shown} ...${answer} ...${{ rule, fields }} />`}
      </div>
    </section>
  `;
}

function SharedCounter({ rule, counters: [counter] }) {
  const whole = number(capacity(rule));
  if (!counter) return html`<p><b>${whole}</b> of ${whole}</p>`;
  const { balance, remaining, reset } = counter;
  const style = remaining === 0 ? 'some' : '';
  return html`<p><b class=${style}>${number(balance)}</b> of ${whole}, more in ${duration(reset)}</p>`;
}

/** Returns the credits of actors with a limit of their own, or null if there are too many of them. */
async function ownLimits(rule, signal) {
  if (!isNamed(rule)) return new Map();
  const { limits, next } = await api.get('/v1/limits', { rule: rule.name, count: 1000 }, signal);
  return next ? null : new Map(limits.map(({ actor, credits }) => [actor, credits]));
}

function Leases({ rule, fields, counters, next, own }) {
  if (counters.length === 0 && !next) return html`<p class="hint">No lease is in use.</p>`;
  const used = ({ actor, balance }) => {
    const whole = own?.get(actor) ?? rule.creditLimit;
    return own ? `${number(whole - balance)} of ${number(whole)}` : '–';
  };
  const free = ({ remaining }) => html`<span class=${remaining === 0 ? 'some' : ''}>${number(remaining)}</span>`;
  const columns = [
    actorColumn(fields),
    ['In use', 'number', used],
    ['Free', 'number', free],
    ['Next ends in', 'number', ({ reset }) => duration(reset)],
  ];
  return html`
    <${Table} columns=${columns} rows=${counters} attributes=${({ actor }) => ({ key: actor })} />
    ${next && html`<p class="hint">The first ${count(counters.length, 'actor')}.</p>`}
  `;
}
