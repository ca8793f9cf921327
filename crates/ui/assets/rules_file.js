/**
 * The text of a change to copy: a rule in the syntax of the rules file. The page never edits rules, because the file is
 * the policy.
 */

import { actorFields } from './operation.js';

/** Settings in the order of the documentation. */
const SETTINGS = [
  'creditLimit', 'resetSeconds', 'window', 'timezone', 'resetAt', 'networks', 'list', 'actorField', 'actorPrefix',
  'matchPolicy', 'algorithm', 'refillCredits', 'refillSeconds', 'burst', 'costField', 'holdField', 'overrun',
  'counter', 'blockAfter', 'blockWindow', 'blockSeconds', 'blockFactor', 'blockMax', 'blockForget', 'label',
  'comment',
];
/** Values that need not be written. */
const USUAL = {
  timezone: 'UTC',
  resetAt: '00:00',
  matchPolicy: 'stop',
  algorithm: 'fixed-window',
  overrun: 'refuse',
  blockWindow: 60,
  blockFactor: 2,
  blockForget: 86_400,
};

/**
 * Returns a rule's text, or null if an INI file cannot express it.
 * @param {object} rule as `GET /v1/rules` describes it
 * @param {'ini'|'json'} format
 */
export function write(rule, format) {
  return format === 'json' ? writeJson(rule) : writeIni(rule);
}

/** Returns the format of a rules file, by its name. */
export function formatOf(file) {
  return file?.toLowerCase().endsWith('.json') ? 'json' : 'ini';
}

/**
 * Returns the rule that limits one actor of `rule`, to be put above it.
 * @param {Map<string, string>} pairs the actor's fields
 */
export function ruleForActor(rule, pairs, credits) {
  const fields = actorFields(rule);
  const operation = { ...rule.operation };
  for (const field of fields) operation[field] = pairs.get(field) ?? '';
  const values = fields.map((field) => operation[field]);
  // An actor that is a network, or an address in any notation.
  const field = Object.keys(rule.actorPrefix ?? {})[0];
  const networks = field && /[.:]/.test(operation[field]) ? { [field]: operation[field] } : rule.networks;
  if (networks !== rule.networks) operation[field] = '*';
  const { name, ...settings } = rule;
  const label = newLabel(rule.label ?? name, values);
  return { ...settings, operation, networks, creditLimit: credits, label, comment: undefined };
}

/** Returns a label from characters that labels may have. */
function newLabel(label, values) {
  const words = values.join('-').replace(/[^a-zA-Z0-9_-]+/g, '-').replace(/^-+|-+$/g, '');
  return `${label}-${words || 'actor'}`.slice(0, 255);
}

function given(rule) {
  const isGiven = ([name, value]) => value !== undefined && value !== null && value !== USUAL[name];
  return SETTINGS.map((name) => [name, rule[name]]).filter(isGiven);
}

function writeIni(rule) {
  const pairs = Object.entries(rule.operation);
  const header = pairs.map(([key, value]) => [headerString(key), headerString(value)]);
  if (header.flat().includes(null)) return null;
  const lines = [`[${header.map((pair) => pair.join('=')).join(' ') || 'default'}]`];
  for (const [name, value] of given(rule)) {
    const text = iniValue(value);
    if (text === null) return null;
    lines.push(`${name} = ${text}`);
  }
  return `${lines.join('\n')}\n`;
}

/** Quotes a key or value of a header where that may be needed. Null: quotes have no escapes. */
function headerString(part) {
  if (/^[a-zA-Z0-9_.\/:*@+-]*$/.test(part)) return part;
  return /["\r\n]/.test(part) ? null : `"${part}"`;
}

function iniValue(value) {
  if (Array.isArray(value)) {
    return value.some((field) => /[,]|^\s|\s$/.test(field)) ? null : iniValue(value.join(', '));
  }
  if (typeof value === 'object') {
    const [[field, text]] = Object.entries(value);
    return /: |^\s|\s$/.test(field) ? null : JSON.stringify(`${field}: ${text}`);
  }
  const text = String(value);
  return text !== 'null' && /^[a-zA-Z0-9_.\/:*-]+$/.test(text) ? text : JSON.stringify(text);
}

function writeJson(rule) {
  return `${JSON.stringify({ operation: rule.operation, ...Object.fromEntries(given(rule)) }, null, 2)}\n`;
}
