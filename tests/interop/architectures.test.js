// Runs a model of every family of formats/architectures in llama.cpp: same probabilities and texts.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { greedy, ids_of, largest_difference, llama_missing, load, log_probabilities } from './llama.js';
import { log_softmax, read_logits, write_ids } from './tensors.js';
import { thimble } from './thimble.js';

const folder = mkdtempSync(join(tmpdir(), 'thimble-families-'));
after(() => rmSync(folder, { recursive: true }));
const file = (name) => join(folder, name);

function run(...words) {
  const { exit_code, stdout, stderr } = thimble(...words);
  assert.equal(exit_code, 0, `thimble ${words.join(' ')}: ${stderr}`);
  return stdout;
}

const gemma = ['mlp=geglu', 'post_norm=true', 'embed_scale=true', 'head_dim=32', 'window=8', 'query_scalar=24',
  'norm_eps=1e-6'];
// The window of mistral becomes the context of its file.
const families = {
  llama: { set: ['rope_scaling=llama3', 'rope_factor=8', 'rope_original_context=64', 'tie_embeddings=false'] },
  mistral: { architecture: 'llama', set: ['window=40', 'head_dim=32'] },
  smollm3: { set: ['nope_every=4', 'layers=5'] },
  yarn: { architecture: 'llama', set: ['rope_scaling=yarn', 'rope_factor=4', 'rope_original_context=32', 'rope_beta_fast=4'] },
  // llama.cpp uses the short factors, because its context of at least 256 is no longer than the original one.
  longrope: {
    architecture: 'phi3',
    set: ['rope_scaling=longrope', 'rope_factor=4', 'rope_original_context=512', 'rope_short_factors=1,1.1,1.2,1.3,1.5,1.7,2,2.5',
      'rope_long_factors=1,2,3,4,5,6,7,8'],
  },
  // Not named phi3: llama.cpp expects Phi's special tokens in files with that name.
  partial: { architecture: 'phi3', set: ['rope_dims=8'] },
  gemma2: { set: [...gemma, 'global_every=2', 'attention_softcap=2', 'logit_softcap=5'] },
  gemma3: {
    set: [...gemma, 'qk_norm=true', 'global_every=6', 'layers=7', 'local_rope_base=10000', 'rope_base=1e6',
      'rope_scaling=linear', 'rope_factor=8'],
  },
  gemma3_period: {
    architecture: 'gemma3', set: [...gemma, 'qk_norm=true', 'global_every=3', 'local_rope_base=5000'],
  },
  gpt2: { set: ['norm=layer', 'position=learned', 'mlp=gelu', 'bias=true', 'kv_heads=4'] },
};
const small = ['layers=4', 'dim=64', 'heads=4', 'kv_heads=2', 'mlp_hidden=96', 'context=128', 'steps=40', 'lr=0.01',
  'batch_tokens=1024', 'val_every=1000', 'warmup_steps=2'];

const skip = llama_missing;

before(() => {
  if (!skip) run('data', 'sample', '--kind', 'tales', '--size', '60k', '-o', file('tales.txt'), '-q');
});

// thimble's log-probabilities after each of the ids.
function traced(name, ids) {
  write_ids(file('ids.safetensors'), ids);
  run('trace', file(name), '--tokens', file('ids.safetensors'), '-o', file('trace.safetensors'), '--dtype', 'f32', '--force');
  return read_logits(file('trace.safetensors')).map(log_softmax);
}

// ggml rounds the activations that it multiplies with F16 weights to f16, and it reads GELU from a
// table in f16.
const bar_of = (type, settings) => (type === 'f16' ? 0.01 : settings.mlp === 'geglu' ? 5e-4 : 1e-4);
const opening = 'Once upon a time there was a red';

for (const [name, { set, architecture = name }] of Object.entries(families))
  test(`${name}: llama.cpp gives the same probabilities and greedy tokens`, { skip }, async (t) => {
    const settings = Object.fromEntries([...small, ...set].map((setting) => setting.split('=')));
    run('train', '--preset', 'llama', '--data', file('tales.txt'), '--tokenizer', 'bytes', '-q', '--threads', '2',
      ...Object.entries(settings).flatMap(([key, value]) => ['--set', `${key}=${value}`]), '-o', file(name));
    for (const type of ['f32', 'f16']) {
      const bar = bar_of(type, settings);
      const gguf = `${name}-${type}.gguf`;
      const report = run('export', file(name), '--format', 'gguf', '--type', type, '-o', file(gguf));
      assert.match(report, new RegExp(`: ${architecture} as ${type.toUpperCase()}`));
      const model = await load(file(gguf));
      try {
        const ids = [model.tokens.bos, ...ids_of(model, opening)];
        const theirs = await log_probabilities(model, ids);
        const difference = largest_difference(traced(name, ids), theirs, type === 'f32' ? 1e-5 : 1e-3);
        const again = largest_difference(traced(gguf, ids), theirs, type === 'f32' ? 1e-5 : 1e-3);
        t.diagnostic(`${type}: log-probabilities differ by ${difference.toExponential(1)}, read back by ${again.toExponential(1)}`);
        assert.ok(difference < bar && again < bar, `${difference} ${again}`);
        if (type !== 'f32' || settings.window === '40') continue;
        const { samples: [ours] } = JSON.parse(run('generate', file(name), opening, '--greedy', '--dtype', 'f32',
          '--max-tokens', '64', '--json'));
        const text = (await greedy(model, ids, 64)).filter((id) => !model.isEogToken(id));
        assert.deepEqual(text, ours.tokens);
      } finally {
        await model.dispose();
      }
    }
  });
