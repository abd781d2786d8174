// A checkpoint as the library writes it, read by a reader that is not ours.
//
// It makes typed arrays over the file's own bytes, so it also sees whether every tensor is aligned to its elements.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

globalThis.Float16Array ??= Uint16Array; // not in Node 20: the bits will do
const { safetensors } = await import('@jax-js/loaders');

const folder = process.env.THIMBLE_BINARY
  ? dirname(process.env.THIMBLE_BINARY)
  : fileURLToPath(new URL('../../build/release/bin', import.meta.url));
const writer = join(folder, 'formats_tests');

// tests/formats/safetensors_interop_test.cpp writes it.
function written_file() {
  const out = mkdtempSync(join(tmpdir(), 'thimble-interop-'));
  try {
    const run = spawnSync(writer, ['--gtest_filter=SafetensorsInterop.*'],
      { encoding: 'utf8', timeout: 300_000, env: { ...process.env, THIMBLE_INTEROP_FOLDER: out } });
    if (run.error) throw run.error;
    assert.equal(run.status, 0, run.stdout + run.stderr);
    return new Uint8Array(readFileSync(join(out, 'interop.safetensors')));
  } finally {
    rmSync(out, { recursive: true });
  }
}

const missing = existsSync(writer) ? false : `${writer} is not built`;

test('a safetensors file is read by @jax-js/loaders as it was written', { skip: missing }, () => {
  const { tensors, metadata } = safetensors.parse(written_file());
  assert.deepEqual(metadata, { format: 'pt', note: 'line 1\nline "2" é😀' });
  assert.deepEqual(Object.keys(tensors),
    ['text', 'f32 [2, 3]', 'f16', 'i32', 'i64 scalar', 'u8', 'i8', 'empty', 'odd "name"\n', 'thimble.digest']);
  const expect = (name, dtype, shape, values) => {
    const { data, ...rest } = tensors[name];
    assert.deepEqual(rest, { dtype, shape }, name);
    assert.deepEqual([...data], values, name);
  };
  expect('text', 'U8', [5], [...Buffer.from('hello')]);
  expect('f32 [2, 3]', 'F32', [2, 3], [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]);
  expect('i32', 'I32', [1, 3], [-2147483648, 0, 2147483647]);
  expect('i64 scalar', 'I64', [], [-9007199254740993n]);
  expect('u8', 'U8', [3], [0, 128, 255]);
  expect('i8', 'I8', [3, 1], [-128, 0, 127]);
  expect('empty', 'F32', [0, 4], []);
  expect('odd "name"\n', 'U8', [1], [7]);
  const one_and_a_half = Float16Array === Uint16Array ? 0x3e00 : 1.5;
  expect('f16', 'F16', [1], [one_and_a_half]);
});
