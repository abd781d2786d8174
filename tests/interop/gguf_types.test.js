// Block types of GGUF: thimble reads llama.cpp's files bit for bit, and writes the same types into the
// same tensors with at most llama.cpp's error.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { Ggml, block_types, ggml_missing } from './ggml.js';
import { ids_of, largest_difference, llama_missing, load, log_probabilities } from './llama.js';
import { log_softmax, read_logits, write_ids } from './tensors.js';
import { thimble } from './thimble.js';

const folder = mkdtempSync(join(tmpdir(), 'thimble-gguf-types-'));
after(() => rmSync(folder, { recursive: true }));
const file = (name) => join(folder, name);
const skip = llama_missing || ggml_missing;
let ggml;

function run(...words) {
  const { exit_code, stderr } = thimble(...words);
  assert.equal(exit_code, 0, `thimble ${words.join(' ')}: ${stderr}`);
}

// Rows of 256 numbers fit every block, rows of 64 only those of 32. Eight layers have every choice of
// type.
const models = {
  wide: ['preset=qwen3', 'dim=256', 'mlp_hidden=256', 'heads=4', 'kv_heads=2'],
  untied: ['preset=llama', 'dim=256', 'mlp_hidden=512', 'heads=4', 'kv_heads=4', 'tie_embeddings=false'],
  narrow: ['preset=qwen2', 'dim=64', 'mlp_hidden=256', 'heads=4', 'kv_heads=2'],
};

before(() => {
  if (skip) return;
  ggml = new Ggml(folder);
  run('data', 'sample', '--kind', 'tales', '--size', '40k', '-o', file('tales.txt'), '-q');
  for (const [name, [preset, ...settings]] of Object.entries(models)) {
    run('train', '--preset', preset.split('=')[1], '--data', file('tales.txt'), '--tokenizer', 'bpe:300', '-q',
      '--threads', '2', ...['layers=8', 'context=64', 'steps=4', 'batch_tokens=256', 'val_every=1000', ...settings]
        .flatMap((setting) => ['--set', setting]), '-o', file(name));
    run('export', file(name), '--format', 'gguf', '--type', 'f32', '-o', file(`${name}.gguf`));
  }
});

const type_ids = { 0: 'F32', 1: 'F16', 2: 'Q4_0', 3: 'Q4_1', 6: 'Q5_0', 7: 'Q5_1', 8: 'Q8_0', 10: 'Q2_K', 11: 'Q3_K',
  12: 'Q4_K', 13: 'Q5_K', 14: 'Q6_K', 20: 'IQ4_NL', 23: 'IQ4_XS' };

// [{ name, type, bytes }] of a GGUF.
async function tensors_of(name) {
  const { readGgufFileInfo } = await import('node-llama-cpp');
  const { tensorInfo } = await readGgufFileInfo(file(name), { readTensorInfo: true });
  const content = readFileSync(file(name));
  return tensorInfo.map(({ name: tensor, dimensions, ggmlType, fileOffset }) => {
    const type = type_ids[ggmlType], count = dimensions.reduce((a, b) => a * Number(b), 1);
    const { block, bytes } = block_types[type] ?? { block: 1, bytes: type === 'F32' ? 4 : 2 };
    return { name: tensor, type, bytes: content.subarray(Number(fileOffset), Number(fileOffset) + count / block * bytes) };
  });
}

// The values of every tensor of a safetensors file, as strings of bytes.
function contents_of(name) {
  const content = readFileSync(file(name)), size = Number(content.readBigUInt64LE(0));
  const header = JSON.parse(content.toString('utf8', 8, 8 + size));
  return new Set(Object.entries(header).filter(([key]) => key !== '__metadata__')
    .map(([, { data_offsets: [begin, end] }]) => content.toString('latin1', 8 + size + begin, 8 + size + end)));
}

// llama.cpp's numbers of file types; each has several types of tensors.
const file_types = { Q4_0: 2, Q4_1: 3, Q8_0: 7, Q5_0: 8, Q5_1: 9, Q2_K: 10, Q3_K_M: 12, Q4_K_M: 15, Q5_K_M: 17,
  Q6_K: 18, IQ4_NL: 25, IQ4_XS: 30 };

test('every type of block that llama.cpp writes is read bit for bit as ggml reads it', { skip }, async () => {
  const seen = new Set();
  for (const [name, number] of Object.entries(file_types)) {
    ggml.quantize(file('wide.gguf'), file('theirs.gguf'), number);
    run('import', file('theirs.gguf'), '-o', file('read.safetensors'), '--force');
    const ours = contents_of('read.safetensors');
    for (const { name: tensor, type, bytes } of await tensors_of('theirs.gguf')) {
      if (!block_types[type]) continue;
      seen.add(type);
      assert.ok(ours.has(ggml.decode(type, bytes).toString('latin1')), `${name}: ${tensor} of type ${type}`);
    }
  }
  assert.deepEqual([...seen].sort(), Object.keys(block_types).sort());
});

const floats = (bytes) => new Float32Array(Uint8Array.from(bytes).buffer);

function squared_error(a, b) {
  const [x, y] = [floats(a), floats(b)];
  return x.reduce((sum, value, i) => sum + (value - y[i]) ** 2, 0);
}

for (const [name, option, number] of [['wide', 'q4_k_m', 15], ['wide', 'q5_k_m', 17], ['wide', 'q6_k', 18],
  ['untied', 'q4_k_m', 15], ['narrow', 'q5_k_m', 17]])
  test(`${name}: ${option} has llama.cpp's types of tensors and at most its error`, { skip }, async (t) => {
    run('export', file(name), '--format', 'gguf', '--type', option, '-o', file('ours.gguf'), '--force');
    ggml.quantize(file(`${name}.gguf`), file('theirs.gguf'), number);
    const exact = new Map((await tensors_of(`${name}.gguf`)).map(({ name: tensor, bytes }) => [tensor, bytes]));
    const theirs = new Map((await tensors_of('theirs.gguf')).map((tensor) => [tensor.name, tensor]));
    let [our_sum, their_sum] = [0, 0];
    for (const { name: tensor, type, bytes } of await tensors_of('ours.gguf')) {
      assert.equal(type, theirs.get(tensor).type, tensor);
      if (!block_types[type]) continue;
      const error = squared_error(exact.get(tensor), ggml.decode(type, bytes));
      const their_error = squared_error(exact.get(tensor), ggml.decode(type, theirs.get(tensor).bytes));
      assert.ok(error <= their_error, `${tensor}: ${error}, llama.cpp ${their_error}`);
      our_sum += error;
      their_sum += their_error;
    }
    t.diagnostic(`error of all matrices: ${(Math.sqrt(our_sum / their_sum)).toFixed(4)} of llama.cpp's`);
  });

// ggml rounds the activations that it multiplies with such weights to 8 bits.
for (const option of ['q4_k_m', 'q5_k_m', 'q6_k'])
  test(`${option}: llama.cpp and thimble compute the same probabilities`, { skip }, async (t) => {
    run('export', file('wide'), '--format', 'gguf', '--type', option, '-o', file('ours.gguf'), '--force');
    const model = await load(file('ours.gguf'));
    try {
      const ids = [model.tokens.bos, ...ids_of(model, 'Once upon a time there was a red house.')];
      write_ids(file('ids.safetensors'), ids);
      run('trace', file('ours.gguf'), '--tokens', file('ids.safetensors'), '-o', file('trace.safetensors'), '--force');
      const ours = read_logits(file('trace.safetensors')).map(log_softmax);
      const difference = largest_difference(ours, await log_probabilities(model, ids), 1e-3);
      t.diagnostic(`largest difference of log-probabilities: ${difference.toExponential(1)}`);
      assert.ok(difference < 0.2, `${difference}`);
    } finally {
      await model.dispose();
    }
  });
