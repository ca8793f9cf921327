/** One actor: what it has used and has left under each rule, and what may be changed about it. */

import * as api from './api.js';
import { forgetCounter, OverrideButtons, OverrideChip, OverrideDetails, OverrideLists } from './changes.js';
import { removeLimit, setLimit } from './changes.js';
import { count, duration, link, number } from './format.js';
import { html, useEffect, useRef, useState } from './preact_htm.js';
import { actorFields, actorName, capacity, counts, hasLastingName, isNamed, matches } from './rule_text.js';
import { parse, SyntaxMistake, writeActor } from './rule_text.js';
import { Button, Disclosure, Left, OWN_LIMIT, QuestionForm, RuleLink, Table, usePolling, ViewHead } from './widgets.js';

/** Pause between two looks (ms). */
const PAUSE = 3000;
/** Rules with all credits that are listed. */
const OTHERS = 50;
const LEAD =
  'What one actor has used and has left, under each rule. Give all fields of the rules’ actorField, and no others.';
const MISTAKE = 'Name the fields of the actor, as in user=ann or tenant=acme user=ann.';
const UNASKABLE = 'The fields count and cursor cannot be asked for here: use divvy actor in a shell.';
const NOTHING_USED =
  ' has all credits, no limit of its own, and no block or allow, under every rule that counts by it. A block of ' +
  'another field may still deny its requests: explain a whole request to see that.';

export function Actor({ app, events, params }) {
  const question = params.get('q') ?? '';
  const said = useRef();
  const area = '#actor-result, #actor-others';
  const ask = (signal) => lookAt(question, signal);
  const [state, again] = usePolling({ question, ask, pause: PAUSE, area, version: events.reloads });
  const isCurrent = state.question === question;
  const answer = isCurrent ? state.answer : null;
  const isAnswered = Boolean(answer);
  // Only the first answer is announced.
  useEffect(() => {
    if (!isAnswered) return;
    const { shown, statuses } = answer;
    const words = statuses.length > 0 ? `has counters under ${statuses.length} rules` : 'has all credits';
    said.current.textContent = `${shown} ${words}.`;
  }, [question, isAnswered]);
  const actor = answer && { ...answer, file: app.rulesFile };
  return html`
    <${ViewHead} title="Actor" lead=${LEAD} />
    <${QuestionForm} id="actor" label="Actor" placeholder="user=ann" button="Show" question=${question}
      addressOf=${(text) => link('actor', { q: text })} again=${again} />
    <p class="unseen" role="status" ref=${said}></p>
    <p class="error" role="alert" id="actor-error">${isCurrent && state.error?.message}</p>
    <div id="actor-result">${actor && html`<${Statuses} actor=${actor} onChange=${again} />`}</div>
    <div id="actor-others">${actor && html`<${OtherRules} key=${question} actor=${actor} onChange=${again} />`}</div>
    <div id="actor-overrides" class="parts">${question === '' && api.may('read') && html`<${AllOverrides} />`}</div>
  `;
}

/** The actors that are blocked or allowed, while no actor is asked for. */
function AllOverrides() {
  const [named, setNamed] = useState(null);
  useEffect(() => {
    const none = { named: new Map() };
    api.loadRules().catch(() => none).then((rules) => setNamed(rules.named));
  }, []);
  const fieldsOf = (rule) => (named.has(rule) ? actorFields(named.get(rule)) : null);
  return named && html`<${OverrideLists} fieldsOf=${fieldsOf} />`;
}

/** Asks for the state of an actor. Only some users may read the rules. */
async function lookAt(text, signal) {
  const pairs = parse(text, { escapes: true });
  if (pairs.size === 0) throw new SyntaxMistake(MISTAKE);
  if (pairs.has('count') || pairs.has('cursor')) throw new SyntaxMistake(UNASKABLE);
  const [{ rules }, status] = await Promise.all([
    api.may('read') ? api.loadRules() : { rules: [] },
    api.get('/v1/status', [...pairs, ['count', '1000']], signal),
  ]);
  const ofActor = rules.filter((rule) => isOfActor(rule, pairs));
  return { pairs, shown: writeActor(pairs), rules: ofActor, statuses: status.rules, next: status.next };
}

/** Returns whether a rule has a counter for the actor of exactly these fields. */
function isOfActor(rule, pairs) {
  const fields = actorFields(rule);
  if (fields.length === 0 || fields.length !== pairs.size || !counts(rule)) return false;
  return fields.every((field) => pairs.has(field) && matches(rule.operation[field] ?? '*', pairs.get(field)));
}

/** The rules under which the actor has used something, or has something of its own. */
function Statuses({ actor, onChange }) {
  const { shown, rules, statuses, next } = actor;
  if (statuses.length === 0) return html`<p class="card quiet-card"><code>${shown}</code>${NOTHING_USED}</p>`;
  const row = (status) => {
    const definition = rules.find((rule) => rule.name === status.rule);
    const isCanary = definition?.matchPolicy === 'canary';
    return { ...status, definition, isCanary, isEmpty: status.remaining === 0 };
  };
  const figure = (title, content) => [title, 'number', content];
  const some = (name) => (status) => (status[name] > 0 ? number(status[name]) : '–');
  const left = ({ balance, limit, isEmpty }) => html`<${Left} whole=${limit} ...${{ balance, isEmpty }} />`;
  const actions = (status) => html`
    <${Actions} target=${targetOf(actor, status.rule, status.limit, status.definition)} ...${{ status, onChange }} />
  `;
  const columns = [
    ['Rule', '', (status) => html`<${StatusHead} ...${status} />`],
    figure('Left', left),
    figure('Used', some('used')),
    figure('Reserved', some('reserved')),
    figure('In flight', some('inFlight')),
    figure('More in', ({ reset }) => (reset > 0 ? duration(reset) : '–')),
    ['limits', 'forget', 'block'].some(api.mayChange) && ['Actions', 'actions', actions],
  ];
  const attributes = ({ rule, override, isEmpty }) => {
    const denies = override ? override.kind === 'block' : isEmpty;
    return { key: rule, 'data-rule': rule, class: denies ? 'denies' : null };
  };
  return html`
    <${Table} kind="cards" aria-label="Counters of ${shown}" rows=${statuses.map(row)} ...${{ columns, attributes }} />
    ${next && html`<p class="hint">The first 1,000 rules are shown.</p>`}
  `;
}

function StatusHead({ rule, override, ownLimit, definition, isCanary, isEmpty }) {
  const denied = isCanary ? ['canary', 'would be denied'] : ['bad', 'denied now'];
  return html`
    <${RuleLink} name=${rule} />
    <span class="chips">
      ${override && html`<${OverrideChip} kind=${override.kind} isCanary=${isCanary} />`}
      ${!override && isEmpty && html`<span class="chip ${denied[0]}">${denied[1]}</span>`}
      ${ownLimit !== null && OWN_LIMIT}
    </span>
    ${override && html`<${OverrideDetails} ...${override} />`}
    ${definition?.comment && html`<span class="more">${definition.comment}</span>`}
  `;
}

/** @returns {import('./changes.js').Target} */
function targetOf({ pairs, shown, file }, rule, limit, definition) {
  const fields = definition ? actorFields(definition) : [...pairs.keys()];
  return { rule, actor: actorName(fields, pairs), shown, limit, pairs, definition, file };
}

function Actions({ target, status, onChange }) {
  const isOwn = status.ownLimit !== null;
  const mayLimit = api.mayChange('limits');
  const unseen = `under ${target.rule}`;
  const button = (text, act) => html`<${Button} unseen=${unseen} onclick=${() => act(target, onChange)}>${text}<//>`;
  const overrides = html`<${OverrideButtons} target=${target} override=${status.override} onChange=${onChange} />`;
  if (!hasLastingName(target.rule, target.definition))
    return html`${overrides}<span class="hint">Other changes need a label.</span>`;
  return html`
    ${mayLimit && button(isOwn ? 'Change limit' : 'Set limit', setLimit)}
    ${mayLimit && isOwn && button('Remove limit', removeLimit)}
    ${api.mayChange('forget') && button('Forget counter', forgetCounter)}
    ${overrides}
  `;
}

/**
 * The rules that the actor has not used, under which it may be limited, blocked and allowed, too. If they are many, a
 * field selects some by their names.
 */
function OtherRules({ actor, onChange }) {
  const [text, setText] = useState('');
  const used = new Set(actor.statuses.map((status) => status.rule));
  const others = actor.rules.filter((rule) => !used.has(rule.name));
  if (others.length === 0) return null;
  const found = others.filter((rule) => rule.name.toLowerCase().includes(text.toLowerCase()));
  const item = (rule) => {
    const target = targetOf(actor, rule.name, rule.creditLimit, rule);
    const limit = () => setLimit(target, onChange);
    return html`
      <li key=${rule.name}>
        <${RuleLink} name=${rule.name} />${` ${number(capacity(rule))} left `}
        ${api.mayChange('limits') && isNamed(rule) &&
        html`<${Button} unseen="under ${rule.name}" onclick=${limit}>Set limit<//> `}
        <${OverrideButtons} target=${target} override=${null} onChange=${onChange} />
      </li>
    `;
  };
  const field = html`
    <p>
      <input type="search" class="narrow-input" placeholder="Name of a rule" aria-label="Name of a rule"
        oninput=${(event) => setText(event.target.value)} />
    </p>
  `;
  return html`
    <${Disclosure} title=${`All credits left under ${count(others.length, 'other rule')}`}>
      ${() => html`
        ${others.length > OTHERS && field}
        <div>
          <ul class="reasons">${found.slice(0, OTHERS).map(item)}</ul>
          ${found.length > OTHERS && html`<p class="hint">and ${number(found.length - OTHERS)} more</p>`}
        </div>
      `}
    <//>
  `;
}
