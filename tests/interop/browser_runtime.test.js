// Runs models in the browser's runtime, in Node, and compares them with the native program.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { copyFile, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { remove, temporary_folder } from './server.js';
import { binary, thimble } from './thimble.js';

const shared = join(dirname(binary), '../share/thimble');
const skip = existsSync(join(shared, 'thimble.wasm')) ? false : 'the runtime is not built (./test --wasm)';
const folder = temporary_folder();
const at = (...names) => join(folder, ...names);

const succeed = (...words) => {
  const { exit_code, stdout, stderr } = thimble(...words);
  assert.equal(exit_code, 0, `thimble ${words.join(' ')}: ${stdout}${stderr}`);
  return stdout;
};
const shaped = (...shape) => [...shape, 'context=128', 'layers=2', 'batch_tokens=1024', 'val_tokens=1024', 'val_every=0', 'dtype=f32']
  .flatMap((setting) => ['--set', setting]);
const small = shaped('dim=64', 'heads=4', 'kv_heads=2', 'mlp_hidden=128');
const presets = {
  golf: ['--preset', 'golf', '--tokenizer', 'sentencepiece:400'],
  llama: ['--preset', 'llama', '--tokenizer', 'bpe:400', '--optimizer', 'muon'],
  qwen3: ['--preset', 'qwen3', '--tokenizer', 'bpe:400', '--optimizer', 'muon'],
};

before(() => {
  if (skip) return;
  succeed('data', 'sample', '--kind', 'tales', '--size', '200k', '-o', at('tales.txt'), '-q');
  succeed('data', 'sample', '--kind', 'chat', '--size', '200k', '-o', at('chats.jsonl'), '-q');
  for (const [name, words] of Object.entries(presets)) {
    succeed('train', '--data', at('tales.txt'), '-o', at(name), '-q', '--threads', '2', '--steps', '20', ...words, ...small);
    succeed('export', at(name), '--format', 'js', '-o', at(`${name}-js`), '-q');
  }
  succeed('train', '--data', at('chats.jsonl'), '-o', at('chat'), '-q', '--threads', '2', '--preset', 'chat', '--tokenizer', 'bpe:400', '--steps', '20', ...small);
  succeed('pack', at('chat'), '-o', at('chat.thimble'), '-q');
  succeed('export', at('chat.thimble'), '--format', 'js', '-o', at('chat-js'), '-q');
  // Neither rows nor outputs are whole vectors.
  succeed('train', '--data', at('tales.txt'), '-o', at('odd'), '-q', '--threads', '2', '--steps', '60', ...presets.llama,
    ...shaped('dim=36', 'heads=2', 'kv_heads=1', 'mlp_hidden=91'));
  succeed('pack', at('odd'), '-o', at('odd.thimble'), '-q', '--allow-loss');
  succeed('export', at('odd.thimble'), '--format', 'js', '-o', at('odd-js'), '-q');
  succeed('pack', at('golf'), '-o', at('packed.thimble'), '-q', '--codec', 'zstd', '--allow-loss');
  succeed('export', at('packed.thimble'), '--format', 'js', '-o', at('packed-js'), '-q');
}, { timeout: 600_000 });
after(() => remove(folder));

async function open(name, more = {}) {
  const exported = at(`${name}-js`);
  const { load } = await import(pathToFileURL(join(exported, 'thimble.mjs')).href);
  return load({ wasm: join(exported, 'thimble.wasm'), model: join(exported, 'model.thimble'), ...more });
}

// The two programs round differently, so tokens that are equally likely may change places.
const limit = 1e-4;
const sources = { golf: 'golf', llama: 'llama', qwen3: 'qwen3', packed: 'packed.thimble', chat: 'chat.thimble' };
for (const [name, source] of Object.entries(sources))
  test(`${name}: greedy tokens equal the native program's`, { skip }, async () => {
    const model = await open(name);
    // At the start of a text, `generate` excludes a chat model's control tokens; the server's route does not.
    for (const prompt of ['Once upon a time', 'Übung: 3 + 4 = 😀\n', ...(name === 'chat' ? [] : [''])]) {
      const { samples: [native] } = JSON.parse(succeed('generate', at(source), prompt, '--greedy', '--dtype', 'f32', '--max-tokens', '40', '--ignore-eos',
        '--json', '-q'));
      const margins = [];
      const ours = await model.complete({ prompt, max_tokens: 40, temperature: 0, ignore_eos: true, logprobs: 2,
        onToken: ({ top }) => margins.push(top[0].logprob - top[1].logprob) });
      const differs = native.tokens.findIndex((token, i) => token !== ours.tokens[i]);
      if (differs >= 0) assert.ok(margins[differs] <= limit, `'${prompt}': token ${differs} is ${ours.tokens[differs]}, natively ${native.tokens[differs]}`);
      else assert.equal(ours.tokens.length, native.tokens.length);
    }
    assert.equal(model.detokenize(model.tokenize('Anna took a boat')), 'Anna took a boat');
  });

for (const name of ['odd', 'chat', 'packed'])
  test(`${name}: 8-bit weights give the native program's log-probabilities to six digits`, { skip }, async () => {
    const model = await open(name), rounding = 4e-6, parities = new Set();
    for (const prompt of ['One day Anna and the fox found a bell in the garden', 'One day Anna and the fox found a bell in the garden.']) {
      const { samples: [native] } = JSON.parse(succeed('generate', at(sources[name] ?? `${name}.thimble`), prompt, '--greedy', '--dtype', 'f32',
        '--max-tokens', '8', '--ignore-eos', '--logprobs', '1', '--json', '-q'));
      const found = [];
      const { usage } = await model.complete({ prompt, max_tokens: 8, temperature: 0, ignore_eos: true, logprobs: 1, onToken: ({ logprob }) => found.push(logprob) });
      parities.add(usage.prompt_tokens % 2);
      assert.equal(found.length, native.logprobs.length);
      for (const [i, { logprob }] of native.logprobs.entries())
        assert.ok(Math.abs(logprob - found[i]) <= rounding, `token ${i}: ${found[i]}, natively ${logprob}`);
    }
    assert.equal(parities.size, 2, 'rows are multiplied in pairs, so one prompt should leave a row');
  });

test('options, events, stop strings, seeds and an abort', { skip }, async () => {
  const model = await open('llama');
  const seen = [];
  const one = await model.complete({ prompt: 'The', max_tokens: 20, temperature: 1, seed: 7, logprobs: 2, onToken: (token) => seen.push(token) });
  assert.equal(seen.map(({ text }) => text).join(''), one.text);
  assert.deepEqual(seen.map(({ token }) => token), [...one.tokens]);
  for (const { logprob, top } of seen) assert.ok(logprob <= 0 && top.length === 2 && top[0].logprob >= top[1].logprob);
  assert.equal(one.usage.completion_tokens, one.tokens.length);
  const same = await model.complete({ prompt: 'The', max_tokens: 20, temperature: 1, seed: 7 });
  assert.equal(same.text, one.text);
  const stop = one.text.slice(3, 5);
  const stopped = await model.complete({ prompt: 'The', max_tokens: 20, temperature: 1, seed: 7, stop: [stop] });
  assert.equal(stopped.finish_reason, 'stop');
  assert.equal(stopped.text, one.text.slice(0, one.text.indexOf(stop)));

  const controller = new AbortController();
  let count = 0;
  const aborted = await model.complete({ prompt: '', max_tokens: 10_000, ignore_eos: true, signal: controller.signal,
    onToken: () => { if (++count === 5) controller.abort(); } }).catch((error) => error);
  if (!(aborted instanceof Error)) assert.ok(['abort', 'length'].includes(aborted.finish_reason));
  const prompt = [];
  await model.complete({ prompt: 'Once upon', echo: true, max_tokens: 0, logprobs: 1, onToken: (token) => prompt.push(token) });
  assert.equal(prompt.map(({ text }) => text).join(''), 'Once upon');
  assert.ok(model.info.parameters > 0 && model.info.context === 128 && !model.info.chat && model.info.echo);
});

test('a chat is rendered by its own template', { skip }, async () => {
  const model = await open('chat');
  const messages = [{ role: 'user', content: 'Where is the bell?' }];
  const { text, usage } = await model.complete({ messages, max_tokens: 12, temperature: 0 });
  assert.equal(typeof text, 'string');
  assert.ok(usage.prompt_tokens > model.tokenize('Where is the bell?').length);
});

test('wrong requests and damaged files are errors with a code', { skip }, async () => {
  const model = await open('llama');
  const code = (expected) => (error) => error.name === 'ThimbleError' && error.code === expected && error.message.length > 10;
  await assert.rejects(model.complete({ messages: [{ role: 'user', content: 'hi' }] }), code('request'));
  await assert.rejects(model.complete({ prompt: 'a', temperature: -1 }), code('request'));
  await assert.rejects(model.complete({ prompt: 'a', wrong_option: 1 }), code('request'));
  assert.throws(() => model.detokenize([1_000_000]), code('request'));
  assert.ok((await model.complete({ prompt: 'a', max_tokens: 2 })).tokens.length > 0, 'usable after errors');
  model.close();
  await assert.rejects(model.complete({ prompt: 'a' }), code('closed'));

  const { load } = await import(pathToFileURL(join(at('llama-js'), 'thimble.mjs')).href);
  const wasm = await readFile(join(at('llama-js'), 'thimble.wasm')), bytes = await readFile(join(at('llama-js'), 'model.thimble'));
  for (const damaged of [bytes.subarray(0, bytes.length / 2), bytes.subarray(0, 3), new Uint8Array(0), Buffer.concat([bytes.subarray(0, 500), Buffer.of(1), bytes.subarray(501)])])
    await assert.rejects(load({ wasm, model: damaged }), code('model'));
  await assert.rejects(load({ wasm: join(folder, 'absent.wasm'), model: bytes }), code('network'));
});

// A worker in this thread. `kind` says how it fails, if it does.
function fake_helper(help, kind, seen) {
  if (kind === 'refused') throw new Error('workers are forbidden');
  const worker = {
    terminate: () => { seen.ended += 1; },
    postMessage: (data) => {
      if (kind === 'broken') return setTimeout(() => worker.onerror({ preventDefault: () => {} }), 1);
      if (kind === 'damaged') data = { ...data, stored: data.stored.slice(1) };
      const post = (answer) => setTimeout(() => {
        if (answer.content) seen.decoded += answer.content.length;
        worker.onmessage({ data: answer });
      }, 1);
      return help(data, post);
    },
  };
  seen.started += 1;
  return worker;
}

test('helpers decode range-coded weights, and the runtime what they did not decode', { skip }, async () => {
  const complete = async (model) => [...(await model.complete({ prompt: 'Where is', max_tokens: 20, temperature: 0, ignore_eos: true })).tokens];
  const expected = await complete(await open('chat')), cores = Object.getOwnPropertyDescriptor(globalThis, 'navigator');
  const { help } = await import(pathToFileURL(join(at('chat-js'), 'thimble.mjs')).href);
  try {
    Object.defineProperty(globalThis, 'navigator', { value: { hardwareConcurrency: 3 }, configurable: true });
    for (const kind of ['works', 'refused', 'broken', 'damaged']) {
      const seen = { started: 0, ended: 0, decoded: 0 }, fractions = [];
      const onProgress = ({ stage, fraction }) => { if (stage === 'decoding weights') fractions.push(fraction); };
      const model = await open('chat', { helper: () => fake_helper(help, kind, seen), onProgress });
      assert.deepEqual(await complete(model), expected, kind);
      assert.equal(seen.started, kind === 'refused' ? 0 : 3, kind);
      assert.equal(seen.ended, seen.started, kind);
      assert.equal(model.info.helpers > 0, kind === 'works', kind);
      assert.ok(kind === 'works' ? seen.decoded > 0.9 * model.info.parameters : seen.decoded === 0, `${kind}: ${seen.decoded} bytes of ${model.info.parameters}`);
      assert.ok(fractions.length > 5 && fractions.every((fraction, i) => fraction <= 1 && (i === 0 || fraction >= fractions[i - 1])), fractions.join());
      assert.equal(fractions.at(-1), 1, kind);
    }
    const seen = { started: 0, ended: 0, decoded: 0 };
    await open('packed', { helper: () => fake_helper(help, 'works', seen) });
    assert.equal(seen.started, 0, 'zstd needs no helpers');
  } finally {
    if (cores) Object.defineProperty(globalThis, 'navigator', cores);
    else delete globalThis.navigator;
  }
});

test('the runtime is small and asks only for functions that thimble.mjs has', { skip }, async () => {
  const bytes = await readFile(join(shared, 'thimble.wasm'));
  assert.ok(bytes.length <= 1_500_000, `${bytes.length} bytes`);
  const known = /^(thimble\.(part|progress|normalize|compile|release|matches)|wasi_snapshot_preview1\.\w+|env\.(emscripten_notify_memory_growth|__call_sighandler|getentropy))$/;
  for (const { module, name } of WebAssembly.Module.imports(new WebAssembly.Module(bytes))) assert.match(`${module}.${name}`, known);
});

test('export refuses a runtime that was built from other sources', { skip }, async () => {
  mkdirSync(at('other', 'bin'), { recursive: true });
  mkdirSync(at('other', 'share', 'thimble'), { recursive: true });
  await copyFile(binary, at('other', 'bin', 'thimble'));
  await copyFile(join(shared, 'licences.txt'), at('other', 'share', 'thimble', 'licences.txt'));
  const run = (runtime, folder_of_build) => {
    writeFileSync(at('other', 'share', 'thimble', 'thimble.wasm'), runtime);
    if (folder_of_build) writeFileSync(at('other', 'CMakeCache.txt'), '');
    return spawnSync(at('other', 'bin', 'thimble'), ['export', at('chat.thimble'), '--format', 'html', '-o', at('other.html'), '-q', '--force'], { encoding: 'utf8' });
  };
  const bytes = await readFile(join(shared, 'thimble.wasm')), mark = bytes.indexOf('thimble.sources=');
  assert.ok(mark > 0);
  assert.equal(run(bytes).status, 0);
  const other = Buffer.from(bytes);
  other.write('0'.repeat(64), mark + 'thimble.sources='.length);
  const installed = run(other), built = run(other, true);
  for (const { status, stderr } of [installed, built]) {
    assert.notEqual(status, 0);
    assert.match(stderr, /^error: .*thimble\.wasm was built from other sources than this program$/m);
  }
  assert.match(installed.stderr, /^hint: install the program and share\/thimble\/thimble\.wasm from the same build$/m);
  assert.match(built.stderr, /^hint: build it again: cmake --build .*other --target thimble_wasm$/m);
});

test('export reports what is missing, and leaves nothing behind', { skip }, async () => {
  await writeFile(at('broken.thimble'), (await readFile(at('chat.thimble'))).subarray(0, 1000));
  for (const words of [['export', at('broken.thimble'), '--format', 'html', '-o', at('x.html')],
    ['export', at('llama'), '--format', 'html', '--type', 'f16', '-o', at('x.html')],
    ['export', at('llama'), '--format', 'gguf', '--bits', '8', '-o', at('x.html')]]) {
    const { exit_code, stderr } = thimble(...words);
    assert.notEqual(exit_code, 0);
    assert.match(stderr, /^error: .*/m);
  }
  assert.ok(!readdirSync(folder).some((name) => name.startsWith('x.html')));
});

// The runtime with a memory of `pages` pages of 64 KB that cannot grow. Its memory section is a list
// of one memory: flags, initial and largest size in LEB128.
function limited(wasm, pages) {
  const leb = (value, digits = []) => (value > 127 ? leb(value >> 7, [...digits, (value & 127) | 128]) : [...digits, value]);
  const number = (at) => {
    let value = 0, shift = 0, i = at;
    do value += (wasm[i] & 127) * 2 ** shift, shift += 7; while (wasm[i++] & 128);
    return [value, i];
  };
  for (let at = 8; at < wasm.length;) {
    const [size, begin] = number(at + 1);
    if (wasm[at] === 5) {
      const memory = [1, wasm[begin + 1], ...leb(pages), ...leb(pages)];
      return Buffer.concat([wasm.subarray(0, at + 1), Buffer.from(leb(memory.length)), Buffer.from(memory), wasm.subarray(begin + size)]);
    }
    at = begin + size;
  }
  throw new Error('no memory section');
}

test('a model that does not fit is an error with a code, wherever memory ends', { skip }, async () => {
  const { load } = await import(pathToFileURL(join(at('llama-js'), 'thimble.mjs')).href);
  const wasm = await readFile(join(at('llama-js'), 'thimble.wasm')), model = await readFile(join(at('llama-js'), 'model.thimble'));
  const ends = new Set();
  for (let pages = 22; pages <= 1024; pages += pages < 64 ? 2 : 16) {
    let opened;
    try {
      opened = await load({ wasm: limited(wasm, pages), model });
      await opened.complete({ prompt: 'Once upon a time there was a boat', max_tokens: 4 });
      ends.add('fits');
      break;
    } catch (error) {
      assert.equal(error.name, 'ThimbleError');
      assert.equal(error.code, 'memory', `${pages} pages: ${error.message}`);
      assert.match(error.message, /^(out of memory|cannot allocate|the runtime failed)/);
      ends.add(opened ? 'while it answers' : 'while it is opened');
    }
  }
  assert.ok(ends.has('fits') && ends.has('while it is opened'), [...ends].join(', '));
});

test('a model with a key-value cache above 4 GB is refused before anything is packed', { skip }, async () => {
  succeed('train', '--data', at('tales.txt'), '-o', at('wide'), '-q', '--threads', '2', '--steps', '1', ...presets.llama,
    ...shaped('dim=256', 'heads=4', 'kv_heads=4', 'mlp_hidden=32'));
  succeed('export', at('wide'), '--format', 'hf', '-o', at('hf'), '-q');
  const config = JSON.parse(await readFile(join(at('hf'), 'config.json'), 'utf8'));
  await writeFile(join(at('hf'), 'config.json'), JSON.stringify({ ...config, max_position_embeddings: 1 << 20 }));
  for (const format of ['html', 'js']) {
    const { exit_code, stderr } = thimble('export', at('hf'), '--format', format, '-o', at('too-large'), '-q');
    assert.equal(exit_code, 1);
    // keys and values of 2 layers, 256 columns of 4 bytes
    assert.match(stderr, /needs about 4,\d{3},\d{3},\d{3} bytes of memory.* 1,048,576 tokens 4,294,967,296,/);
    assert.match(stderr, /shorter context/);
  }
  assert.ok(!readdirSync(folder).some((name) => name.startsWith('too-large')));
});
