/** Blocks and allows of actors: marks, lists, and the dialogs that set and remove them. */

import * as api from './api.js';
import { Dialog, Field, notify, open } from './dialogs.js';
import { duration } from './format.js';
import { html, useState } from './preact_htm.js';
import { ActorLink, Button, Disclosure, PagedList } from './widgets.js';

/** The name that stands for all rules. */
const ALL_RULES = '*';
const UNITS = { minutes: 60, hours: 3600, days: 86_400 };
const ORPHAN = html` <span class="chip">not in force</span>`;
/** Maximum number of bytes of a reason. */
const MAX_REASON = 256;
const WORDS = {
  block: {
    style: 'bad',
    state: 'blocked',
    list: 'Blocked actors',
    title: 'Block an actor',
    removal: 'Remove a block',
    action: 'Block',
    done: 'is blocked',
    effect: 'Every hit is denied, from the next one. Counters do not change.',
    reason: 'Denied clients may see it.',
  },
  allow: {
    style: 'ok',
    state: 'allowed',
    list: 'Allowed actors',
    title: 'Allow an actor',
    removal: 'Remove an allow',
    action: 'Allow',
    done: 'is always allowed',
    effect: 'No hit is denied, from the next one. Hits count up to the limit.',
    reason: 'For people who look at this entry.',
  },
};

/** A mark for an actor that is blocked or allowed. A canary denies nothing. */
export function OverrideChip({ kind, isCanary }) {
  if (kind === 'block' && isCanary) return html`<span class="chip canary">would be blocked</span>`;
  return html`<span class="chip ${WORDS[kind].style}">${WORDS[kind].state}</span>`;
}

/** Says how long an override lasts, which entry it comes from, and why it was set. */
export function OverrideDetails({ kind, endsIn, reason, entry }) {
  const end = endsIn === null ? 'until someone removes it' : `for another ${duration(endsIn)}`;
  return html`
    <span class="more">
      ${WORDS[kind].state} ${end}${entry !== null && html`, under all rules, as <code>${entry}</code>`}
      ${reason !== null && html`: <bdi>${reason}</bdi>`}
    </span>
  `;
}

/** Returns the words for the rules that an override concerns. */
function underRules(rule) {
  return rule === ALL_RULES ? 'under all rules' : `under ${rule}`;
}

/**
 * Buttons that change the block or the allow of an actor, for users who may. An allow wins over a block, and so ends
 * its effect.
 * @param {{target: import('./changes.js').Target, override: object|null, onChange: () => void}} props
 */
export function OverrideButtons({ target, override, onChange }) {
  if (!api.mayChange('block')) return null;
  const unseen = `under ${target.rule}`;
  const button = (text, onclick) => html`<${Button} unseen=${unseen} onclick=${onclick}>${text}<//> `;
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
  const places = before ? ownPlace(target) : [...everywhere(target), ...ownPlace(target)];
  const act = async ({ elements }) => {
    const { rule, actor } = places[Number(elements.place.value)];
    const time = elements.time.value === '' ? null : Number(elements.time.value) * Number(elements.unit.value);
    const reason = elements.reason.value;
    const body = { ...(reason ? { reason } : {}), ...(time === null ? {} : { expiresIn: time }) };
    const set = await api.send('PUT', `/v1/${kind}s`, { query: { rule, actor }, body });
    const ends = set.expiresIn === null ? '' : `, for ${duration(set.expiresIn)}`;
    notify(`${rule === ALL_RULES ? set.actor : target.shown} ${words.done} ${underRules(rule)}${ends}.`);
    onDone();
  };
  const option = ({ rule, actor }, at) => html`
    <option value=${at}>${rule === ALL_RULES ? `all rules, as ${actor}` : `rule ${rule}`}</option>
  `;
  const usual = before ? UNITS.minutes : UNITS.hours;
  const unit = ([text, size]) => html`<option value=${size} selected=${size === usual}>${text}</option>`;
  const minutes = before && before.endsIn !== null ? Math.ceil(before.endsIn / 60) : '';
  return html`
    <${Dialog} title=${words.title} action=${words.action} field="override-reason" act=${act}>
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

/** Returns the places where each field of an actor may be blocked or allowed under all rules. */
function everywhere({ pairs }) {
  return [...pairs].map(([field, value]) => ({ rule: ALL_RULES, actor: `${field}=${value}` }));
}

/** Returns the actor's rule, if it has a lasting name. */
function ownPlace({ rule, actor, definition }) {
  return api.hasLastingName(rule, definition) ? [{ rule, actor }] : [];
}

/** Asks, and removes a block or an allow. */
function removeOverride(kind, { rule, actor, shown }, onDone) {
  const act = async () => {
    const { removed } = await api.send('DELETE', `/v1/${kind}s`, { query: { rule, actor } });
    notify(removed ? `The ${kind} of ${shown} ${underRules(rule)} is removed.` : `${shown} had no ${kind} any more.`);
    onDone();
  };
  const place =
    rule === ALL_RULES ? 'all rules ends. It may concern other actors, too.' : html`rule <b>${rule}</b> ends.`;
  open(html`
    <${Dialog} title=${WORDS[kind].removal} action="Remove ${kind}" danger act=${act}>
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
  const mayChange = api.mayChange('block');
  const isOfAll = only === undefined;
  const [place, actions] = [isOfAll && { Rule: '' }, mayChange && { Actions: 'unseen' }];
  const columns = { Actor: '', ...place, 'Ends in': 'number', Reason: '', ...actions };
  const name = (rule, actor) => {
    const fields = rule === ALL_RULES ? null : fieldsOf(rule);
    return fields ? html`<${ActorLink} fields=${fields} name=${actor} />` : html`<code>${actor}</code>`;
  };
  const removal = (rule, actor) => {
    const shown = actor || 'everyone';
    const remove = () => removeOverride(kind, { rule, actor, shown }, () => setVersion(version + 1));
    return html`<${Button} unseen="the ${kind} of ${shown} ${underRules(rule)}" onclick=${remove}>Remove<//>`;
  };
  const row = ({ rule, actor, expiresIn, reason, orphan }) => html`
    <tr>
      <td>${name(rule, actor)}</td>
      ${isOfAll && html`<td>${rule === ALL_RULES ? 'all rules' : rule}${orphan && ORPHAN}</td>`}
      <td class="number">${expiresIn === null ? 'never' : duration(expiresIn)}</td>
      <td>${reason === null ? '–' : html`<bdi>${reason}</bdi>`}</td>
      ${mayChange && html`<td class="number">${removal(rule, actor)}</td>`}
    </tr>
  `;
  const query = isOfAll ? {} : { rule: only };
  const none = `No actor is ${WORDS[kind].state}${isOfAll ? '' : ' under this rule alone'}.`;
  return html`
    <${PagedList} key=${version} path="/v1/${kind}s" member="${kind}s" ...${{ query, columns, none }}>${row}<//>
  `;
}
