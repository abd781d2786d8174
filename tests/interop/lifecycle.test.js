// Trains, checks and exports a model and runs it in llama.cpp. tests/e2e/lifecycle_test.cpp tests
// the earlier stages, including a kill during training.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { greedy, ids_of, largest_difference, llama_missing, load, log_probabilities } from './llama.js';
import { log_softmax, read_logits, write_ids } from './tensors.js';
import { thimble } from './thimble.js';

const folder = mkdtempSync(join(tmpdir(), 'thimble-lifecycle-'));
after(() => rmSync(folder, { recursive: true }));
const file = (name) => join(folder, name);

function run(...words) {
  const { exit_code, stdout, stderr } = thimble(...words);
  assert.equal(exit_code, 0, `thimble ${words.join(' ')}: ${stdout}${stderr}`);
  return stdout;
}
const json = (...words) => JSON.parse(run(...words, '--json'));

const settings = ['context=64', 'layers=2', 'dim=64', 'heads=4', 'kv_heads=2', 'head_dim=16', 'rope_dims=16', 'mlp_hidden=96',
  'batch_tokens=512', 'steps=60', 'val_every=30', 'warmup_steps=5', 'max_seconds=0', 'dtype=f32'];
const plain = 'the red cat sat in the garden and the old dog ran over 3 hills to see it';

before(() => run('data', 'sample', '--kind', 'tales', '--size', '60k', '-o', file('tales.txt'), '-q'));

for (const [preset, architecture] of [['llama', 'llama'], ['export', 'talkie']]) {
  for (const tokenizer of ['bpe:300', 'sentencepiece:400']) {
    test(`${preset}, ${tokenizer}: llama.cpp reproduces the golden sample of training`, { skip: llama_missing }, async (t) => {
      const name = `${preset}-${tokenizer.split(':')[0]}`, exported = file(`${name}.gguf`);
      run('train', '--preset', preset, '--data', file('tales.txt'), '--tokenizer', tokenizer, '-o', file(name), '-q',
        '--threads', '2', ...settings.flatMap((setting) => ['--set', setting]));
      const checkpoint = file(`${name}/last.safetensors`);
      assert.equal(json('qa', checkpoint, '--data', file(`${name}/data`), '--require', '9').passed, true);
      const report = json('export', checkpoint, '--format', 'gguf', '--type', 'f32', '-o', exported);
      assert.equal(report.architecture, architecture);
      assert.equal(json('qa', exported, '--require', '7').passed, true);

      const model = await load(exported);
      try {
        // Token ids of a text, and the log-probabilities of all next tokens at each position.
        const ours = json('tokenizer', 'encode', file(name), '--whole', '--text', plain).tokens.flat();
        assert.deepEqual(ids_of(model, plain), ours);
        const ids = [model.tokens.bos, ...ours];
        write_ids(file('ids.safetensors'), ids);
        run('trace', checkpoint, '--tokens', file('ids.safetensors'), '-o', file('trace.safetensors'), '--force');
        const expected = read_logits(file('trace.safetensors')).map(log_softmax);
        const difference = largest_difference(expected, await log_probabilities(model, ids));
        t.diagnostic(`largest difference of log-probabilities: ${difference.toExponential(1)}`);
        assert.ok(difference < 1e-4, `${difference}`);

        // The greedy sample stored in the checkpoint, up to the first end token.
        const { golden } = json('inspect', checkpoint).training;
        const end = golden.findIndex((id) => model.isEogToken(id));
        const text = end < 0 ? golden : golden.slice(0, end + 1);
        assert.deepEqual(await greedy(model, [model.tokens.bos], text.length), text);
      } finally {
        await model.dispose();
      }
    });
  }
}
