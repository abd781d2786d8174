// Runs golf models exported as apertus and talkie in llama.cpp: same log-probabilities and greedy
// text.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { greedy, largest_difference, llama_missing, load, log_probabilities } from './llama.js';
import { log_softmax, read_logits, write_ids } from './tensors.js';
import { thimble } from './thimble.js';

const folder = mkdtempSync(join(tmpdir(), 'thimble-fold-'));
after(() => rmSync(folder, { recursive: true }));

const text = join(folder, 'tales.txt');
run('data', 'sample', '--kind', 'tales', '-o', text);

const kLogProbability = 1e-4;
const kSizes = { layers: 3, dim: 64, heads: 4, kv_heads: 2, head_dim: 16, mlp_hidden: 96, context: 128 };

function run(...words) {
  const result = thimble(...words);
  assert.equal(result.exit_code, 0, `thimble ${words.join(' ')}: ${result.stderr}`);
  return result.stdout;
}

// Mulberry32 and Box-Muller, to get the same numbers on every machine.
function normal_numbers(seed) {
  const uniform = () => {
    seed = (seed + 0x6D2B79F5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

// Weights far from their initial values: gains and scales around 1, residual mixes dominated by the
// stream, with the sign inverted in odd layers.
function random_values(name, shape, normal) {
  const count = shape.reduce((a, b) => a * b, 1);
  if (name.endsWith('resid_mix')) {
    const sign = Number(name.split('.')[1]) % 2 ? -1 : 1;
    return Float32Array.of(sign * (1 + 0.3 * Math.tanh(normal())), 0.3 * normal());
  }
  const vector = shape.length === 1, spread = vector ? 0.3 : 1.5 / Math.sqrt(shape.at(-1));
  return Float32Array.from({ length: count }, () => (vector ? 1 : 0) + spread * normal());
}

// Writes a state dict with the names and shapes of a model file and random values.
function write_random_weights(from, to) {
  const file = readFileSync(from), size = Number(file.readBigUInt64LE(0));
  const entries = Object.entries(JSON.parse(file.toString('utf8', 8, 8 + size)))
    .filter(([name]) => !/^(optim\.|thimble\.|__metadata__)/.test(name));
  const normal = normal_numbers(7), header = {}, parts = [];
  let at = 0;
  for (const [name, { shape }] of entries) {
    const bytes = Buffer.from(random_values(name, shape, normal).buffer);
    header[name] = { dtype: 'F32', shape, data_offsets: [at, at + bytes.length] };
    at += bytes.length;
    parts.push(bytes);
  }
  const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(to, Buffer.concat([length, text, ...parts]));
}

function random_model(name, settings) {
  const words = Object.entries({ ...kSizes, ...settings }).flatMap(([key, value]) => ['--set', `${key}=${value}`]);
  const base = join(folder, name);
  run('train', '--preset', 'export', '--data', text, '--tokenizer', 'bpe:300', ...words, '--set', 'batch_tokens=256',
    '--set', 'prime_steps=0', '--set', 'steps=1', '--set', 'max_seconds=0', '--set', 'val_every=0', '-o', base, '--quiet');
  write_random_weights(join(base, 'last.safetensors'), `${base}.weights`);
  run('import', `${base}.weights`, '--preset', 'export', '--set', 'vocab_size=300', ...words,
    '--tokenizer', join(base, 'tokenizer.json'), '-o', `${base}.safetensors`);
  return `${base}.safetensors`;
}

function our_log_probabilities(model, ids) {
  const tokens = join(folder, 'ids.safetensors'), out = join(folder, 'trace.safetensors');
  write_ids(tokens, ids);
  run('trace', model, '--tokens', tokens, '-o', out, '--force');
  return read_logits(out).map(log_softmax);
}

const cases = [
  { name: 'the preset export', architecture: 'talkie', settings: {} },
  { name: 'talkie with swiglu', architecture: 'talkie', settings: { mlp: 'swiglu', layer_scale: true } },
  { name: 'talkie with leaky_relu2', architecture: 'talkie', settings: { mlp: 'leaky_relu2', tie_embeddings: false } },
  { name: 'one gain for all heads, no mix', architecture: 'apertus', settings: { q_gain: 'shared', residual_mix: 'none' } },
  {
    name: 'apertus with norm weights and leaky_relu2', architecture: 'apertus',
    settings: { q_gain: 'shared', residual_mix: 'none', norm: 'rms_weight', mlp: 'leaky_relu2', layer_scale: true },
  },
  {
    name: 'apertus without embedding norm, rope direction of llama', architecture: 'apertus',
    settings: { q_gain: 'none', residual_mix: 'none', embed_norm: false, rope_direction: 1, branch_scale: false },
  },
];

for (const [i, { name, architecture, settings }] of cases.entries()) {
  test(`llama.cpp computes the same as thimble: ${name}, as ${architecture}`, { skip: llama_missing }, async () => {
    const model = random_model(`model-${i}`, settings), file = join(folder, `model-${i}.gguf`);
    const report = JSON.parse(run('export', model, '--format', 'gguf', '--type', 'f32', '-o', file, '--json'));
    assert.equal(report.architecture, architecture);
    assert.ok(report.folded.length >= 1, 'the report lists what was folded');
    const ids = [0, ...Array.from({ length: 40 }, (_, k) => (k * 37 + 11) % 299 + 1)];
    const theirs = await load(file);
    try {
      const difference = largest_difference(our_log_probabilities(model, ids), await log_probabilities(theirs, ids));
      console.log(`${name}: log-probabilities differ by ${difference.toExponential(1)}`);
      assert.ok(difference <= kLogProbability, `log-probabilities differ by ${difference}`);
      const start = ' the cat', count = 64;
      const ours = JSON.parse(run('generate', model, start, '-n', '1', '--max-tokens', `${count}`, '--greedy', '--dtype', 'f32', '--json'));
      const prompt = [0, ...run('tokenizer', 'encode', join(folder, `model-${i}`, 'tokenizer.json'), '--text', start)
        .trim().split(' ').map(Number)];
      const end = ours.samples[0].tokens.length;
      assert.deepEqual((await greedy(theirs, prompt, count)).slice(0, end), ours.samples[0].tokens);
    } finally {
      await theirs.dispose();
    }
  });
}

test('export of the preset golf fails with all reasons and a suggestion', () => {
  const base = join(folder, 'golf');
  const words = Object.entries(kSizes).flatMap(([key, value]) => ['--set', `${key}=${value}`]);
  run('train', '--preset', 'golf', '--data', text, '--tokenizer', 'bytes', ...words, '--set', 'batch_tokens=256',
    '--set', 'prime_steps=0', '--set', 'steps=1', '--set', 'max_seconds=0', '--set', 'val_every=0', '-o', base, '--quiet');
  const refused = thimble('export', base, '--format', 'gguf', '-o', join(folder, 'golf.gguf'));
  assert.equal(refused.exit_code, 1);
  for (const reason of ['unet_skips', 'residual_mix = channel', 'logit_softcap = 30', '--preset export', '--drop-softcap'])
    assert.ok(refused.stderr.includes(reason), `${reason} in: ${refused.stderr}`);
});
