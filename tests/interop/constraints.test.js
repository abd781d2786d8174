// Tests that constrained answers are valid for another validator (ajv), over the schemas of the
// official JSON Schema tests and with the helpers of the openai client.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import Ajv2020 from 'ajv/dist/2020.js';
import { decompress } from 'fzstd';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { remove, serve, temporary_folder, train } from './server.js';

const folder = temporary_folder();
const official = new URL('../../../shared/benchmarks/json-schema-2020-12.json.zst', import.meta.url);
let server, client;

before(async () => {
  server = await serve(train(folder, 'chatty'));
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
after(async () => {
  await server.stop();
  remove(folder);
});

const messages = [{ role: 'user', content: 'Tilda has eight pears. Will has one pear. Who has fewer pears?' }];

const Person = z.object({
  name: z.string().max(12),
  age: z.number().int().min(0).max(120),
  kind: z.enum(['child', 'adult']),
  pets: z.array(z.object({ name: z.string().max(8), legs: z.union([z.literal(2), z.literal(4)]) })).max(2),
  note: z.string().max(10).nullable(),
});

test('zodResponseFormat gives parsed answers', async () => {
  for (let seed = 0; seed < 5; ++seed) {
    const answer = await client.chat.completions.parse({
      model: 'any', messages, seed, temperature: 1, response_format: zodResponseFormat(Person, 'person'),
    });
    assert.equal(answer.choices[0].finish_reason, 'stop');
    assert.deepEqual(Person.parse(answer.choices[0].message.parsed), answer.choices[0].message.parsed);
  }
});

test('zodResponseFormat gives parsed answers when streaming', async () => {
  const stream = client.chat.completions.stream({
    model: 'any', messages, seed: 1, temperature: 1, response_format: zodResponseFormat(Person, 'person'),
  });
  const answer = await stream.finalChatCompletion();
  Person.parse(answer.choices[0].message.parsed);
});

test('answers to the official schemas that end by themselves are valid', { skip: !existsSync(official) && 'no official tests' }, async () => {
  const files = JSON.parse(new TextDecoder().decode(decompress(new Uint8Array(readFileSync(official)))));
  // Without these options ajv rounds quotients of multipleOf, and finds "toString" in every object.
  const ajv = new Ajv2020({ strict: false, validateFormats: false, multipleOfPrecision: 6, ownProperties: true });
  let schemas = 0, complete = 0;
  for (const [file, groups] of Object.entries(files)) {
    for (const group of groups) {
      let validate;
      try {
        validate = ajv.compile(typeof group.schema === 'object' ? { ...group.schema, $id: undefined } : group.schema);
      } catch {
        continue;
      }
      const body = { prompt: 'Tilda', max_tokens: 120, temperature: 1, n: 8, seed: 5,
        response_format: { type: 'json_schema', json_schema: { name: 'x', schema: group.schema } } };
      const response = await fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify(body) });
      if (response.status === 400) continue;  // not supported
      assert.equal(response.status, 200, `${file}: ${group.description}`);
      ++schemas;
      for (const { text, finish_reason } of (await response.json()).choices) {
        if (finish_reason !== 'stop') continue;
        ++complete;
        assert.ok(validate(JSON.parse(text)), `${file}: ${group.description}: ${text}`);
      }
    }
  }
  assert.ok(schemas > 150 && complete > 800, `${schemas} schemas, ${complete} complete answers`);
});
