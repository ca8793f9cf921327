/**
 * Operations and actors as text: `key=value "another key"="some value"`, as in rules files and on the command line.
 * Mirrors crates/core/src/rules/operation.rs and actor.rs.
 */

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
  if (!rule.actorField) return [];
  return Array.isArray(rule.actorField) ? rule.actorField : [rule.actorField];
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
