/**
 * What rules say, and texts as in rules files: `key=value "another key"="some value"`. Mirrors
 * crates/core/src/rules/operation_text.rs and actor.rs. The page never edits rules, because the file is the policy.
 */

/** Members of a rule in `GET /v1/rules` that are no settings. */
const OTHERS = ['name', 'operation', 'allowed', 'denied'];
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

/** A mistake in an operation that a person typed. */
export class SyntaxMistake extends Error {}

/**
 * Parses the pairs of an operation. The last of a repeated key wins.
 * @param {string} text
 * @param {{escapes?: boolean}} [options] `escapes`: a backslash in quotes protects the next character, as in actors.
 * @returns {Map<string, string>}
 */
export function parse(text, { escapes = false } = {}) {
  const pairs = new Map();
  let at = skipSpace(text, 0);
  while (at < text.length) {
    const key = readString(text, at, escapes);
    if (text[key.end] !== '=') {
      const wrong = text.slice(at, key.end) || text.slice(at);
      throw new SyntaxMistake(`“${wrong}” is not followed by = and a value, as in user=ann`);
    }
    const value = readString(text, key.end + 1, escapes);
    if (/^\S/.test(text.slice(value.end))) {
      const advice = `put the value of “${key.text}” in double quotes, because it contains a special character`;
      throw new SyntaxMistake(advice);
    }
    pairs.set(key.text, value.text);
    at = skipSpace(text, value.end);
  }
  return pairs;
}

function skipSpace(text, start) {
  return start + text.slice(start).search(/\S|$/);
}

/** Reads a key or a value, which may be in quotes. */
function readString(text, start, escapes) {
  const quoted = escapes ? /"((?:[^"\\]|\\[^])*)"/y : /"([^"]*)"/y;
  const pattern = text[start] === '"' ? quoted : /([^=\s]*)/y;
  pattern.lastIndex = start;
  const found = pattern.exec(text);
  if (!found) throw new SyntaxMistake('a double quote is not closed');
  const unescapes = escapes && pattern === quoted;
  return { text: unescapes ? found[1].replace(/\\([^])/g, '$1') : found[1], end: pattern.lastIndex };
}

/** Writes the fields of an actor so that [parse] with `escapes` reads them. */
export function writeActor(pairs) {
  const string = (part) => (/^"|[\s=]/.test(part) ? `"${part.replace(/["\\]/g, '\\$&')}"` : part);
  return [...pairs].map(([key, value]) => `${string(key)}=${string(value)}`).join(' ');
}

/** Returns the fields of a rule's `actorField`, which may be absent, a name or a list of names. */
export function actorFields(rule) {
  return [rule.actorField ?? []].flat();
}

/** Returns the actor's name that these pairs form under a rule: a value, or `user=a path=/b` with several fields. */
export function actorName(fields, pairs) {
  if (fields.length === 0) return '';
  if (fields.length === 1) return pairs.get(fields[0]) ?? '';
  return writeActor(fields.map((field) => [field, pairs.get(field) ?? '']));
}

/** Returns the fields of the actor that a counter names, as [parse] reads them. */
export function actorQuery(fields, name) {
  return fields.length === 1 ? writeActor([[fields[0], name]]) : name;
}

/** Returns whether a pattern of a rule, in which * is any text, matches a value. */
export function matches(pattern, value) {
  const [first, ...rest] = pattern.split('*');
  if (rest.length === 0) return value === pattern;
  if (!value.startsWith(first)) return false;
  let at = first.length;
  const last = rest.pop();
  for (const part of rest) {
    const found = value.indexOf(part, at);
    if (found < 0) return false;
    at = found + part.length;
  }
  return value.length - last.length >= at && value.endsWith(last);
}

/** Returns whether a rule counts anything. */
export function counts(rule) {
  return rule.creditLimit > 0 && rule.resetSeconds !== 0;
}

/** Returns the most credits that a counter of this rule can have left. */
export function capacity(rule) {
  return rule.burst ?? rule.creditLimit;
}

/** Returns whether limits and counters of single actors can be changed under this rule. */
export function isNamed(rule) {
  return Boolean(rule.label) || rule.name === 'default';
}

/** Returns the same for a rule with this name, whose definition only some users may read. */
export function hasLastingName(name, definition) {
  return definition ? isNamed(definition) : !/^rule-\d+$/.test(name);
}

/**
 * Returns the rule that limits one actor of `rule`, to be put above it.
 * @param {Map<string, string>} pairs the actor's fields
 */
export function ruleForActor(rule, pairs, credits) {
  const fields = actorFields(rule);
  const operation = { ...rule.operation };
  for (const field of fields) operation[field] = pairs.get(field) ?? '';
  // Labels may have only some characters.
  const values = fields.map((each) => operation[each]).join('-');
  const words = values.replace(/[^a-zA-Z0-9_-]+/g, '-').replace(/^-+|-+$/g, '');
  const label = `${rule.label ?? rule.name}-${words || 'actor'}`.slice(0, 255);
  // An actor that is a network, or an address in any notation.
  const field = Object.keys(rule.actorPrefix ?? {})[0];
  const networks = field && /[.:]/.test(operation[field]) ? { [field]: operation[field] } : rule.networks;
  if (networks !== rule.networks) operation[field] = '*';
  return { ...rule, operation, networks, creditLimit: credits, label, comment: undefined };
}

/** Returns the format of a rules file, by its name. */
export function formatOf(file) {
  return file?.toLowerCase().endsWith('.json') ? 'json' : 'ini';
}

/**
 * Returns a rule's text, or null if an INI file cannot express it.
 * @param {object} rule as `GET /v1/rules` describes it
 * @param {'ini'|'json'} format
 */
export function write(rule, format) {
  const isGiven = ([name, value]) => !OTHERS.includes(name) && (value ?? USUAL[name]) !== USUAL[name];
  const given = Object.entries(rule).filter(isGiven);
  if (format === 'json')
    return `${JSON.stringify({ operation: rule.operation, ...Object.fromEntries(given) }, null, 2)}\n`;
  const header = Object.entries(rule.operation).map((pair) => pair.map(headerString));
  const settings = given.map(([name, value]) => [name, iniValue(value)]);
  if ([...header, ...settings].flat().includes(null)) return null;
  const lines = [`[${header.map((pair) => pair.join('=')).join(' ') || 'default'}]`];
  return [...lines, ...settings.map((pair) => pair.join(' = ')), ''].join('\n');
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
