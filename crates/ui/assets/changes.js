/**
 * What the page may change: limits, blocks, allows and counters of single actors, through the same API and audit log as
 * everywhere. Marks and lists of blocks and allows.
 */

import * as api from './api.js';
import { count, duration } from './format.js';
import { html, useState } from './preact_htm.js';
import * as ruleText from './rule_text.js';
import { ActorLink, Button, CopyText, Dialog, Disclosure, Field, open, PagedList } from './widgets.js';

/** How long a limit may last (s). */
const TIMES = {
  'until someone removes it': '',
  'for an hour': 3600,
  'for a day': 86_400,
  'for a week': 604_800,
  'for 30 days': 2_592_000,
};
const UNITS = { minutes: 60, hours: 3600, days: 86_400 };
/** The name that stands for all rules. */
const ALL_RULES = '*';
const ORPHAN = html` <span class="chip">not in force</span>`;
/** Maximum number of bytes of a reason. */
const MAX_REASON = 256;
const WORDS = {
  block: {
    style: 'bad',
    state: 'blocked',
    list: 'Blocked actors',
    action: 'Block',
    removal: 'Remove a block',
    done: 'is blocked',
    effect: 'Every hit is denied, from the next one. Counters do not change.',
    reason: 'Denied clients may see it.',
  },
  allow: {
    style: 'ok',
    state: 'allowed',
    list: 'Allowed actors',
    action: 'Allow',
    removal: 'Remove an allow',
    done: 'is always allowed',
    effect: 'No hit is denied, from the next one. Hits count up to the limit.',
    reason: 'For people who look at this entry.',
  },
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

function lasting({ expiresIn }) {
  return expiresIn === null ? '' : `, for ${duration(expiresIn)}`;
}

/** Returns the words for the rules that a block or an allow concerns. */
function underRules(rule) {
  return rule === ALL_RULES ? 'under all rules' : `under ${rule}`;
}

/** Asks for a new limit of an actor, and sets it. */
export function setLimit(target, onDone) {
  open(html`<${LimitDialog} target=${target} onDone=${onDone} />`);
}

function LimitDialog({ target, onDone }) {
  const { rule, actor, shown, definition } = target;
  const [credits, setCredits] = useState(String(target.limit));
  const request = ({ elements: { time } }) => {
    const body = { credits: Number(credits), ...(time.value ? { expiresIn: Number(time.value) } : {}) };
    return ['PUT', '/v1/limits', { query: { rule, actor }, body }];
  };
  const done = (set) => `${shown} has a limit of ${count(set.credits, 'credit')} under ${rule}${lasting(set)}.`;
  const ruleToCopy = () => html`<${RuleToCopy} target=${target} credits=${Number(credits)} />`;
  return html`
    <${Dialog} title="Set a limit" action="Set limit" field="limit-credits" ...${{ request, done, onDone }}>
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
  const rule = ruleText.ruleForActor(definition, pairs, isValid ? credits : definition.creditLimit);
  const text = ruleText.write(rule, ruleText.formatOf(file));
  const advice = [
    !text && 'An INI file cannot express this actor. In a JSON file, the rule reads like this.',
    `Put it above the rule ${definition.name}. The file is the policy, so this page does not edit it.`,
    definition.matchPolicy === 'and' &&
      `Rule ${definition.name} continues to apply to this actor, so the lower of both limits decides.`,
    [...pairs.values()].some((value) => value.includes('*')) &&
      'In a rule, * stands for any text, so this rule matches other actors, too.',
    !definition.counter && 'The new rule counts afresh.',
  ];
  return html`
    <${CopyText} text=${text ?? ruleText.write(rule, 'json')} label="Rule to copy${text ? '' : ', in JSON'}" />
    <p class="hint">${advice.filter(Boolean).join(' ')}</p>
  `;
}

/** Asks, and gives the actor the limit of the rule again. */
export function removeLimit({ rule, actor, shown }, onDone) {
  const request = () => ['DELETE', '/v1/limits', { query: { rule, actor } }];
  const done = ({ removed }) =>
    removed ? `The limit of ${shown} under ${rule} is removed.` : `${shown} had no limit of its own.`;
  open(html`
    <${Dialog} title="Remove a limit" action="Remove limit" danger ...${{ request, done, onDone }}>
      <p>
        ${'Actor '}<code>${shown}</code>${' has the limit of rule '}<b>${rule}</b>
        ${' again, from the next hit. Used credits stay used.'}
      </p>
    <//>
  `);
}

/** Asks, and forgets the actor's counter, so that it has all credits again. */
export function forgetCounter({ rule, actor, shown, definition }, onDone) {
  const request = () => ['DELETE', '/v1/counters', { query: { rule, actor } }];
  const done = ({ forgotten }) =>
    forgotten > 0
      ? `The counter of ${shown || 'everyone'} under ${rule} is forgotten.`
      : 'There was no counter to forget.';
  open(html`
    <${Dialog} title="Forget a counter" action="Forget counter" danger ...${{ request, done, onDone }}>
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

/** A mark for an actor that is blocked or allowed. A canary denies nothing. */
export function OverrideChip({ kind, isCanary }) {
  if (kind === 'block' && isCanary) return html`<span class="chip canary">would be blocked</span>`;
  return html`<span class="chip ${WORDS[kind].style}">${WORDS[kind].state}</span>`;
}

/** Says how long a block or an allow lasts, which entry it comes from, and why it was set. */
export function OverrideDetails({ kind, expiresIn, reason, entry }) {
  const end = expiresIn === null ? 'until someone removes it' : `for another ${duration(expiresIn)}`;
  return html`
    <span class="more">
      ${WORDS[kind].state} ${end}${entry !== null && html`, under all rules, as <code>${entry}</code>`}
      ${reason !== null && html`: <bdi>${reason}</bdi>`}
    </span>
  `;
}

/**
 * Buttons that change the block or the allow of an actor, for users who may. An allow wins over a block, and so ends
 * its effect.
 * @param {{target: Target, override: object|null, onChange: () => void}} props
 */
export function OverrideButtons({ target, override, onChange }) {
  if (!api.mayChange('block')) return null;
  const button = (text, onclick) => html`<${Button} unseen="under ${target.rule}" onclick=${onclick}>${text}<//> `;
  const set = (kind, before) => () =>
    open(html`<${OverrideDialog} kind=${kind} target=${target} before=${before} onDone=${onChange} />`);
  if (!override) return ['block', 'allow'].map((kind) => button(WORDS[kind].action, set(kind)));
  const { kind, entry } = override;
  const place = entry === null ? target : { rule: ALL_RULES, actor: entry, shown: entry };
  return [
    entry === null && button(`Change ${kind}`, set(kind, override)),
    button(`Remove ${kind}`, () => removeOverride(kind, place, onChange)),
    kind === 'block' && button(WORDS.allow.action, set('allow')),
  ];
}

/** Asks how long and why, and blocks or allows an actor. `before` is the rule's own entry that this one replaces. */
function OverrideDialog({ kind, target, before, onDone }) {
  const words = WORDS[kind];
  // Under all rules, each field of the actor may be meant.
  const everywhere = [...target.pairs].map(([field, value]) => ({ rule: ALL_RULES, actor: `${field}=${value}` }));
  const own = ruleText.hasLastingName(target.rule, target.definition) ? [target] : [];
  const places = before ? own : [...everywhere, ...own];
  const request = ({ elements: { place, time, unit, reason } }) => {
    const { rule, actor } = places[Number(place.value)];
    const expiresIn = time.value === '' ? undefined : Number(time.value) * Number(unit.value);
    return ['PUT', `/v1/${kind}s`, { query: { rule, actor }, body: { reason: reason.value || undefined, expiresIn } }];
  };
  const done = (set, { rule }) => {
    const shown = rule === ALL_RULES ? set.actor : target.shown;
    return `${shown} ${words.done} ${underRules(rule)}${lasting(set)}.`;
  };
  const option = ({ rule, actor }, at) => html`
    <option value=${at}>${rule === ALL_RULES ? `all rules, as ${actor}` : `rule ${rule}`}</option>
  `;
  const usual = before ? UNITS.minutes : UNITS.hours;
  const unit = ([text, size]) => html`<option value=${size} selected=${size === usual}>${text}</option>`;
  const minutes = before && before.expiresIn !== null ? Math.ceil(before.expiresIn / 60) : '';
  return html`
    <${Dialog} title="${words.action} an actor" action=${words.action} field="override-reason" ...${{ request, done, onDone }}>
      <p>Actor <code>${target.shown}</code>. ${words.effect}</p>
      <${Field} id="override-place" label="It concerns">
        <select id="override-place" name="place">${places.map(option)}</select>
      <//>
      <${Field} id="override-time" label="It lasts">
        <div class="joined">
          <input id="override-time" name="time" type="number" min="1" step="1" inputmode="numeric"
            aria-describedby="override-time-hint" defaultValue=${before ? minutes : 1} />
          <select name="unit" aria-label="Unit of the time">${Object.entries(UNITS).map(unit)}</select>
        </div>
        <p class="hint" id="override-time-hint">Without a number, it lasts until someone removes it.</p>
      <//>
      <${Field} id="override-reason" label="Reason">
        <input id="override-reason" name="reason" maxlength=${MAX_REASON} autocomplete="off"
          aria-describedby="override-reason-hint" defaultValue=${before?.reason ?? ''} />
        <p class="hint" id="override-reason-hint">${words.reason}</p>
      <//>
    <//>
  `;
}

/** Asks, and removes a block or an allow. */
function removeOverride(kind, { rule, actor, shown }, onDone) {
  const request = () => ['DELETE', `/v1/${kind}s`, { query: { rule, actor } }];
  const done = ({ removed }) =>
    removed ? `The ${kind} of ${shown} ${underRules(rule)} is removed.` : `${shown} had no ${kind} any more.`;
  const place =
    rule === ALL_RULES ? 'all rules ends. It may concern other actors, too.' : html`rule <b>${rule}</b> ends.`;
  open(html`
    <${Dialog} title=${WORDS[kind].removal} action="Remove ${kind}" danger ...${{ request, done, onDone }}>
      <p>The ${kind} of <code>${shown}</code> under ${place}</p>
    <//>
  `);
}

/**
 * A list of blocks and one of allows, which load when they are opened.
 * @param {object} props
 * @param {string} [props.rule] the only rule whose entries are shown
 * @param {(rule: string) => string[]|null} props.fieldsOf returns the fields of the actors of a rule, if it is known
 */
export function OverrideLists(props) {
  const list = (kind) => () => html`<${OverrideList} kind=${kind} ...${props} />`;
  return ['block', 'allow'].map((kind) => html`<${Disclosure} title=${WORDS[kind].list}>${list(kind)}<//>`);
}

function OverrideList({ kind, rule: only, fieldsOf }) {
  const [version, setVersion] = useState(0);
  const name = ({ rule, actor }) => {
    const fields = rule === ALL_RULES ? null : fieldsOf(rule);
    return fields ? html`<${ActorLink} fields=${fields} name=${actor} />` : html`<code>${actor}</code>`;
  };
  const place = ({ rule, orphan }) => html`${rule === ALL_RULES ? 'all rules' : rule}${orphan && ORPHAN}`;
  const removal = ({ rule, actor }) => {
    const shown = actor || 'everyone';
    const remove = () => removeOverride(kind, { rule, actor, shown }, () => setVersion(version + 1));
    return html`<${Button} unseen="the ${kind} of ${shown} ${underRules(rule)}" onclick=${remove}>Remove<//>`;
  };
  const isOfAll = only === undefined;
  const columns = [
    ['Actor', '', name],
    isOfAll && ['Rule', '', place],
    ['Ends in', 'number', ({ expiresIn }) => (expiresIn === null ? 'never' : duration(expiresIn))],
    ['Reason', '', ({ reason }) => (reason === null ? '–' : html`<bdi>${reason}</bdi>`)],
    api.mayChange('block') && ['Actions', 'actions', removal],
  ];
  const query = isOfAll ? {} : { rule: only };
  const none = `No actor is ${WORDS[kind].state}${isOfAll ? '' : ' under this rule alone'}.`;
  return html`<${PagedList} key=${version} member="${kind}s" ...${{ query, columns, none }} />`;
}
