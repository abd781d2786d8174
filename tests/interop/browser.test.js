// Runs models exported with `export --format html` in Chromium and Firefox, from file:// and
// offline, and compares them with the native program.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { copyFile, readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { launch, no_browser, photograph, with_page } from './browser.js';
import { launch_firefox, no_firefox, with_firefox } from './html_file.js';
import { remove, serve, temporary_folder } from './server.js';
import { binary, thimble } from './thimble.js';

const runtime = join(dirname(binary), '../share/thimble/thimble.wasm');
const no_runtime = existsSync(runtime) ? false : 'the runtime is not built (./test --wasm)';
const folder = temporary_folder();

const succeed = (...words) => {
  const { exit_code, stdout, stderr } = thimble(...words);
  assert.equal(exit_code, 0, `thimble ${words.join(' ')}: ${stdout}${stderr}`);
  return stdout;
};
const at = (name) => join(folder, name);
const small = ['context=128', 'layers=2', 'dim=64', 'heads=4', 'kv_heads=2', 'mlp_hidden=128', 'batch_tokens=1024', 'val_tokens=1024', 'val_every=0',
  'dtype=f32'].flatMap((setting) => ['--set', setting]);
const texts = {
  golf: ['--preset', 'golf', '--tokenizer', 'sentencepiece:400'],
  'golf-plus': ['--preset', 'golf-plus', '--tokenizer', 'sentencepiece:400', '--bigram-buckets', '256', '--bigram-dim', '16'],
  llama: ['--preset', 'llama', '--tokenizer', 'bpe:400', '--optimizer', 'muon'],
  qwen3: ['--preset', 'qwen3', '--tokenizer', 'bpe:400', '--optimizer', 'muon'],
};
const prompts = ['Once upon a time', 'Anna took a green boat ', 'Übung: 3 + 4 = 😀\n'];

// A model of each architecture, and a packed chat model; each as an HTML file.
function make_models() {
  succeed('data', 'sample', '--kind', 'tales', '--size', '300k', '-o', at('tales.txt'), '-q');
  for (const [name, words] of Object.entries(texts)) {
    succeed('train', '--data', at('tales.txt'), '-o', at(name), '-q', '--threads', '2', '--steps', '80', ...words, ...small);
    succeed('export', at(name), '--format', 'html', '-o', at(`${name}.html`), '-q');
  }
  succeed('data', 'sample', '--kind', 'chat', '--size', '3M', '-o', at('chats.jsonl'), '-q');
  succeed('data', 'sample', '--kind', 'chat', '--split', 'heldout', '--count', '100', '--seed', '272', '-o', at('questions.jsonl'), '-q');
  succeed('train', '--data', at('chats.jsonl'), '-o', at('chat'), '-q', '--threads', '2', '--preset', 'chat', '--tokenizer', 'bpe:1024',
    '--batch-tokens', '2048', '--steps', '500');
  succeed('pack', at('chat'), '-o', at('chat.thimble'), '-q');
  succeed('export', at('chat.thimble'), '--format', 'html', '-o', at('chat.html'), '-q');
}

before(() => { if (!no_runtime) make_models(); }, { timeout: 900_000 });
after(() => remove(folder));

// A browser as the tests below need it: evaluate() in the page of a file. Both fail on any request.
const drivers = {
  Chromium: {
    missing: no_runtime || no_browser, launch,
    open: (browser, name, use) => with_page(browser, pathToFileURL(at(`${name}.html`)).href, { offline: true }, use),
  },
  Firefox: {
    missing: no_runtime || no_firefox, launch: launch_firefox,
    open: async (browser, name, use) => assert.deepEqual(await with_firefox(browser, pathToFileURL(at(`${name}.html`)).href, use), []),
  },
};

// The greedy tokens of a page, with the distance of the two best log-probabilities at each, up to
// the first token like <s>, which has no text: `thimble generate` never samples one.
const greedy_in_page = (page, prompt, max_tokens) => page.evaluate(async (request) => {
  await window.thimble.ready;
  const margins = [], textless = [];
  const onToken = ({ top, text, bytes }) => {
    margins.push(Math.abs(top[0].logprob - top[1].logprob));
    textless.push(!text && /^<\w+>$/.test(String.fromCharCode(...bytes)));
  };
  const { tokens } = await window.thimble.complete({ ...request, temperature: 0, logprobs: 2, ignore_eos: true, onToken });
  const end = textless.indexOf(true);
  return { tokens: [...tokens].slice(0, end < 0 ? undefined : end), margins };
}, { prompt, max_tokens });

// Rounding may exchange two tokens that are equally likely; what follows then differs.
const limit = 1e-4;
function assert_same(ours, native, what) {
  assert.ok(ours.tokens.length >= 20, `${what}: ${ours.tokens.length} tokens`);
  const differs = ours.tokens.findIndex((token, i) => token !== native.tokens[i]);
  assert.ok(differs < 0 || ours.margins[differs] <= limit, `${what}: token ${differs} is ${ours.tokens[differs]}, natively ${native.tokens[differs]}; ` +
    `the two best differ by ${ours.margins[differs]}`);
}

for (const [name, { missing, launch: start, open }] of Object.entries(drivers)) {
  const options = { skip: missing, timeout: 900_000 };
  test(`${name}: greedy tokens equal the native program's`, options, async () => {
    const browser = await start();
    try {
      for (const model of [...Object.keys(texts), 'chat']) {
        await open(browser, model, async (page) => {
          for (const prompt of prompts) {
            const source = model === 'chat' ? at('chat.thimble') : at(model);
            const native = JSON.parse(succeed('generate', source, prompt, '--greedy', '--dtype', 'f32', '--ignore-eos', '--max-tokens', '40', '--json', '-q')).samples[0];
            assert.equal(native.tokens.length, 40);
            assert_same(await greedy_in_page(page, prompt, 40), native, `${model}, '${prompt}'`);
          }
        });
      }
    } finally {
      await browser.close();
    }
  });

  test(`${name}: other workers decode a range-coded model`, options, async () => {
    const browser = await start();
    try {
      await open(browser, 'chat', async (page) => {
        const { helpers, cores } = await page.evaluate(async () => ({ helpers: (await window.thimble.ready).helpers, cores: navigator.hardwareConcurrency }));
        // The first one may decode all parts of a small model before the others start.
        if (cores > 1) assert.ok(helpers >= 1 && helpers <= cores, `${helpers} helpers, ${cores} cores`);
        else assert.equal(helpers, 0);
      });
    } finally {
      await browser.close();
    }
  });

  test(`${name}: a chat model answers as many held-out questions as natively`, options, async () => {
    const { right } = JSON.parse(succeed('eval', at('chat.thimble'), '--data', at('questions.jsonl'), '--exact', '--dtype', 'f32', '--json', '-q'));
    assert.ok(right >= 30, `the model is trained: ${right} of 100 answers`);
    const questions = (await readFile(at('questions.jsonl'), 'utf8')).trim().split('\n').map((line) => JSON.parse(line).messages);
    const browser = await start();
    try {
      await open(browser, 'chat', async (page) => {
        const answered = await page.evaluate(async (all) => {
          await window.thimble.ready;
          const answers = [];
          for (const messages of all) answers.push((await window.thimble.complete({ messages: messages.slice(0, -1), temperature: 0 })).text);
          return answers;
        }, questions);
        const count = answered.filter((text, i) => text.trim() === questions[i].at(-1).content.trim()).length;
        assert.ok(count >= right, `${count} of ${questions.length} in the page, ${right} natively`);
      });
    } finally {
      await browser.close();
    }
  });
}

test("scored texts have the log-probabilities of the server's API", { skip: drivers.Chromium.missing, timeout: 300_000 }, async () => {
  const body = { prompt: 'A pig and a sheep are at the school.\nÜ 😀', echo: true, max_tokens: 0, logprobs: 2 };
  const server = await serve(at('chat.thimble'), '--dtype', 'f32');
  const reply = await (await fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify(body) })).json();
  await server.stop();
  const native = reply.choices[0].logprobs.token_logprobs, browser = await launch();
  try {
    await drivers.Chromium.open(browser, 'chat', async (page) => {
      const scored = await page.evaluate(async (request) => {
        const logprobs = [];
        await window.thimble.complete({ ...request, onToken: ({ logprob }) => logprobs.push(logprob) });
        return logprobs;
      }, body);
      assert.equal(scored.length, native.length);
      for (const [i, logprob] of native.entries()) assert.ok(Math.abs(scored[i] - logprob) <= limit, `token ${i}: ${scored[i]}, natively ${logprob}`);
    });
  } finally {
    await browser.close();
  }
});

test('the page of an exported chat model chats, scores a text, and follows a schema', { skip: drivers.Chromium.missing, timeout: 300_000 }, async () => {
  const browser = await launch();
  try {
    await drivers.Chromium.open(browser, 'chat', async (page) => {
      const ask = async (text) => {
        await page.fill('#message', text);
        await page.press('#message', 'Enter');
        await page.locator('.assistant:not(.answering) .note').last().waitFor();
      };
      await page.fill('#temperature', '0');
      await ask('Who has the green bell?');
      assert.match(await page.textContent('.assistant .note'), /^\d+ tokens · [\d.]+ tokens\/s/);
      assert.match(await page.textContent('#context-text'), /^[1-9]\d* of \d+ tokens$/);
      await page.getByRole('button', { name: 'About this model' }).click();
      const licences = await page.locator('dialog details').count();
      assert.ok(licences >= 2, `${licences} licences`);
      await photograph(page, 'export-about');
      await page.keyboard.press('Escape');
      await page.fill('#schema', '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}');
      await page.click('#new-chat');
      await ask('One?');
      assert.equal(typeof JSON.parse(await page.locator('.assistant .text').last().textContent()).ok, 'boolean');

      await page.click('#completions-tab');
      const text = 'The green bell belongs to Kate.';
      await page.fill('#prompt', text);
      await page.click('#score');
      await page.locator('#completion-note').waitFor();
      assert.equal((await page.locator('.token').allTextContents()).join(''), text);
      assert.ok(await page.locator('.token.p4').count() > 0);
      await photograph(page, 'export-score');
    });
  } finally {
    await browser.close();
  }
});

// The examples read the folder of `export --format js`.
function export_module() {
  const exported = at('web');
  if (!existsSync(exported)) succeed('export', at('golf'), '--format', 'js', '-o', exported, '-q');
  return exported;
}
const example = (path) => fileURLToPath(new URL(`../../examples/${path}`, import.meta.url));

test('the example for Node completes a text', { skip: no_runtime, timeout: 300_000 }, () => {
  const run = spawnSync(process.execPath, [example('node/generate.mjs'), export_module(), 'Once upon a time'], { encoding: 'utf8' });
  assert.equal(run.status, 0, run.stderr);
  assert.match(run.stdout, /^Once upon a time[^]+\n\d+ tokens, \d+ tokens\/s\n$/);
});

test('the example page completes a text', { skip: drivers.Chromium.missing, timeout: 300_000 }, async () => {
  const exported = export_module(), types = { html: 'text/html', mjs: 'text/javascript', wasm: 'application/wasm' };
  await copyFile(example('browser/index.html'), join(exported, 'index.html'));
  const server = createServer(async ({ url }, response) => {
    const name = url === '/' ? 'index.html' : url.slice(1);
    const body = await readFile(join(exported, name)).catch(() => null);
    response.writeHead(body ? 200 : 204, { 'Content-Type': types[name.split('.').at(-1)] ?? 'application/octet-stream' }).end(body);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const browser = await launch();
  try {
    await with_page(browser, `http://127.0.0.1:${server.address().port}`, {}, async (page) => {
      await page.locator('button:enabled').click();
      await page.locator('button:disabled').waitFor({ state: 'detached' });
      const text = await page.textContent('#output');
      assert.ok(text.startsWith('Once upon a time') && text.length > 40, text);
    });
  } finally {
    await browser.close();
    server.close();
  }
});

test('a changed byte of the model is found', { skip: drivers.Chromium.missing, timeout: 300_000 }, async () => {
  const page_text = await readFile(at('chat.html'), 'latin1');
  const inside = page_text.indexOf('id="thimble-model"') + 5000;
  const other = page_text[inside] === 'A' ? 'B' : 'A';
  await writeFile(at('changed.html'), page_text.slice(0, inside) + other + page_text.slice(inside + 1), 'latin1');
  const browser = await launch();
  try {
    await drivers.Chromium.open(browser, 'changed', async (page) => {
      await page.locator('#notice-text').filter({ hasText: /^This file is damaged: / }).waitFor();
      assert.ok(await page.locator('#message').isDisabled());
    });
  } finally {
    await browser.close();
  }
});
