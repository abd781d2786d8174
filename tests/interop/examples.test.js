// Runs examples/llama_cpp.sh and compares the greedy output of llama.cpp with thimble's.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { greedy, ids_of, llama_missing, load } from './llama.js';
import { binary, thimble } from './thimble.js';

const folder = mkdtempSync(join(tmpdir(), 'thimble-examples-'));
after(() => rmSync(folder, { recursive: true }));

test('the llama.cpp example: both programs generate the same greedy tokens', { skip: llama_missing }, async () => {
  const script = fileURLToPath(new URL('../../examples/llama_cpp.sh', import.meta.url));
  const run = spawnSync(script, ['--small'], {
    encoding: 'utf8', timeout: 600_000, env: { ...process.env, THIMBLE: binary, OUT: folder },
  });
  assert.equal(run.status, 0, run.stdout + run.stderr);

  const gguf = join(folder, 'model.gguf');
  const ours = thimble('generate', gguf, 'Once', '--greedy', '--dtype', 'f32', '--max-tokens', '24',
    '--ignore-eos', '--json');
  assert.equal(ours.exit_code, 0, ours.stderr);
  const model = await load(gguf);
  try {
    const prompt = [model.tokens.bos, ...ids_of(model, 'Once')];
    const theirs = await greedy(model, prompt, 24);
    assert.deepEqual(theirs, JSON.parse(ours.stdout).samples[0].tokens.slice(0, theirs.length));
    assert.ok(theirs.length > 0);
  } finally {
    await model.dispose();
  }
});
