// Validates the JSON of `doctor` and the format of usage errors with a JSON Schema validator.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import Ajv from 'ajv/dist/2020.js';
import { thimble } from './thimble.js';

const ajv = new Ajv({ strict: true, strictRequired: false, allowUnionTypes: true, allErrors: true });

function assert_matches(schema, value) {
  const file = new URL(`schemas/${schema}.schema.json`, import.meta.url);
  const validate = ajv.compile(JSON.parse(readFileSync(file, 'utf8')));
  assert.ok(validate(value), `${ajv.errorsText(validate.errors)}\n${JSON.stringify(value, null, 2)}`);
}

test('doctor --json prints one object that matches the schema', () => {
  const run = thimble('doctor', '--json');
  assert.equal(run.exit_code, 0, run.stderr);
  assert.equal(run.stderr, '');
  assert_matches('doctor', JSON.parse(run.stdout));
});

test('doctor --json --measure adds a copy rate', () => {
  const report = JSON.parse(thimble('doctor', '--json', '--measure', '--quiet').stdout);
  assert_matches('doctor', report);
  assert.ok(report.copy.gigabytes_per_second > 0);
});

test('a usage error prints nothing on stdout and an explanation on stderr', () => {
  for (const words of [['doctor', '--jsno'], ['docter'], ['doctor', '--threads', 'two', '--json'], ['doctor', 'x']])
    assert_matches('usage-error', thimble(...words));
});
