// Runs GGUF exports in llama.cpp: same token ids, probabilities and texts.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { greedy, ids_of, largest_difference, llama_missing, load, log_probabilities, prompt_ids, warnings } from './llama.js';
import { log_softmax, read_logits, write_ids } from './tensors.js';
import { thimble } from './thimble.js';

const folder = mkdtempSync(join(tmpdir(), 'thimble-gguf-'));
after(() => rmSync(folder, { recursive: true }));
const file = (name) => join(folder, name);

function run(...words) {
  const { exit_code, stdout, stderr } = thimble(...words);
  assert.equal(exit_code, 0, `thimble ${words.join(' ')}: ${stderr}`);
  return stdout;
}

// Covers every architecture and tokenizer kind, tied and untied embeddings, and a different head
// size.
const models = {
  llama: { preset: 'llama', tokenizer: 'bpe-o200k', set: ['tie_embeddings=false'] },
  qwen2: { preset: 'qwen2', tokenizer: 'bpe-gpt2', set: [] },
  qwen3: { preset: 'qwen3', tokenizer: 'bpe-llama3', set: ['head_dim=32'] },
  pieces: {
    preset: 'llama', tokenizer: 'sentencepiece:512', data: 'chats.jsonl',
    set: ['kv_heads=4', 'rope_direction=-1', 'steps=200'],
  },
  bytes: { preset: 'qwen3', tokenizer: 'bytes', set: [] },
  chat: {
    preset: 'chat', tokenizer: 'bpe:512', data: 'chats.jsonl',
    set: ['steps=80', 'batch_tokens=4096', 'lr=0.03', 'matrix_lr=0.015'],
  },
};
const small = ['layers=2', 'dim=64', 'heads=4', 'kv_heads=2', 'mlp_hidden=96', 'context=256', 'steps=60', 'lr=0.01',
  'batch_tokens=1024', 'val_every=1000', 'warmup_steps=2'];

function make_model(name) {
  const { preset, tokenizer, data, set } = models[name];
  const own = tokenizer.startsWith('bpe-') ? file(`${tokenizer}.json`) : tokenizer;
  run('train', '--preset', preset, '--data', file(data ?? 'tales.txt'), '--tokenizer', own, '-q', '--threads', '2',
    ...Object.entries(Object.fromEntries([...small, ...set].map((setting) => setting.split('='))))
      .flatMap(([key, value]) => ['--set', `${key}=${value}`]), '-o', file(name));
  run('export', file(name), '--format', 'gguf', '--type', 'f32', '-o', file(`${name}.gguf`));
}

const skip = llama_missing;

before(() => {
  if (skip) return;
  run('data', 'sample', '--kind', 'tales', '--size', '100k', '-o', file('tales.txt'), '-q');
  run('data', 'sample', '--kind', 'chat', '--count', '400', '-o', file('chats.jsonl'), '-q');
  for (const pattern of ['o200k', 'gpt2', 'llama3']) // the chat model covers qwen2
    run('tokenizer', 'train', file('tales.txt'), '--vocab-size', '400', '--pattern', pattern, '-q',
      '-o', file(`bpe-${pattern}.json`));
  for (const name of Object.keys(models)) make_model(name);
});

async function with_model(name, use) {
  const model = await load(file(name));
  try {
    return await use(model);
  } finally {
    await model.dispose();
  }
}

// thimble's log-probabilities after each of the ids.
function traced(name, ids) {
  write_ids(file('ids.safetensors'), ids);
  run('trace', file(name), '--tokens', file('ids.safetensors'), '-o', file('trace.safetensors'), '--force');
  return read_logits(file('trace.safetensors')).map(log_softmax);
}

const texts = ['Once upon a time there was a red house.', "It's 12 o'clock, I've 345678 apples; WE'LL see!!",
  'a  b   c \n\n d\t\te ', ' leading', 'trailing ', 'Zürich, naïve, 東京, \u{1F600}\u200d, \u0301e',
  '"<bos>" said <user>: x=1;\r\n\ty',
  'under_score -- (1.5%) http://a.b/c?d=e'];
const opening = 'Once upon a time there was a red house. The cat sat in the garden and';

for (const name of Object.keys(models)) {
  test(`${name}: llama.cpp tokenizes text to the same ids`, { skip }, async () => {
    await with_model(`${name}.gguf`, (model) => {
      for (const text of texts) {
        const { tokens } = JSON.parse(run('tokenizer', 'encode', file(name), '--whole', '--text', text, '--json'));
        assert.deepEqual(ids_of(model, text), tokens.flat(), JSON.stringify(text));
      }
    });
  });

  test(`${name}: llama.cpp gives the same probabilities and the same 64 greedy tokens`, { skip }, async (t) => {
    await with_model(`${name}.gguf`, async (model) => {
      const ids = [model.tokens.bos, ...ids_of(model, opening)];
      const difference = largest_difference(traced(name, ids), await log_probabilities(model, ids));
      t.diagnostic(`largest difference of log-probabilities: ${difference.toExponential(1)}`);
      assert.ok(difference < 1e-4, `${difference}`);

      const { samples: [ours] } = JSON.parse(run('generate', file(name), opening, '--greedy', '--dtype', 'f32',
        '--max-tokens', '64', '--json'));
      const theirs = (await greedy(model, ids, 64)).filter((id) => !model.isEogToken(id));
      assert.deepEqual(theirs, ours.tokens);
      if (name !== 'bytes') assert.ok(new Set(theirs).size > 2, 'the text is not just a repeated token');
    });
  });
}

test('thimble reads its own GGUF export as the same model', { skip }, () => {
  for (const name of ['llama', 'pieces']) {
    const ours = traced(name, [0, 5, 300, 17, 42]), again = traced(`${name}.gguf`, [0, 5, 300, 17, 42]);
    ours.forEach((row, i) => row.forEach((log_p, id) => assert.ok(Math.abs(log_p - again[i][id]) < 1e-5)));
  }
});

// ggml rounds the activations that it multiplies with such weights to f16, bf16 or 8 bits; the
// tolerances allow for that.
for (const [type, bar] of [['f16', 0.01], ['bf16', 0.1], ['q8_0', 0.2], ['q4_0', 0.2]]) {
  test(`${type}: llama.cpp and thimble read the same weights`, { skip }, async (t) => {
    run('export', file('qwen3'), '--format', 'gguf', '--type', type, '-o', file(`${type}.gguf`));
    await with_model(`${type}.gguf`, async (model) => {
      const ids = [model.tokens.bos, ...ids_of(model, opening)];
      const difference = largest_difference(traced(`${type}.gguf`, ids), await log_probabilities(model, ids), 1e-3);
      t.diagnostic(`largest difference of log-probabilities: ${difference.toExponential(1)}`);
      assert.ok(difference < bar, `${difference}`);
    });
  });
}

// Token ids of the documents in a folder of shards.
function documents_of(shards, bos) {
  const name = readdirSync(shards).find((entry) => /_train_\d+\.bin$/.test(entry));
  const bytes = readFileSync(join(shards, name));
  const ids = Array.from({ length: (bytes.length - 1024) / 2 }, (_, i) => bytes.readUInt16LE(1024 + 2 * i));
  const starts = ids.flatMap((id, i) => (id === bos ? [i] : []));
  return starts.map((start, i) => ids.slice(start, starts[i + 1]));
}

const chats = [
  [{ role: 'user', content: 'Where is the cat?' }, { role: 'assistant', content: 'In the garden.' }],
  [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: ' Two  spaces\n\n and a "quote" ' },
    { role: 'assistant', content: 'Yes.' }, { role: 'user', content: 'Why?' }, { role: 'assistant', content: 'So.' }],
];

for (const name of ['chat', 'pieces']) {
  test(`${name}: the chat template in the file gives the same layout as training`, { skip }, async () => {
    const [conversations, shards] = [file(`${name}.jsonl`), file(`${name}-shards`)];
    writeFileSync(conversations, chats.map((messages) => `${JSON.stringify({ messages })}\n`).join(''));
    run('data', 'build', conversations, '--chat', '--tokenizer', file(name), '--val-docs', '0', '-q', '-o', shards);
    await with_model(`${name}.gguf`, (model) => {
      const documents = documents_of(shards, model.tokens.bos);
      assert.equal(documents.length, chats.length);
      chats.forEach((messages, i) => {
        assert.deepEqual(prompt_ids(model, messages, { add_generation_prompt: false }), documents[i]);
        const answer = documents[i].lastIndexOf(model.tokenize('<assistant>', true)[0]);
        assert.deepEqual(prompt_ids(model, messages.slice(0, -1)), documents[i].slice(0, answer + 1));
      });
      assert.equal(model.fileInfo.metadata.tokenizer.ggml.eot_token_id, documents[0].at(-1));
    });
  });
}

// Checks that each id after `from` is the most likely one. Near ties may differ because of rounding
// to f16.
function assert_greedy(log_probabilities, ids, from) {
  for (let i = from; i < ids.length; ++i) {
    const row = log_probabilities[i - 1], best = row.indexOf(row.reduce((a, b) => Math.max(a, b), -Infinity));
    if (best === ids[i]) continue;
    assert.ok(row[best] - row[ids[i]] < 0.01, `position ${i}: ${best} is more likely than ${ids[i]}`);
  }
}

test('chat: an f16 export gives the same greedy answers as the model', { skip }, async () => {
  run('export', file('chat'), '--format', 'gguf', '-o', file('chat-f16.gguf'));
  const questions = readFileSync(file('chats.jsonl'), 'utf8').split('\n').slice(0, 5).map((line) => JSON.parse(line));
  await with_model('chat-f16.gguf', async (model) => {
    for (const { messages } of questions) {
      const prompt = prompt_ids(model, messages.slice(0, messages.findIndex(({ role }) => role === 'assistant')));
      const answer = await greedy(model, prompt, 24);
      assert.ok(answer.length > 0);
      assert_greedy(traced('chat', [...prompt, ...answer]), [...prompt, ...answer], prompt.length);
    }
  });
});

test('the ends of texts and turns are known, without warnings', { skip }, async () => {
  run('export', file('chat'), '--format', 'gguf', '-o', file('chat-ends.gguf'));
  warnings.length = 0;
  await with_model('chat-ends.gguf', (model) => {
    assert.ok(model.isEogToken(model.tokens.eos));
    assert.ok(model.isEogToken(model.tokenize('<end_turn>', true)[0]));
  });
  await new Promise((resolve) => setTimeout(resolve, 100)); // messages arrive later
  assert.deepEqual(warnings.filter((warning) => warning.includes('special_')), []);
});
