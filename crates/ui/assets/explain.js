/** An operation, the rule that answers it, why others do not, and what their counters have left now. */

import * as api from './api.js';
import { OverrideChip, OverrideDetails } from './changes.js';
import { count, duration, link, list, number } from './format.js';
import { html, useEffect, useRef, useState } from './preact_htm.js';
import { actorFields, actorName, capacity, counts, parse } from './rule_text.js';
import { ActorLink, Button, Disclosure, Left, OWN_LIMIT, QuestionForm } from './widgets.js';
import { RuleLink, Table, usePolling, ViewHead } from './widgets.js';

const LEAD = 'Which rule answers a request, why the others do not, and what is left now. Nothing is taken.';
/** Findings about rules that do not match. */
const MISMATCHES = ['key-missing', 'value-differs', 'condition-fails'];
const ROLES = {
  answers: 'answers',
  'must-allow': 'must allow, too',
  canary: 'canary, denies nothing',
  refuses: 'error',
};
/** Pause between two looks at the counters (ms). */
const PAUSE = 2000;
/**
 * Age after which the rules are explained again (ms). An explanation of many rules is long, and seldom changes, unless a
 * block or an allow decides for a time.
 */
const MAX_AGE = 30_000;
/** Rules that do not match are shown in parts of this size. */
const PART = 200;

export function Explain({ events, params }) {
  const question = params.get('op') ?? '';
  const known = useRef({}).current;
  const [verdict, said] = [useRef(), useRef()];
  const version = events.reloads;
  const ask = async (signal) => {
    const pairs = parse(question);
    const operation = Object.fromEntries(pairs);
    if (known.question !== question || known.version !== version || Date.now() >= known.until)
      Object.assign(known, await explain(operation, signal), { question, version });
    const { found, named } = known;
    const [answer, states] = await Promise.all([peek(operation, signal), statesOf(found, named, pairs, signal)]);
    return { found, named, answer, states };
  };
  const [state, again] = usePolling({ question, ask, pause: PAUSE, area: '#verdict, #matching', version });
  const shown = question && !state.error ? state.answer : null;
  const shownQuestion = shown && state.question;
  // Only the first answer is announced, because balances change all the time.
  useEffect(() => {
    if (shownQuestion) said.current.textContent = verdict.current.textContent;
  }, [shownQuestion]);
  const isMismatch = ({ finding }) => MISMATCHES.includes(finding);
  const matching = shown?.found.filter((rule) => !isMismatch(rule));
  const others = shown?.found.filter(isMismatch);
  const askAgain = () => {
    known.until = 0;
    again();
  };
  return html`
    <${ViewHead} title="Explain" lead=${LEAD} />
    <${QuestionForm} id="operation" label="Operation" placeholder="method=GET path=/status ip=192.0.2.7"
      button="Explain" question=${question} addressOf=${(text) => link('explain', { op: text })} again=${askAgain} />
    <p class="unseen" role="status" ref=${said}></p>
    <div class="verdict" id="verdict" ref=${verdict}>
      ${question && state.error && html`<p class="error" role="alert" id="explain-error">${state.error.message}</p>`}
      ${shown && html`<${Verdict} answer=${shown.answer} matching=${matching} />`}
    </div>
    <div id="matching">${shown && html`<${Matching} rules=${matching} ...${shown} />`}</div>
    <div>${shown && html`<${Mismatches} key=${`${others.length} ${shownQuestion}`} rules=${others} />`}</div>
  `;
}

/** Asks which rules an operation meets. */
async function explain(operation, signal) {
  const explaining = api.post('/v1/explain', { operation }, signal);
  const [{ rules: found }, { named }] = await Promise.all([explaining, api.loadRules()]);
  const endsSoon = found.some(({ grants }) => typeof grants?.override?.expiresIn === 'number');
  return { found, named, until: Date.now() + (endsSoon ? 0 : MAX_AGE) };
}

/** Asks what a hit would get. Only users who may send hits can ask. */
async function peek(operation, signal) {
  if (!api.may('hit')) return null;
  try {
    return await api.post('/v1/peek', { operation }, signal);
  } catch (error) {
    if (error.status === 409 || error.status === 403) return null;
    throw error;
  }
}

/**
 * Asks for the counter of each matching rule. Asking takes nothing.
 * @returns {Promise<Map<string, {actor: string, whole: number, balance: number, reset: number}>>} by the rule's name;
 *   rules that count nothing have none
 */
async function statesOf(found, named, pairs, signal) {
  const counting = found.filter(({ name, grants }) => grants && named.has(name) && counts(named.get(name)));
  const stateOf = async ({ name, grants }) => {
    const rule = named.get(name);
    const actor = actorName(actorFields(rule), pairs);
    const [page, own] = await Promise.all([
      api.get('/v1/counters', { rule: name, actor }, signal),
      grants.actorLimit ? api.get('/v1/limits', { rule: name, actor }, signal).catch(() => null) : null,
    ]);
    const whole = own?.credits ?? capacity(rule);
    const { balance = whole, reset = 0 } = page.counters[0] ?? {};
    return [name, { actor, whole, balance, reset }];
  };
  return new Map(await Promise.all(counting.map(stateOf)));
}

/** Returns the names of the rules that deny. */
function denyingOf(answer) {
  return answer && !answer.allowed ? (answer.violatedPolicies ?? [answer.rule]) : [];
}

function Verdict({ answer, matching }) {
  const last = matching.at(-1);
  if (!last) return html`<p>No rule in your scope answers this operation.</p>`;
  if (last.finding === 'refuses')
    return html`
      <span class="pill bad">Error</span>
      <p><b>${last.name}</b> cannot count this operation: ${last.reason}</p>
    `;
  if (!answer) return html`<p><b>${last.name}</b> answers${matching.length > 1 ? ' last' : ''}.</p>`;
  const left = answer.limit > 0 ? `: ${number(answer.balance)} of ${count(answer.limit, 'credit')} left` : '';
  if (answer.allowed) {
    const isStack = matching.filter(({ finding }) => finding !== 'canary').length > 1;
    const rule = html`<b>${answer.rule}</b>`;
    const more = answer.reset > 0 ? `, more in ${duration(answer.reset)}` : '';
    return html`
      <span class="pill ok">Allowed</span>
      <p>${isStack ? html`The least is left under ${rule}` : html`${rule} answers`}${left}${more}.</p>
    `;
  }
  const deny = denyingOf(answer);
  const words = deny.length > 1 ? 'deny it' : 'denies it';
  const reason = answer.blocked ? html`: the actor is ${blockedFor(answer)}.` : html`${left}. ${waitFor(answer)}`;
  return html`
    <span class="pill bad">Denied</span>
    <p><b>${list(deny)}</b> ${words}${reason}</p>
  `;
}

function waitFor({ retryAfter }) {
  return retryAfter === null ? 'Waiting does not help.' : `The next hit is allowed in ${duration(retryAfter)}.`;
}

/** Says why an actor is blocked, and for how long. */
function blockedFor({ blocked, retryAfter }) {
  const time = retryAfter === null ? 'until someone removes the block' : `for another ${duration(retryAfter)}`;
  return html`blocked ${time}${blocked.reason !== null && html`, because of “<bdi>${blocked.reason}</bdi>”`}`;
}

/** A table of the rules that match. */
function Matching({ rules, named, states, answer }) {
  const denying = denyingOf(answer);
  const title = ({ name, grants, reason }) => {
    const limit = grants?.actorLimit ? html`${grants.actorLimit} ${OWN_LIMIT}` : (grants?.limit ?? reason);
    return html`
      <${RuleLink} name=${name} />
      <span class="more">${limit}${grants?.cost !== undefined && `, takes ${number(grants.cost)}`}</span>
      ${grants?.override && html`<${OverrideDetails} ...${grants.override} />`}
      ${grants?.members?.map((member) => html`<span class="more">${memberText(member)}</span>`)}
    `;
  };
  const role = ({ name, finding, grants }) => html`
    <span class="chips">
      ${grants?.override && html`<${OverrideChip} kind=${grants.override.kind} isCanary=${finding === 'canary'} />`}
      ${denying.includes(name) && html`<span class="chip bad">denies</span>`}
      <span class="chip ${finding}">${ROLES[finding]}</span>
    </span>
  `;
  const ofState = (content) => ({ name }) => (states.has(name) ? content(states.get(name), named.get(name)) : '–');
  const actor = (state, rule) => html`<${ActorLink} fields=${actorFields(rule)} name=${state.actor} />`;
  const columns = [
    ['Rule', '', title],
    ['Role', '', role],
    ['Actor', '', ofState(actor)],
    ['Left now', 'number', ofState((state) => html`<${Left} ...${state} />`)],
    ['More in', 'number', ofState(({ reset }) => (reset > 0 ? duration(reset) : '–'))],
  ];
  const attributes = ({ name }) => ({
    key: name,
    'data-rule': name,
    class: denying.includes(name) ? 'denies' : null,
  });
  return html`<${Table} kind="cards" aria-label="Rules that match" rows=${rules} ...${{ columns, attributes }} />`;
}

/** Says which entry of the rule's networks or list a value matches. */
function memberText({ key, list: file, line, entry }) {
  return file ? `${key} is in ${file}, line ${number(line)}: ${entry}` : `${key} is in ${entry}`;
}

/** The rules above the answer that do not match, each with the first reason. */
function Mismatches({ rules }) {
  const [shown, setShown] = useState(PART);
  if (rules.length === 0)
    return html`<p class="hint">No rule above the answer was passed over. Rules below it are not asked.</p>`;
  const title = `${count(rules.length, 'rule')} above the answer ${rules.length === 1 ? 'does' : 'do'} not match`;
  const more = Math.min(PART, rules.length - shown);
  const item = (rule) => html`<li><${RuleLink} name=${rule.name} />: ${mismatch(rule)}</li>`;
  return html`
    <${Disclosure} title=${title} open=${rules.length <= 30}>
      ${() => html`
        <ul class="reasons">${rules.slice(0, shown).map(item)}</ul>
        ${more > 0 && html`<${Button} onclick=${() => setShown(shown + PART)}>Show ${number(more)} more<//>`}
      `}
    <//>
    <p class="hint">Rules below the answer are not asked.</p>
  `;
}

function mismatch({ finding, key, value, setting, pattern, ...condition }) {
  if (finding === 'key-missing') return html`<span>the field <code>${key}</code> is missing</span>`;
  const wanted = setting ? conditionText(condition) : html`, but must be <code>${pattern}</code>`;
  return html`<span><code>${key}</code> is <code>${value || '(empty)'}</code>${wanted}</span>`;
}

/** Says why a value does not meet the condition of `networks` or `list`. */
function conditionText({ entries, entry, lineInList }) {
  if (!entry) return html`, but must be in <code>${entries}</code>`;
  if (!lineInList) return html`, but must not be in <code>${entry}</code>`;
  const file = entries.replace(/^not /, '');
  return html`, but must not be in ${file}, line ${number(lineInList)}: <code>${entry}</code>`;
}
