/** What the page may change: limits and counters of single actors, through the same API and audit log as everywhere. */

import * as api from './api.js';
import { Dialog, Field, notify, open } from './dialogs.js';
import { count, duration } from './format.js';
import { html, useState } from './preact_htm.js';
import * as rulesFile from './rules_file.js';
import { CopyText, Disclosure } from './widgets.js';

/** How long a limit may last (s). */
const TIMES = {
  'until someone removes it': '',
  'for an hour': 3600,
  'for a day': 86_400,
  'for a week': 604_800,
  'for 30 days': 2_592_000,
};

/**
 * An actor under a rule.
 * @typedef {object} Target
 * @property {string} rule the rule's name
 * @property {string} actor the actor's name under this rule
 * @property {string} shown the actor for people, such as `user=ann`
 * @property {number} limit the limit in force
 * @property {Map<string, string>} pairs the actor's fields
 * @property {object} [definition] the rule, as `GET /v1/rules` has it
 * @property {string} [file] name of the rules file
 */

/** Asks for a new limit of an actor, and sets it. */
export function setLimit(target, onDone) {
  open(html`<${LimitDialog} target=${target} onDone=${onDone} />`);
}

function LimitDialog({ target, onDone }) {
  const { rule, actor, shown, definition } = target;
  const [credits, setCredits] = useState(String(target.limit));
  const act = async ({ elements: { time } }) => {
    const body = { credits: Number(credits), ...(time.value ? { expiresIn: Number(time.value) } : {}) };
    const set = await api.send('PUT', '/v1/limits', { query: { rule, actor }, body });
    const ends = set.expiresIn === null ? '' : `, for ${duration(set.expiresIn)}`;
    notify(`${shown} has a limit of ${count(set.credits, 'credit')} under ${rule}${ends}.`);
    onDone();
  };
  const ruleToCopy = () => html`<${RuleToCopy} target=${target} credits=${Number(credits)} />`;
  return html`
    <${Dialog} title="Set a limit" action="Set limit" field="limit-credits" act=${act}>
      <p>
        ${'Actor '}<code>${shown}</code>${' under rule '}<b>${rule}</b>
        . The number replaces the rule’s credits from the next hit. Used credits stay used.
      </p>
      <${Field} id="limit-credits" label="Credits">
        <input id="limit-credits" type="number" min="0" max=${Number.MAX_SAFE_INTEGER} step="1" required
          inputmode="numeric" value=${credits} oninput=${(event) => setCredits(event.target.value)} />
        <p class="hint">0 denies everything.</p>
      <//>
      <${Field} id="limit-time" label="The limit lasts">
        <select id="limit-time" name="time">
          ${Object.entries(TIMES).map(([text, value]) => html`<option value=${value}>${text}</option>`)}
        </select>
      <//>
      ${definition && html`<${Disclosure} title="The same as a rule, to copy">${ruleToCopy}<//>`}
    <//>
  `;
}

/** Offers the limit as a rule, for a change that lasts and is reviewed. */
function RuleToCopy({ target: { definition, pairs, file }, credits }) {
  const isValid = Number.isSafeInteger(credits) && credits >= 0;
  const rule = rulesFile.ruleForActor(definition, pairs, isValid ? credits : definition.creditLimit);
  const text = rulesFile.write(rule, rulesFile.formatOf(file));
  const advice = [`Put it above the rule ${definition.name}. The file is the policy, so this page does not edit it.`];
  if (definition.matchPolicy === 'and')
    advice.push(`Rule ${definition.name} continues to apply to this actor, so the lower of both limits decides.`);
  if ([...pairs.values()].some((value) => value.includes('*')))
    advice.push('In a rule, * stands for any text, so this rule matches other actors, too.');
  if (!definition.counter) advice.push('The new rule counts afresh.');
  if (!text) advice.unshift('An INI file cannot express this actor. In a JSON file, the rule reads like this.');
  return html`
    <${CopyText} text=${text ?? rulesFile.write(rule, 'json')} label="Rule to copy${text ? '' : ', in JSON'}" />
    <p class="hint">${advice.join(' ')}</p>
  `;
}

/** Asks, and gives the actor the limit of the rule again. */
export function removeLimit({ rule, actor, shown }, onDone) {
  const act = async () => {
    const { removed } = await api.send('DELETE', '/v1/limits', { query: { rule, actor } });
    notify(removed ? `The limit of ${shown} under ${rule} is removed.` : `${shown} had no limit of its own.`);
    onDone();
  };
  open(html`
    <${Dialog} title="Remove a limit" action="Remove limit" danger act=${act}>
      <p>
        ${'Actor '}<code>${shown}</code>${' has the limit of rule '}<b>${rule}</b>
        ${' again, from the next hit. Used credits stay used.'}
      </p>
    <//>
  `);
}

/** Asks, and forgets the actor's counter, so that it has all credits again. */
export function forgetCounter({ rule, actor, shown, definition }, onDone) {
  const act = async () => {
    const { forgotten } = await api.send('DELETE', '/v1/counters', { query: { rule, actor } });
    const done = `The counter of ${shown || 'everyone'} under ${rule} is forgotten.`;
    notify(forgotten > 0 ? done : 'There was no counter to forget.');
    onDone();
  };
  open(html`
    <${Dialog} title="Forget a counter" action="Forget counter" danger act=${act}>
      <p>
        ${'Actor '}<code>${shown || '(everyone)'}</code>${' has all credits of rule '}<b>${rule}</b>
        ${' again. What it has used is lost.'}
      </p>
      ${definition?.algorithm === 'concurrency' &&
      html`<p>This also frees all leases, even those of work that still runs.</p>`}
      ${definition?.counter &&
      html`<p>All rules with <code>counter = ${definition.counter}</code> share this counter.</p>`}
    <//>
  `);
}
