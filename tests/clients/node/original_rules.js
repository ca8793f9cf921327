// Reads rules like Divvy 1.7.1, with its `ini` package for INI. Each line of standard input is a rules file as a JSON
// string, or a JSON rules file as `{"json": "..."}`. For each it prints a line: a JSON array of the rules, or `null` if
// Divvy rejects the file. For a JSON rules file it prints only the operations.
'use strict';

const ini = require('ini');
const readline = require('readline');

function operationOf(section) {
  const operation = new Map();
  if (section !== 'default') {
    for (const pair of section.split(/\s+/)) {
      const [key, value] = pair.split('=');
      operation.set(key, value || '');
    }
  }
  return [...operation].sort(([one], [other]) => (one < other ? -1 : 1));
}

function rulesOf(text) {
  const rules = [];
  for (const [section, settings] of Object.entries(ini.parse(text))) {
    const creditLimit = parseInt(settings.creditLimit, 10);
    const resetSeconds = parseInt(settings.resetSeconds, 10);
    const isRefused = !(creditLimit >= 0) || (creditLimit > 0 && !(resetSeconds >= 1));
    if (isRefused) return null;
    const text = (name) => (settings[name] ? String(settings[name]) : '');
    rules.push({
      operation: operationOf(section),
      creditLimit,
      // It has no meaning if everything is denied.
      resetSeconds: creditLimit === 0 ? 0 : resetSeconds,
      actorField: text('actorField'),
      matchPolicy: text('matchPolicy') || 'stop',
      label: text('label'),
    });
  }
  return rules;
}

function operationsOfJson(text) {
  const { overrides, default: last } = JSON.parse(text);
  const written = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
  return [...overrides, last].map(({ operation }) =>
    Object.entries(operation).map(([key, value]) => [key, written(value)]));
}

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const file = JSON.parse(line);
  console.log(JSON.stringify(typeof file === 'string' ? rulesOf(file) : operationsOfJson(file.json)));
});
