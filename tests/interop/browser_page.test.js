// Tests the page of an HTML file that contains a model: everything a person sees. The runtime is a
// mock (html_file.js), so that it can fail, wait and answer with hostile text. browser.test.js runs
// real models. Screenshots are written to build/page.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { statSync, truncateSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { faint_texts, launch, no_browser, overflow, photograph, with_page } from './browser.js';
import { launch_firefox, no_firefox, with_firefox, write_mock } from './html_file.js';
import { eventually, remove, temporary_folder } from './server.js';

const folder = temporary_folder();
let browser, files = 0;

before(async () => { if (!no_browser) browser = await launch(); });
after(async () => {
  await browser?.close();
  remove(folder);
});

const needs_browser = { skip: no_browser, timeout: 300_000 };
const write = (answers, options) => write_mock(join(folder, `${++files}.html`), answers, options);

// Opens a new file offline: a page that needed the network would fail.
const on = (answers, { facts, edit, ...options }, use) =>
  with_page(browser, write(answers, { facts, edit }), { offline: true, ...options }, use);

const ready = (page) => page.evaluate(() => window.thimble.ready.then(() => true));
const answers = (page) => page.locator('#turns .assistant:not(.answering) .text');
const has_answers = (page, count) => eventually(`${count} answers`, async () => (await answers(page).count()) === count);
const last_text = async (page) => (await answers(page).allTextContents()).at(-1);
async function set(page, values) {
  if (await page.locator('#settings').isHidden()) await page.click('#settings-toggle');
  for (const [name, value] of Object.entries(values)) await page.fill(`#${name}`, String(value));
}
async function ask(page, text, count = 1) {
  await page.fill('#message', text);
  await page.press('#message', 'Enter');
  await has_answers(page, count);
}

test('an HTML file shows its progress, then its model, and answers', needs_browser, () => on({ slow: 200 }, {}, async (page) => {
  await page.getByRole('progressbar', { name: 'Unpacking the model' }).waitFor();
  await page.locator('#progress-text').filter({ hasText: 'Unpacking the model: decoding weights' }).waitFor();
  const focused = await page.locator('#message').evaluate((field) => field === document.activeElement);
  assert.ok(focused, 'one can type at once');
  await photograph(page, 'file-progress');
  await page.keyboard.type('Who has the green bell?');
  await page.keyboard.press('Enter');  // waits for the model
  await has_answers(page, 1);
  assert.equal(await page.locator('#progress').count(), 0);
  assert.equal(await last_text(page), 'The green bell belongs to Kate.');
  assert.equal(await page.textContent('.assistant .note'), '7 tokens · 123 tokens/s');
  assert.match(await page.textContent('#context-text'), /^\d+ of 256 tokens$/);
  assert.equal(await page.textContent('#model'), 'tales');
  assert.equal(await page.title(), 'tales · thimble');
  const facts = '722,304 parameters · 359 kB · 0.0021 bits per byte · Everything stays on this computer.';
  assert.equal(await page.textContent('footer span'), facts);
  assert.equal(await page.textContent('#status'), 'The green bell belongs to Kate. 7 tokens · 123 tokens/s', 'the answer is announced');
}));

test('a request contains the conversation and the settings', needs_browser, () => on({ repeat_options: true, tokens: [''] }, {}, async (page) => {
  await set(page, { temperature: 0, top_p: 0.9, top_k: 5, seed: 3, max_tokens: 9, system: 'Be brief.' });
  await ask(page, 'One?');
  const messages = [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: 'One?' }];
  const defaults = {
    temperature: 0.8, top_k: 0, top_p: 1, min_p: 0, repeat_penalty: 1, presence_penalty: 0, frequency_penalty: 0,
  };
  assert.deepEqual(JSON.parse(await last_text(page)), { ...defaults, messages, max_tokens: 9, temperature: 0, top_p: 0.9, top_k: 5, seed: 3 });
  await page.click('#new-chat');
  await page.click('#reset');
  await page.fill('#schema', '{"type": "object"}');
  await ask(page, 'Two?');
  const { seed, ...rest } = JSON.parse(await last_text(page));
  assert.ok(Number.isInteger(seed), 'without a seed, each request gets a new one');
  const response_format = { type: 'json_schema', json_schema: { name: 'answer', schema: { type: 'object' } } };
  assert.deepEqual(rest, { ...defaults, messages: [{ role: 'user', content: 'Two?' }], max_tokens: 64, response_format });
  for (const [name, value] of Object.entries(defaults)) assert.equal(await page.inputValue(`#${name}`), String(value));
}));

test('an answer is shown while it is written, and can be stopped', needs_browser, () => on({ endless: true }, {}, async (page) => {
  await set(page, { max_tokens: 100000 });
  for (const [i, stop] of [() => page.click('#stop'), () => page.keyboard.press('Escape')].entries()) {
    await page.fill('#message', 'Go on.');
    await page.press('#message', 'Enter');
    const length = () => page.textContent('.answering .text').then((text) => text.length);
    await eventually('some text', async () => (await length()) > 0);
    const seen = await length();
    await eventually('more text', async () => (await length()) > seen);
    await stop();
    await has_answers(page, i + 1);
    assert.match(await page.locator('.assistant .note').last().textContent(), /^\d+ tokens · \d+ tokens\/s · stopped$/);
    assert.ok((await last_text(page)).length > 0, 'the partial answer is kept');
  }
  await page.click('#completions-tab');
  await page.click('#continue');
  await page.locator('.token').first().waitFor();
  await page.click('#stop-completion');
  await page.locator('#completion-note').filter({ hasText: 'stopped' }).waitFor();
}));

test('typing goes on while the model computes', needs_browser, () => on({ blocks: 3000 }, {}, async (page) => {
  await ready(page);
  await page.fill('#message', 'One?');
  await page.press('#message', 'Enter');
  await page.keyboard.type('typed meanwhile');  // the mock blocks its thread
  assert.equal(await page.inputValue('#message'), 'typed meanwhile');
  assert.equal(await answers(page).count(), 0, 'the model is still computing');
  await has_answers(page, 1);
}));

test('completions: tokens are shaded by probability, alternatives open on hover and by keyboard', needs_browser, async () => {
  for (const colorScheme of ['light', 'dark']) {
    await on({}, { colorScheme }, async (page) => {
      await page.click('#completions-tab');
      await page.fill('#prompt', 'Once: ');
      await page.click('#continue');
      await page.locator('#completion-note').waitFor();
      assert.match(await page.textContent('#completion-note'),
        /^7 tokens · 123 tokens\/s · [\d.]+ nats per token · perplexity [\d.]+ · [\d.]+ bits per byte · the model ended the text$/);
      const tokens = page.locator('.token');
      assert.deepEqual(await tokens.allTextContents(), ['The', ' green', ' bell', ' belongs', ' to', ' Kate', '.']);
      const classes = await tokens.evaluateAll((views) => views.map((view) => view.className));
      assert.deepEqual(classes.slice(0, 5), ['token p4', 'token p3', 'token p2', 'token p1', 'token p0']);
      await tokens.nth(3).hover();
      assert.deepEqual(await page.locator('#alternatives code').allTextContents(), ['The', ' green', ' bell', ' belongs', ' to']);
      assert.equal(await page.locator('#alternatives .percent').first().textContent(), '36.8 %');
      assert.deepEqual(await faint_texts(page), []);
      await photograph(page, `file-completions-${colorScheme}`);
      await tokens.first().focus();
      await page.keyboard.press('ArrowRight');
      await page.keyboard.press('Enter');
      await page.keyboard.press('Enter');
      assert.equal(await page.inputValue('#prompt'), 'Once: TheThe', 'continues from there with the other token');
      assert.ok(await page.locator('#score').isHidden(), 'this runtime cannot score');
    });
  }
});

test('window.thimble runs the model', needs_browser, () => on({}, {}, async (page) => {
  const seen = await page.evaluate(async () => {
    const { thimble } = window, tokens = [], controller = new AbortController();
    const early = thimble.complete({ prompt: 'early', max_tokens: 2 });  // waits until the model is ready
    const info = await thimble.ready;
    const result = await thimble.complete({ prompt: 'a', max_tokens: 3, logprobs: 1, onToken: (token) => tokens.push(token.text) });
    controller.abort();
    const stopped = await thimble.complete({ prompt: 'a', signal: controller.signal });
    return { early: (await early).text, info: info === thimble.info && info.name, result, tokens, stopped: stopped.finish_reason };
  });
  assert.equal(seen.early, 'The green');
  assert.equal(seen.info, 'tales');
  assert.equal(seen.result.text, 'The green bell');
  assert.deepEqual(seen.result.tokens, [0, 1, 2]);
  assert.equal(seen.result.timings.tokens_per_second, 123);
  assert.deepEqual(seen.tokens, ['The', ' green', ' bell']);
  assert.equal(seen.stopped, 'abort');
}));

test('an error of the runtime is shown with the request', needs_browser, () => on({ fails: 'temperature must be >= 0, got -1' }, {}, async (page) => {
  await ask(page, 'One?');
  assert.equal(await page.textContent('.assistant.failed .note'), 'temperature must be >= 0, got -1');
  assert.equal(await page.evaluate(() => window.thimble.complete({ prompt: 'a' }).catch((error) => error.code)), 'invalid');
}));

// Each of these files shows one sentence in place of a model.
const notice = (page) => page.locator('#notice-text').filter({ visible: true }).textContent();
async function refuses(page, sentence) {
  await page.locator('#notice').waitFor();
  await eventually(String(sentence), async () => sentence.test(await notice(page)));
  assert.equal((await notice(page)).match(/[.!?](\s|$)/g).length <= 2, true, await notice(page));
  assert.equal(await page.locator('#progress').count(), 0);
  assert.ok(await page.locator('#message').isDisabled());
  assert.ok(await page.locator('#continue').isDisabled());
  assert.match(await page.evaluate(() => window.thimble.ready.catch((error) => error.message)), sentence);
}

test('a browser without SIMD, or without WebAssembly, gets a sentence', needs_browser, async () => {
  const lacks = [() => { WebAssembly.validate = () => false; }, () => { delete window.WebAssembly; }];
  for (const lack of lacks)
    await on({}, { prepare: (page) => page.addInitScript(lack) }, (page) => refuses(page, /^This browser cannot run the model: it lacks WebAssembly with SIMD and exceptions\./));
});

test('a damaged file gets a sentence', needs_browser, async () => {
  const damages = [
    [(text) => text.replace(/(id="thimble-model">)..../, '$1'), /^This file is damaged: the model should have \d+ bytes, but \d+ were found\./],
    [(text) => text.replace('id="thimble-about">{', 'id="thimble-about">['), /^This file is damaged: the description of its model cannot be read\./],
    [(text) => text.replace('"parameters":722304', '"parameters":null'), /^This file is damaged: the description of its model cannot be read\./],
    [(text) => text.replace('id="thimble-about"', 'id="other"'), /^This file is damaged: the description of its model cannot be read\./],
    [(text) => text.replace('async function decode_part', 'async function decode_part('), /^The program of the model stopped: /],
  ];
  for (const [edit, sentence] of damages) await on({}, { edit, expected: /SyntaxError/ }, (page) => refuses(page, sentence));
});

test('a truncated file gets a sentence, wherever it ends', needs_browser, async () => {
  const ends = [['id="thimble-end"', /^This file is incomplete: its end is missing\./], ['id="thimble-model">eyJ0b2', /its end is missing/],
    ['id="thimble-worker">', /its end is missing/], ['"parameters"', /^This file is damaged: the description/]];
  for (const [mark, sentence] of ends) {
    const edit = (text) => text.slice(0, text.indexOf(mark) + mark.length);
    await on({}, { edit }, (page) => refuses(page, sentence));
  }
  const in_script = (text) => text.slice(0, text.indexOf('async function connect()'));
  await on({}, { edit: in_script }, async (page) => {
    await page.locator('#notice-text').waitFor();
    assert.equal(await notice(page), 'This page needs JavaScript and a browser of 2024 or later.');
  });
});

test('a model that needs too much memory gets a sentence, also later', needs_browser, async () => {
  await on({ no_memory: true }, {}, (page) => refuses(page, /^There is not enough memory to unpack the model \(359 kB\)\. Close other tabs/));
  await on({ fails: 'out of memory' }, {}, async (page) => {
    await ask(page, 'One?');
    assert.equal(await page.textContent('.assistant.failed .note'), 'out of memory');
  });
});

test('a worker that breaks ends its requests with a sentence', needs_browser, () => on({}, {
  expected: /broke/, edit: (text) => text.replace('const used =', "setTimeout(() => { throw new Error('it broke'); }); await pause(1e6); const used ="),
}, async (page) => {
  for (const count of [1, 2]) {
    await ask(page, 'One?', count);
    assert.match(await page.locator('.assistant.failed .note').last().textContent(), /^The program of the model stopped: .*it broke\.$/);
  }
  assert.match(await notice(page), /it broke/);
}));

test('without JavaScript, the page says that it needs it', needs_browser, () => on({}, { javaScriptEnabled: false }, async (page) => {
  assert.equal(await notice(page), 'This page needs JavaScript and a browser of 2024 or later.');
  assert.ok(await page.locator('#notice').isVisible());
}));

// The page is online here, and a server counts the requests that reach it. (For the frame, Chromium
// opens a connection before it applies the policy, but sends nothing.)
test('nothing leaves the page or its worker: the policy forbids every connection', needs_browser, async () => {
  const received = [];
  const server = createServer((socket) => socket.on('data', (data) => received.push(String(data))).on('error', () => {}));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = `127.0.0.1:${server.address().port}`;
  const in_worker = `const reached = await fetch('http://${address}/').then(() => 'reached', (error) => error.name); onToken({ text: reached }); const used =`;
  await on({}, { offline: false, expected: /Content Security Policy|a request to/, edit: (text) => text.replace('const used =', in_worker) }, async (page) => {
    await ask(page, 'One?');
    assert.match(await last_text(page), /^TypeError/);
    const seen = await page.evaluate(async (to) => {
      const violations = [];
      document.addEventListener('securitypolicyviolation', (event) => violations.push(event.effectiveDirective));
      await fetch(`http://${to}/`).catch(() => {});
      await new Promise((done) => Object.assign(new Image(), { onload: done, onerror: done, src: `http://${to}/a.png` }));
      new WebSocket(`ws://${to}/`);
      navigator.sendBeacon(`http://${to}/`, 'x');
      const place = document.getElementById('turns').appendChild(document.createElement('li'));
      place.innerHTML = `<img src="data:,x" onerror="window.hacked=1"><iframe src="http://${to}/"></iframe>`;
      document.head.append(Object.assign(document.createElement('script'), { src: `http://${to}/a.js` }));
      await new Promise((resolve) => setTimeout(resolve, 500));
      return { violations, hacked: window.hacked };
    }, address);
    assert.equal(seen.hacked, undefined);
    for (const directive of ['connect-src', 'img-src', 'frame-src', 'script-src-elem', 'script-src-attr'])
      assert.ok(seen.violations.includes(directive), `${directive} in ${seen.violations}`);
  });
  server.close();
  assert.deepEqual(received, []);
});

const hostile = ['<img src=x onerror="window.hacked=1">', '</scr', 'ipt><script>window.hacked=1</script>', '<!--', '[a](javascript:window.hacked=1)',
  '\u202Eesrever\u2066', '\u0000\u0007', `${'long'.repeat(400)} `, '\ud83d\ude00'];

test('hostile names, facts, licences and tokens are shown as text', needs_browser, () => on({ tokens: hostile }, {
  viewport: { width: 360, height: 740 }, facts: { name: hostile.join(''), version: hostile.join('') },
}, async (page) => {
  await ready(page);
  assert.equal(await page.textContent('#model'), hostile.join(''));
  await page.fill('#message', hostile.join(''));
  await page.press('#message', 'Enter');
  await has_answers(page, 1);
  assert.equal(await last_text(page), hostile.join(''));
  await page.getByRole('button', { name: 'About this model' }).click();
  await page.locator('dialog').waitFor();
  assert.equal(await page.locator('dialog img, #turns img, dialog script').count(), 0);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.ok(await overflow(page) <= 0, `${await overflow(page)} pixels too wide`);
  await photograph(page, 'file-hostile');
}));

test('the description of the model and the licences can be read, by keyboard too', needs_browser, () => on({}, {}, async (page) => {
  await ready(page);
  const open = page.getByRole('button', { name: 'About this model' });
  await open.focus();
  await page.keyboard.press('Enter');
  const dialog = page.getByRole('dialog', { name: 'tales' });
  await dialog.waitFor();
  const text = await dialog.textContent();
  for (const part of ['358,901 bytes', '256 tokens', 'int6', 'built-in chats', '1,400']) assert.ok(text.includes(part), part);
  await dialog.getByText('thimble: Apache-2.0').focus();
  await page.keyboard.press('Enter');
  assert.ok(await dialog.getByText('Version 2.0').isVisible());
  assert.deepEqual(await faint_texts(page), []);
  await page.keyboard.press('Escape');
  assert.ok(await dialog.isHidden());
  assert.ok(await open.evaluate((button) => button === document.activeElement), 'the focus returns');
}));

test('a model that does not chat opens with completions', needs_browser, () => on({}, { facts: { chat: false, bits_per_byte: null } }, async (page) => {
  assert.ok(await page.locator('#prompt').isVisible());
  await page.click('#continue');
  await page.locator('#completion-note').waitFor();
  assert.equal(await page.locator('.token').count(), 7);
  await page.click('#chat-tab');
  assert.ok(await page.locator('#message').isDisabled());
  assert.equal(await page.textContent('footer span'), '722,304 parameters · 359 kB · Everything stays on this computer.');
}));

test('the page fits a phone and a desk, in light and dark, with sufficient contrast', needs_browser, async () => {
  for (const colorScheme of ['light', 'dark']) {
    for (const [name, viewport] of [['desk', { width: 1280, height: 800 }], ['phone', { width: 360, height: 740 }]]) {
      await on({}, { colorScheme, viewport, hasTouch: name === 'phone' }, async (page) => {
        await ready(page);
        await photograph(page, `file-${name}-${colorScheme}-start`);
        await ask(page, 'Who has the green bell?');
        assert.deepEqual(await faint_texts(page), []);
        assert.ok(await overflow(page) <= 0);
        await photograph(page, `file-${name}-${colorScheme}-chat`);
        await page.getByRole('button', { name: 'About this model' }).click();
        assert.ok(await overflow(page) <= 0);
        await photograph(page, `file-${name}-${colorScheme}-about`);
      });
    }
  }
});

test('all controls have names', needs_browser, () => on({ slow: 300 }, {}, async (page) => {
  const unnamed = () => page.locator('button, input, textarea, dialog, [role=meter], [role=progressbar], [role=tabpanel]').evaluateAll((elements) =>
    elements.filter((element) => !element.ariaLabel && !element.labels?.length && !element.hasAttribute('aria-labelledby') && !element.textContent.trim())
      .map((element) => element.outerHTML));
  assert.deepEqual(await unnamed(), []);
  await ready(page);
  assert.deepEqual(await unnamed(), []);
}));

const needs_firefox = { skip: no_firefox, timeout: 300_000 };
test('Firefox opens the file, chats, and refuses a damaged one', needs_firefox, async () => {
  const firefox = await launch_firefox();
  try {
    const requested = await with_firefox(firefox, write(), async (page) => {
      await page.evaluate(() => window.thimble.ready);
      await page.type('#message', 'Who has the green bell?');
      await page.keyboard.press('Enter');
      await page.waitForSelector('.assistant:not(.answering)');
      assert.equal(await page.$eval('.assistant .text', (view) => view.textContent), 'The green bell belongs to Kate.');
      await page.click('#completions-tab');
      await page.type('#prompt', 'Once: ');
      await page.click('#continue');
      await page.waitForSelector('#completion-note:not([hidden])');
      assert.equal((await page.$$('.token.p4, .token.p3, .token.p2, .token.p1, .token.p0')).length, 7);
      assert.equal(await page.evaluate(() => window.thimble.complete({ prompt: 'a', max_tokens: 3 }).then(({ text }) => text)), 'The green bell');
    });
    assert.deepEqual(requested, []);
    const cut = write();
    truncateSync(fileURLToPath(cut), statSync(fileURLToPath(cut)).size - 30);
    await with_firefox(firefox, cut, async (page) => {
      await page.waitForFunction(() => document.getElementById('notice-text').checkVisibility());
      assert.match(await page.$eval('#notice-text', (view) => view.textContent), /^This file is incomplete/);
    });
  } finally {
    await firefox.close();
  }
});
