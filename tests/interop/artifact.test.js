// Reads an artifact with an independent implementation of the format in src/formats/artifact.h.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { inflateSync } from 'node:zlib';
import { thimble } from './thimble.js';

const golden = fileURLToPath(new URL('../golden/golf_plus_grad.safetensors', import.meta.url));
const settings = ['vocab_size=128', 'layers=4', 'dim=96', 'heads=6', 'kv_heads=3', 'mlp_hidden=288', 'bigram_dim=64',
  'bigram_buckets=64'].flatMap((setting) => ['--set', setting]);

function run(...words) {
  const { exit_code, stderr } = thimble(...words);
  assert.equal(exit_code, 0, stderr);
}

// Returns the decompressed contents of all parts.
function parts_of(file) {
  assert.equal(file.toString('latin1', 0, 8), 'thimble\x01');
  const parts = [];
  for (let at = 24; at < file.length;) {
    const raw = Number(file.readBigUInt64LE(at + 1)), stored = Number(file.readBigUInt64LE(at + 9));
    if (stored > 0) assert.equal(file[at], 2, 'zlib');
    const content = stored === 0 ? Buffer.alloc(0) : inflateSync(file.subarray(at + 17, at + 17 + stored));
    assert.equal(content.length, raw);
    parts.push(content);
    at += 17 + stored;
  }
  return parts;
}

// Returns a map from name to { shape, values } of the f32 tensors.
function safetensors_of(file) {
  const size = Number(file.readBigUInt64LE(0)), data = file.subarray(8 + size);
  const tensors = new Map();
  for (const [name, entry] of Object.entries(JSON.parse(file.toString('utf8', 8, 8 + size)))) {
    if (entry.dtype !== 'F32') continue;
    const bytes = Uint8Array.from(data.subarray(...entry.data_offsets)); // copy for alignment
    tensors.set(name, { shape: entry.shape, values: new Float32Array(bytes.buffer) });
  }
  return tensors;
}

function f16(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  return sign * (exponent === 0 ? mantissa * 2 ** -24 : (1 + mantissa / 1024) * 2 ** (exponent - 15));
}

function f32(bits) {
  return new Float32Array(new Uint32Array([bits]).buffer)[0];
}

const layer_of = (name) => Number(/\.(\d+)\./.exec(name)?.[1] ?? -1);
const group_of = (name) => name.replace(/\.\d+\./, '.');

// Reads numbers from a group's bytes in order.
class Reader {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }
  integers(count) {
    this.at += count;
    return Int8Array.from(this.bytes.subarray(this.at - count, this.at));
  }
  planes(width, count) {
    const numbers = Array.from({ length: count }, (_, i) => {
      let bits = 0;
      for (let plane = width - 1; plane >= 0; --plane) bits = bits * 256 + this.bytes[this.at + plane * count + i];
      return width === 2 ? f16(bits) : f32(bits);
    });
    this.at += width * count;
    return numbers;
  }
}

function check_group(names, letters, tensors, bytes) {
  const reader = new Reader(bytes);
  const counts = names.map((name) => tensors.get(name).values.length);
  const rows = names.map((name) => tensors.get(name).shape[0]);
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const are = (kinds) => names.map((_, i) => i).filter((i) => kinds.includes(letters[i]));
  const quantized = are('865'), q = quantized.map((i) => reader.integers(counts[i]));
  const scales = reader.planes(2, sum(quantized.map((i) => rows[i])));
  const halves = reader.planes(2, sum(are('2').map((i) => counts[i])));
  const floats = reader.planes(4, sum(are('4').map((i) => counts[i])));
  assert.equal(reader.at, bytes.length);
  let first_row = 0;
  quantized.forEach((i, k) => {
    const width = counts[i] / rows[i];
    const values = Float32Array.from(q[k], (value, e) => value * scales[first_row + Math.floor(e / width)]);
    assert.deepEqual(values, tensors.get(names[i]).values, names[i]);
    first_row += rows[i];
  });
  for (const [kinds, values] of [['2', halves], ['4', floats]])
    for (const i of are(kinds))
      assert.deepEqual(Float32Array.from(values.splice(0, counts[i])), tensors.get(names[i]).values, names[i]);
  return quantized.length;
}

test('an artifact follows its documented format and contains the exact weights', () => {
  const folder = mkdtempSync(join(tmpdir(), 'thimble-interop-'));
  try {
    const [model, artifact, back] = ['model', 'model.thimble', 'back'].map((name) => join(folder, name));
    run('import', golden, '--preset', 'golf-plus', ...settings, '--prefix', 'param.', '-o', model);
    run('pack', model, '--bits', '6', '--codec', 'zlib', '-o', artifact);
    run('import', artifact, '-o', back);
    const tensors = safetensors_of(readFileSync(back));
    const [metadata_bytes, tokenizer, ...weights] = parts_of(readFileSync(artifact));
    assert.equal(tokenizer.length, 0);
    const metadata = JSON.parse(metadata_bytes.toString());
    assert.equal(metadata['thimble.rule'], 'int6_per_row');
    assert.match(metadata['thimble.config'], /^dim = 96$/m);

    const groups = [...new Set([...tensors.keys()].map(group_of))].sort();
    assert.equal(weights.length, groups.length);
    let letters = metadata['thimble.storage'], quantized = 0;
    groups.forEach((group, g) => {
      const names = [...tensors.keys()].filter((name) => group_of(name) === group)
        .sort((a, b) => layer_of(a) - layer_of(b));
      quantized += check_group(names, letters.slice(0, names.length), tensors, weights[g]);
      letters = letters.slice(names.length);
    });
    assert.equal(letters, '');
    assert.ok(quantized > 4);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
