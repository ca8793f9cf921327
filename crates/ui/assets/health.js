/** The server's state: health, with its bounds and errors, and reloads of the rules file, with what changed. */

import { duration, number, percent, quantity, storeName, time } from './format.js';
import { html, useEffect, useState } from './preact_htm.js';
import { Meter, Table, ViewHead } from './widgets.js';

const STATES = { ok: 'OK', warning: 'Warning', bad: 'Bad' };
const SIGNS = { '+': ['+', 'added'], '-': ['−', 'removed'], p: ['!', 'problem'] };
const LOADING = html`<p class="hint">Loading…</p>`;
/** Time after which reloads would have come. The server sends them only to users who may see all of them (ms). */
const PATIENCE = 2000;

export function Health({ events }) {
  return html`
    <${ViewHead} title="Health" lead="What this server uses, and the bounds that it has." />
    <div id="health">${events.health ? html`<${Server} ...${events.health} />` : LOADING}</div>
  `;
}

/** The resources in use. Only some of them have a bound. */
const VALUES = [
  [
    'Of',
    '',
    ({ text, used, bound, state }) =>
      html`${text}${bound !== null && html`<${Meter} part=${used} whole=${bound} state=${state} />`}`,
  ],
  [
    'In use',
    'number',
    ({ used, bound, unit }) => html`
      ${quantity(used, unit)}${bound !== null && html` <span class="more">of ${quantity(bound, unit)}</span>`}
    `,
  ],
  ['Share', 'number', ({ used, bound }) => (bound === null ? '–' : percent(used, bound))],
  ['State', '', ({ state }) => html`<span class="chip ${state}">${STATES[state]}</span>`],
];
const ERRORS = [
  ['Kind', '', ({ kind }) => html`<code>${kind}</code>`],
  ['Count', 'number', ({ count }) => number(count)],
];

function Server({ ready, problems, values, durability, store, errors, last_errors: lastErrors }) {
  const attributes = ({ state }) => ({ class: state === 'ok' ? null : state });
  return html`
    <div class="verdict">
      <span class="pill ${ready ? 'ok' : 'bad'}">${ready ? 'Ready' : 'Not ready'}</span>
      <div>
        <p>Store: ${storeName(store)}. Durability: ${durability}.</p>
        ${problems.length > 0 && html`<ul class="problems">${problems.map((text) => html`<li>${text}</li>`)}</ul>`}
      </div>
    </div>
    <div class="split-even">
      <section class="card" aria-labelledby="values-title">
        <h2 id="values-title">Use and bounds</h2>
        <${Table} kind="plain health" columns=${VALUES} rows=${values} attributes=${attributes} />
      </section>
      <section class="card" aria-labelledby="errors-title">
        <h2 id="errors-title">Errors since the start</h2>
        ${errors.length === 0 && html`<p class="hint">None.</p>`}
        ${errors.length > 0 && html`<${Table} columns=${ERRORS} rows=${errors} />`}
        ${lastErrors.length > 0 && html`<h3>The last of each kind</h3><ul>${lastErrors.map(lastError)}</ul>`}
      </section>
    </div>
  `;
}

/** The last error of a kind on a front, so that one finds out who sends what. */
function lastError({ front, kind, age, peer, user, reason }) {
  const sender = `${peer ?? 'an unknown address'}${user ? ` (${user})` : ''}`;
  return html`<li><code>${front} ${kind}</code>, ${number(age)} s ago, from ${sender}: ${reason}</li>`;
}

export function Reloads({ events }) {
  const [isPatient, setIsPatient] = useState(true);
  useEffect(() => {
    const timer = setTimeout(() => setIsPatient(false), PATIENCE);
    return () => clearTimeout(timer);
  }, []);
  const { reloads } = events;
  let hint = isPatient ? 'Loading…' : 'Only users with all rules in their scope see reloads.';
  if (reloads) hint = 'The rules have not changed since the server started.';
  return html`
    <${ViewHead} title="Reloads" lead="The last 20 loads of the rules file since the server started, newest first." />
    <div class="reloads" id="reloads">
      ${reloads?.length > 0 ? reloads.map(reload) : html`<p class="hint">${hint}</p>`}
    </div>
  `;
}

function reload({ time: at, ok, lines }) {
  return html`
    <section class="card reload">
      <div class="reload-head">
        <h2><time datetime=${new Date(at * 1000).toISOString()}>${time(at)}</time></h2>
        <span class="pill ${ok ? 'ok' : 'bad'}">${ok ? 'In force' : 'Refused'}</span>
        <span class="more">${duration(Math.max(0, Date.now() / 1000 - at))} ago</span>
      </div>
      ${!ok && html`<p>The previous rules stay in force.</p>`}
      <ul class="diff">${lines.map(change)}</ul>
    </section>
  `;
}

function change(text) {
  const isMarked = /^([+-]|problem)/.test(text);
  const [sign, kind] = isMarked ? SIGNS[text[0]] : ['·', 'changed'];
  return html`
    <li class=${kind}>
      <span class="sign" aria-hidden="true">${sign}</span><code>${text.replace(/^([+-]|problem:?) /, '')}</code>
    </li>
  `;
}
