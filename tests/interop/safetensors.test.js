// Reads a safetensors file written by the library with a third-party reader.
//
// The reader creates typed arrays over the bytes of the file, so it fails if a tensor is not
// aligned to its elements.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

globalThis.Float16Array ??= Uint16Array; // missing in Node 20: compare the bits
const { safetensors } = await import('@jax-js/loaders');

const folder = process.env.THIMBLE_BINARY
  ? dirname(process.env.THIMBLE_BINARY)
  : fileURLToPath(new URL('../../build/release/bin', import.meta.url));
const writer = join(folder, 'formats_tests');

// The file is written by tests/formats/safetensors_interop_test.cpp.
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

test('@jax-js/loaders reads a safetensors file with the written contents', { skip: missing }, () => {
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
