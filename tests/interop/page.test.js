// Tests the page at `/` in a real browser with a real server. Screenshots are written to
// build/page.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { faint_texts, launch, no_browser, overflow, photograph, with_page } from './browser.js';
import { eventually, metric, remove, serve, temporary_folder, train } from './server.js';

const folder = temporary_folder(), servers = [];
let browser, chatty, endless;

before(async () => {
  if (no_browser) return;
  chatty = await serve(train(folder, 'chatty'));
  endless = await serve(train(folder, 'endless'));
  servers.push(chatty, endless);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  for (const server of servers) await server.stop();
  remove(folder);
});

const needs_browser = { skip: no_browser, timeout: 600_000 };
const on = (server, options, use) => with_page(browser, server.url, options, use);

const question = 'Tilda has eight pears. Will has one pear. Who has fewer pears?';
const answers = (page) => page.locator('#turns .assistant:not(.answering) .text');
const last_text = async (page) => (await answers(page).allTextContents()).at(-1);
const has_answers = (page, count) => eventually(`${count} answers`, async () => (await answers(page).count()) === count);

async function set(page, values) {
  if (await page.locator('#settings').isHidden()) await page.click('#settings-toggle');
  for (const [name, value] of Object.entries(values)) await page.fill(`#${name}`, String(value));
}
async function ask(page, text, count = 1) {
  await page.fill('#message', text);
  await page.press('#message', 'Enter');
  await has_answers(page, count);
}

// A route handler that responds with a stream of these events.
function stream_of(events) {
  const lines = [...events.map((event) => JSON.stringify(event)), '[DONE]'].map((line) => `data: ${line}\n\n`);
  return (route) => route.fulfill({ contentType: 'text/event-stream', body: lines.join('') });
}

test("chat shows the same greedy answer as the API", needs_browser, () => on(chatty, {}, async (page) => {
  await set(page, { temperature: 0 });
  await ask(page, question);
  const body = JSON.stringify({ messages: [{ role: 'user', content: question }], temperature: 0 });
  const reply = await (await fetch(`${chatty.url}/v1/chat/completions`, { method: 'POST', body })).json();
  assert.equal(await last_text(page), reply.choices[0].message.content);
  const { prompt_tokens, total_tokens, completion_tokens } = reply.usage;
  assert.ok(prompt_tokens > 0);
  assert.equal(await page.textContent('#context-text'), `${total_tokens} of 256 tokens`);
  assert.match(await page.textContent('.assistant .note'), new RegExp(`^${completion_tokens} tokens? · [\\d.]+ tokens/s`));
  assert.equal(await page.textContent('#status'), `${await last_text(page)} ${await page.textContent('.assistant .note')}`);
  await ask(page, 'And who has more?', 2);
  await photograph(page, 'chat-light');
}));

test('a request contains the conversation, the system prompt and the chosen settings', needs_browser, () => on(chatty, {}, async (page) => {
  await set(page, { temperature: 0, top_k: 5, seed: 3, max_tokens: 9, repeat_penalty: 1.1, system: 'Be brief.' });
  await ask(page, 'One?');
  const request = page.waitForRequest('**/v1/chat/completions');
  await ask(page, 'Two?', 2);
  const first = (await answers(page).allTextContents())[0];
  assert.deepEqual((await request).postDataJSON(), {
    messages: [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: 'One?' },
      { role: 'assistant', content: first }, { role: 'user', content: 'Two?' }],
    temperature: 0, top_k: 5, max_tokens: 9, seed: 3, repeat_penalty: 1.1, stream: true, stream_options: { include_usage: true },
  });
  await page.reload();
  await has_answers(page, 2);  // conversation and settings survive a reload
  assert.equal(await page.inputValue('#top_k'), '5');
  assert.equal(await page.inputValue('#system'), 'Be brief.');
  await page.click('#reset');
  assert.equal(await page.inputValue('#top_k'), '0', "the server's default");
  await page.click('#new-chat');
  assert.equal(await page.locator('#turns .text').count(), 0);
}));

test('an answer follows the JSON Schema in the settings', needs_browser, () => on(chatty, {}, async (page) => {
  const schema = { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'], additionalProperties: false };
  await set(page, { schema: JSON.stringify(schema), seed: 1 });
  await ask(page, 'One?');
  assert.equal(typeof JSON.parse(await last_text(page)).ok, 'boolean');
  await page.reload();
  await has_answers(page, 1);
  assert.deepEqual(JSON.parse(await page.inputValue('#schema')), schema);
  await set(page, { schema: '{' });
  await page.press('#schema', 'Tab');
  assert.match(await page.textContent('#schema-error'), /not JSON/);
  await page.fill('#message', 'Two?');
  await page.press('#message', 'Enter');
  await page.locator('.assistant').nth(1).filter({ hasText: 'not JSON' }).waitFor();
}));

test('an answer is streamed, and stopping it frees its slot', needs_browser, () => on(endless, {}, async (page) => {
  const lengths = [];
  await set(page, { temperature: 0 });
  for (const stop of [() => page.click('#stop'), () => page.keyboard.press('Escape')]) {
    await page.fill('#message', 'Go on.');
    await page.press('#message', 'Enter');
    for (let i = 0; i < 3; ++i) {
      const seen = lengths.at(-1) ?? 0;
      await eventually('more text', async () => {
        lengths.push((await page.textContent('.answering .text')).length);
        return lengths.at(-1) > seen;
      });
    }
    await stop();
    await page.locator('#send').waitFor();
    assert.match(await page.locator('.assistant .note').last().textContent(), /tokens\/s · stopped$/);
    await eventually('no request is processed', async () => (await metric(endless.url, 'thimble_requests_processing')) === 0);
    assert.ok((await last_text(page)).length > 0, 'the partial answer is kept');
    await page.click('#new-chat');
    lengths.length = 0;
  }
}));

test('answers can be retried and edited, messages can be edited', needs_browser, () => on(chatty, {}, async (page) => {
  await set(page, { temperature: 0, max_tokens: 20 });
  await ask(page, question);
  const first = await last_text(page);
  await ask(page, 'Thank you.', 2);
  await page.getByRole('button', { name: 'Retry this answer' }).first().click();
  await has_answers(page, 1);
  assert.equal(await last_text(page), first, 'a greedy retry gives the same answer and removes later turns');

  await page.getByRole('button', { name: 'Edit your message' }).click();
  assert.equal(await page.getByLabel('Your message').inputValue(), question);
  const request = page.waitForRequest('**/v1/chat/completions');
  await page.getByLabel('Your message').fill('Who are you?');
  await page.keyboard.press('Enter');
  assert.deepEqual((await request).postDataJSON().messages, [{ role: 'user', content: 'Who are you?' }]);
  await has_answers(page, 1);

  await page.getByRole('button', { name: 'Edit the answer' }).click();
  await page.getByLabel('The answer').fill('I am a thimble.');
  await page.getByRole('button', { name: 'Save the changed answer' }).click();
  assert.equal(await last_text(page), 'I am a thimble.');
  await page.getByRole('button', { name: 'Edit the answer' }).click();
  await page.getByLabel('The answer').fill('Never mind');
  await page.keyboard.press('Escape');
  assert.equal(await last_text(page), 'I am a thimble.');
}));

test('the copy button copies an answer', needs_browser, () => on(chatty, { permissions: ['clipboard-read', 'clipboard-write'] }, async (page) => {
  await set(page, { temperature: 0 });
  await ask(page, question);
  await page.getByRole('button', { name: 'Copy the answer' }).click();
  await page.getByText('Copied', { exact: true }).first().waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), await last_text(page));
}));

test('the theme follows the system until changed, and both themes have sufficient contrast', needs_browser, async () => {
  const theme = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const seen = {};
  for (const scheme of ['light', 'dark']) {
    await on(chatty, { colorScheme: scheme }, async (page) => {
      seen[scheme] = await theme(page);
      await ask(page, question);
      assert.deepEqual(await faint_texts(page), []);
      await photograph(page, `chat-${scheme}`);
      await page.click('#theme');
      assert.notEqual(await theme(page), seen[scheme]);
      assert.equal(await page.getAttribute('#theme', 'aria-pressed'), String(scheme === 'light'));
      assert.deepEqual(await faint_texts(page), []);
      const other = await theme(page);
      await page.reload();
      assert.equal(await theme(page), other, 'the theme is remembered');
    });
  }
  assert.notEqual(seen.light, seen.dark);
});

test('completions: tokens are shaded by probability, alternatives open on hover and by keyboard', needs_browser, async () => {
  for (const colorScheme of ['light', 'dark']) {
    await on(endless, { colorScheme }, async (page) => {
      await set(page, { temperature: 0, max_tokens: 24 });
      await page.click('#completions-tab');
      await page.fill('#prompt', 'Tilda has eight pears.');
      await page.click('#continue');
      await page.locator('#completion-note').waitFor();
      const tokens = page.locator('.token');
      assert.equal(await tokens.count(), 24);
      assert.match(await page.textContent('#completion-note'),
        /^24 tokens · [\d.]+ tokens\/s · [\d.]+ nats per token · perplexity [\d.]+ · [\d.]+ bits per byte$/);

      await tokens.nth(2).hover();
      const rows = page.locator('#alternatives button');
      assert.equal(await rows.count(), 5);
      assert.equal(await page.locator('#alternatives .chosen').count(), 1);
      const percents = (await page.locator('#alternatives .percent').allTextContents()).map((text) => parseFloat(text.replace('<', '')));
      assert.deepEqual(percents, percents.toSorted((a, b) => b - a));
      const label = await tokens.nth(2).getAttribute('aria-label');
      assert.ok(label.endsWith(`, ${await page.textContent('#alternatives .chosen .percent')}`), label);
      assert.deepEqual(await faint_texts(page), []);
      await photograph(page, `completions-${colorScheme}`);

      await page.mouse.move(5, 400);
      await page.locator('#alternatives').waitFor({ state: 'hidden' });
      await tokens.first().focus();
      await page.keyboard.press('ArrowRight');
      await page.keyboard.press('Enter');
      const choices = page.locator('#alternatives button:enabled');  // special tokens are disabled: they cannot be typed
      assert.ok(await choices.first().evaluate((row) => row === document.activeElement));
      await page.keyboard.press('ArrowDown');
      const prefix = `Tilda has eight pears.${await tokens.first().textContent()}`;
      const other = (await choices.nth(1).locator('code').textContent()).replaceAll('⏎', '\n');
      const request = page.waitForRequest('**/v1/completions');
      await page.keyboard.press('Enter');
      assert.equal((await request).postDataJSON().prompt, prefix + other, 'continues from there with the other token');
    });
  }
});

test('completions: scoring shows the same log-probabilities as the API', needs_browser, () => on(chatty, {}, async (page) => {
  const text = 'Tilda has eight pears.\nWill has one.';
  await page.click('#completions-tab');
  await page.fill('#prompt', text);
  await page.click('#score');
  await page.locator('#completion-note').waitFor();
  assert.equal((await page.locator('.token').allTextContents()).join('').replaceAll('⏎', ''), text);

  const body = JSON.stringify({ prompt: text, echo: true, logprobs: 1, max_tokens: 0 });
  const { logprobs } = (await (await fetch(`${chatty.url}/v1/completions`, { method: 'POST', body })).json()).choices[0];
  const scored = logprobs.token_logprobs.filter((logprob) => logprob !== null);
  const nats = -scored.reduce((sum, logprob) => sum + logprob, 0) / scored.length;
  assert.ok((await page.textContent('#completion-note')).includes(`${nats.toFixed(3)} nats per token`));
  const classes = await page.locator('.token').evaluateAll((views) => views.map((view) => view.className));
  for (const [i, logprob] of logprobs.token_logprobs.entries())
    if (logprob !== null) assert.equal(classes[i], `token p${[0.01, 0.05, 0.2, 0.5].filter((floor) => Math.exp(logprob) >= floor).length}`);
  await page.locator('.token').nth(3).hover();
  await photograph(page, 'score');
}));

test('completions: the note shows whether the model ended the text or the user stopped it', needs_browser, async () => {
  await on(chatty, {}, async (page) => {
    await page.route('**/v1/completions', stream_of([{ choices: [{ index: 0, text: '', logprobs: null, finish_reason: 'stop' }] }]));
    await page.click('#completions-tab');
    await page.click('#continue');
    await page.locator('#completion-note').waitFor();
    assert.equal(await page.textContent('#completion-note'), 'the model ended the text');
  });
  await on(endless, {}, async (page) => {
    await set(page, { temperature: 0, max_tokens: 900 });
    await page.click('#completions-tab');
    await page.click('#continue');
    await page.locator('.token').nth(3).waitFor();
    await page.click('#stop-completion');
    assert.match(await page.textContent('#completion-note'), /^\d+ tokens · \d+ tokens\/s · stopped$/);
    assert.ok(await page.locator('#continue').isEnabled());
  });
});

test("the server's error messages are shown unchanged", needs_browser, () => on(chatty, { expected: /status of 400/ }, async (page) => {
  await set(page, { temperature: -0.5 });
  await ask(page, question);
  assert.equal(await page.textContent('.assistant.failed .note'), 'temperature must be >= 0, got -0.5');
  await set(page, { temperature: 0 });
  await page.getByRole('button', { name: 'Retry this answer' }).click();
  await eventually('an answer', async () => (await answers(page).count()) === 1 && (await last_text(page)).length > 0);
  assert.equal(await page.locator('.failed').count(), 0);
  await page.click('#completions-tab');
  await set(page, { top_p: 7 });
  await page.fill('#prompt', 'x');
  await page.click('#continue');
  assert.match(await page.textContent('#completion-note.failed'), /top_p/);
}));

test('a note reports turns dropped from a full context', needs_browser, () => on(chatty, {}, async (page) => {
  await set(page, { temperature: 0, max_tokens: 8 });
  for (let i = 1; i <= 3; ++i) await ask(page, `Is it ${i}? ${question} ${question} ${question}`, i);
  assert.match(await page.locator('.assistant .note').last().textContent(),
    /context full: the first \d+ tokens of the conversation were left out/);
}));

test('a broken connection and an unreachable server are reported', needs_browser, async () => {
  const leaving = await serve(`${folder}/chatty`);
  await on(leaving, { expected: /ERR_CONNECTION_REFUSED/ }, async (page) => {
    await page.route('**/v1/chat/completions', (route) => route.fulfill({
      contentType: 'text/event-stream', body: 'data: {"choices":[{"index":0,"delta":{"content":"half an"}}]}\n\n' }));
    await ask(page, 'Hello?');
    assert.equal(await last_text(page), 'half an');
    assert.equal(await page.textContent('.failed .note'), 'the connection closed before the answer was complete');
    await page.unroute('**/v1/chat/completions');
    await leaving.stop();
    await ask(page, 'Hello?', 2);
    assert.equal(await page.locator('.failed .note').last().textContent(), 'the server cannot be reached');
  });
});

test('the API key is requested and sent, and is not stored permanently', needs_browser, async () => {
  const guarded = await serve(`${folder}/chatty`, '--api-key', 'open-sesame');
  servers.push(guarded);
  await on(guarded, { expected: /status of 401/ }, async (page) => {
    await page.locator('#key').waitFor();
    await photograph(page, 'key');
    await page.fill('#key', 'wrong');
    await page.keyboard.press('Enter');
    await eventually('the key is requested again', async () => (await page.inputValue('#key')) === '' && page.locator('#key').isVisible());
    await page.fill('#key', 'open-sesame');
    await page.keyboard.press('Enter');
    await page.locator('#notice').waitFor({ state: 'hidden' });
    await set(page, { temperature: 0 });
    await ask(page, question);
    assert.ok((await last_text(page)).length > 0);
    assert.equal(await page.evaluate(() => Object.values(localStorage).join().includes('sesame')), false);
  });
});

const hostile = [
  '<img src=x onerror="window.hacked=1">', '<script>window.hacked=1</scr', 'ipt>', '</script><script nonce=x>window.hacked=1</script>',
  '<iframe srcdoc="<script>parent.hacked=1</script>">', '[a](javascript:window.hacked=1)', '&lt;b&gt;&#x3c;',
  '\u202Eesrever\u2066', '\u0000\u0007\u001b[31m',
  `${'long'.repeat(400)} `, '\u0301'.repeat(60), '${window.hacked=1}', '{{constructor.constructor("window.hacked=1")()}}', '\ud83d\ude00'];

async function assert_only_text(page, place) {
  const found = await page.evaluate((at) => ({
    tags: [...new Set([...document.querySelector(at).querySelectorAll('*')].map((element) => element.localName))],
    hacked: window.hacked, scripts: document.scripts.length, frames: window.length,
  }), place);
  const ours = ['li', 'span', 'div', 'button', 'p', 'code', 'pre', 'strong', 'em'];
  assert.deepEqual(found.tags.filter((tag) => !ours.includes(tag)), []);
  assert.equal(found.hacked, undefined);
  assert.equal(found.scripts, 1);
  assert.equal(found.frames, 0);
  assert.ok(await overflow(page) <= 0, `${await overflow(page)} pixels too wide`);
}

test('settings show the values in use, and only changed ones are sent', needs_browser, () => on(chatty, {}, async (page) => {
  const { params } = (await (await fetch(`${chatty.url}/props`)).json()).default_generation_settings;
  await eventually('the defaults are shown', async () => (await page.inputValue('#temperature')) === String(params.temperature));
  for (const name of ['top_k', 'top_p', 'min_p', 'repeat_penalty', 'presence_penalty', 'frequency_penalty'])
    assert.equal(await page.inputValue(`#${name}`), String(params[name]), name);
  assert.ok((await page.locator('aside input').evaluateAll((inputs) => inputs.map((input) => input.placeholder)))
    .every((text) => !/\d/.test(text)), 'no placeholder looks like a value');
  await set(page, { temperature: 0 });
  await page.fill('#top_p', '');
  await page.focus('#message');
  assert.equal(await page.inputValue('#top_p'), String(params.top_p));
  assert.equal(await page.locator('aside .changed').count(), 1);
  const request = page.waitForRequest('**/v1/chat/completions');
  await ask(page, question);
  assert.deepEqual(Object.keys((await request).postDataJSON()).sort(), ['messages', 'stream', 'stream_options', 'temperature']);
}));

test('earlier chats are kept in the browser and can be opened and deleted', needs_browser, () => on(chatty, {}, async (page, context) => {
  await set(page, { temperature: 0, max_tokens: 8 });
  await ask(page, question);
  const first = await last_text(page), used = await page.textContent('#context-text');
  await page.click('#new-chat');
  await ask(page, 'Who are you?');
  assert.deepEqual(await page.locator('#chats button').allTextContents(), ['Who are you?', question]);
  const other = await context.newPage();  // another tab starts with an empty conversation
  await other.goto(chatty.url);
  assert.equal(await other.locator('#turns .text').count(), 0);
  await other.locator('#chats button').nth(1).click();
  await has_answers(other, 1);
  assert.equal(await last_text(other), first);
  await other.locator('#context-text').filter({ hasText: used }).waitFor({ state: 'attached' });
  await ask(other, 'Thank you.', 2);
  assert.deepEqual(await other.locator('#chats button').allTextContents(), [question, 'Who are you?']);
  await photograph(other, 'history');
  other.on('dialog', (dialog) => dialog.accept());
  await other.click('#forget');
  assert.ok(await other.locator('#history').isHidden());
  await other.reload();
  assert.ok(await other.locator('#history').isHidden());
}));

test('answers show simple Markdown, and nothing in it becomes markup', needs_browser, () => on(chatty, {}, async (page) => {
  const answer = '# Title\nsome **bold *and* `code`** text, 2 * 3 * 4, [a](javascript:x) **<img src=x onerror="window.hacked=1">**\n' +
    '```html\n<b>**x**</b>\n```\n- item';
  await page.route('**/v1/chat/completions', stream_of([...answer].map((content) => ({ choices: [{ index: 0, delta: { content } }] }))
    .concat({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })));
  await ask(page, '**not formatted**');
  const texts = (tag) => page.locator(`.assistant .text ${tag}`).allTextContents();
  assert.deepEqual(await texts('strong'), ['Title\n', 'bold and code', '<img src=x onerror="window.hacked=1">']);
  assert.deepEqual(await texts('strong em'), ['and']);
  assert.deepEqual(await texts('code'), ['code']);
  assert.deepEqual(await texts('pre'), ['<b>**x**</b>\n']);
  assert.ok((await last_text(page)).includes('text, 2 * 3 * 4, [a](javascript:x) <img'));
  assert.equal(await page.textContent('.user .text'), '**not formatted**');
  await assert_only_text(page, '#turns');
  await photograph(page, 'markdown');
}));

test('hostile answers are shown as text', needs_browser, () => on(chatty, { viewport: { width: 360, height: 740 } }, async (page) => {
  await page.route('**/v1/chat/completions', stream_of([
    ...hostile.map((content) => ({ choices: [{ index: 0, delta: { content } }] })),
    { choices: [{ index: 0, delta: {}, finish_reason: '<img src=x onerror="window.hacked=1">' }] }]));
  await ask(page, hostile.join(''));
  assert.equal(await last_text(page), hostile.join(''));
  await assert_only_text(page, '#turns');
  await page.reload();
  await has_answers(page, 1);
  assert.equal(await last_text(page), hostile.join(''));
  await assert_only_text(page, '#turns');
  await photograph(page, 'hostile-phone');
}));

test('hostile tokens, errors and model names are shown as text', needs_browser, () => on(chatty, {
  viewport: { width: 360, height: 740 }, expected: /status of 418/,
  prepare: (page) => page.route('**/v1/models', (route) => route.fulfill({ json: { data: [{ id: hostile.join('') }] } })),
}, async (page) => {
  await eventually('the name is shown', async () => (await page.textContent('#model')) === hostile.join(''));
  await page.route('**/v1/completions', stream_of(hostile.map((text, i) => ({ choices: [{ index: 0, text, logprobs: {
    tokens: [text], token_logprobs: [-1], text_offset: [i],
    top_logprobs: [Object.fromEntries(hostile.slice(0, 6).map((other, j) => [other, -1 - j]))] } }] }))));
  await page.click('#completions-tab');
  await page.fill('#prompt', '<b>bold</b>');
  await page.click('#continue');
  await page.locator('#completion-note').waitFor();
  assert.deepEqual(await page.locator('.token').allTextContents(), hostile);
  await page.locator('.token').nth(7).hover();
  assert.ok((await page.locator('.token').nth(7).getAttribute('aria-label')).startsWith('‹U+202E›esrever‹U+2066›'));
  await assert_only_text(page, '#completions #result');

  await page.route('**/v1/chat/completions', (route) => route.fulfill({ status: 418, json: { error: { message: hostile.join('') } } }));
  await page.click('#chat-tab');
  await ask(page, 'Hello?');
  assert.equal(await page.textContent('.failed .note'), hostile.join(''));
  await assert_only_text(page, '#turns');
}));

// The policy must block scripts even if a bug inserted an answer as HTML.
test('the Content-Security-Policy blocks injected scripts and styles', needs_browser, () => on(chatty, { expected: /Content Security Policy/ }, async (page) => {
  const refused = await page.evaluate(async () => {
    const violations = [];
    document.addEventListener('securitypolicyviolation', (event) => violations.push(event.effectiveDirective));
    const place = document.getElementById('turns').appendChild(document.createElement('li'));
    place.innerHTML = '<img src="data:,x" onerror="window.hacked=1"><a id="link" href="javascript:window.hacked=2">a</a>' +
      '<iframe srcdoc="<script>parent.hacked=3</scr' + 'ipt>"></iframe><p id="styled" style="position:fixed">b</p>';
    place.append(Object.assign(document.createElement('script'), { textContent: 'window.hacked=4' }));
    document.getElementById('link').click();
    await new Promise((resolve) => setTimeout(resolve, 300));
    return { violations, hacked: window.hacked, position: getComputedStyle(document.getElementById('styled')).position };
  });
  assert.equal(refused.hacked, undefined);
  assert.equal(refused.position, 'static');
  for (const directive of ['script-src-attr', 'script-src-elem', 'style-src-attr'])
    assert.ok(refused.violations.includes(directive), `${directive} in ${refused.violations}`);
}));

const phone = { viewport: { width: 360, height: 740 }, hasTouch: true };
test('the page fits the width of a phone', needs_browser, () => on(endless, phone, async (page) => {
  assert.ok(await overflow(page) <= 0);
  await set(page, { temperature: 0, max_tokens: 40 });
  await page.tap('#settings-close');
  await ask(page, question);
  assert.ok(await overflow(page) <= 0);
  const name = await page.locator('#model').boundingBox();
  assert.ok(name && name.width > 100 && name.height > 10, 'the name of the model is visible');
  const tops = await page.locator('.assistant .foot button').evaluateAll((buttons) => buttons.map((button) => button.offsetTop));
  assert.equal(new Set(tops).size, 1, 'Retry does not wrap alone');
  await photograph(page, 'phone-chat');
  await page.tap('#settings-toggle');
  assert.ok(await page.locator('#temperature').isVisible());
  assert.ok(await overflow(page) <= 0);
  await photograph(page, 'phone-settings');
  await page.keyboard.press('Escape');
  assert.ok(await page.locator('#settings').isHidden());
  await page.tap('#completions-tab');
  await page.fill('#prompt', 'Tilda has eight pears.');
  await page.tap('#continue');
  await page.locator('#completion-note').waitFor();
  await page.locator('.token').nth(3).tap();
  const box = await page.locator('#alternatives').boundingBox();
  assert.ok(box.x >= 0 && box.x + box.width <= 360, JSON.stringify(box));
  assert.ok(await overflow(page) <= 0);
  await photograph(page, 'phone-completions');
}));

test('the page works by keyboard, all controls have names, focus is visible', needs_browser, () => on(chatty, {}, async (page) => {
  const unnamed = await page.locator('button, input, textarea, [role=meter], [role=tabpanel]').evaluateAll((elements) => elements
    .filter((element) => !element.ariaLabel && !element.labels?.length && !element.hasAttribute('aria-labelledby') &&
      !element.textContent.trim())
    .map((element) => element.outerHTML));
  assert.deepEqual(unnamed, []);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'message', 'the message field has focus');
  await set(page, { temperature: 0 });
  await page.focus('#message');
  await page.keyboard.type('Tilda has eight pears. Will has one pear.');
  await page.keyboard.press('Shift+Enter');
  await page.keyboard.type('Who has fewer pears?');
  await page.keyboard.press('Enter');
  await has_answers(page, 1);
  assert.equal(await page.textContent('.user .text'), 'Tilda has eight pears. Will has one pear.\nWho has fewer pears?');
  const visited = [];
  for (let i = 0; i < 12; ++i) {
    await page.keyboard.press('Shift+Tab');
    const focus = await page.evaluate(() => {
      const { id, ariaLabel, textContent } = document.activeElement;
      return { name: ariaLabel ?? (id || textContent), outline: getComputedStyle(document.activeElement).outlineStyle };
    });
    if (focus.name === 'Dark theme') break;
    visited.push(focus);
  }
  const names = visited.map((focus) => focus.name);
  for (const name of ['Retry this answer', 'Copy the answer', 'Edit your message']) assert.ok(names.includes(name), names.join());
  assert.deepEqual(visited.filter((focus) => focus.outline === 'none'), []);
  await page.locator('#chat-tab').focus();
  await page.keyboard.press('ArrowRight');
  assert.ok(await page.locator('#prompt').isVisible());
  assert.equal(await page.getAttribute('#completions-tab', 'aria-selected'), 'true');
}));

test('the page has a strict Content-Security-Policy with a new nonce per request', needs_browser, async () => {
  const [one, two] = await Promise.all([fetch(chatty.url), fetch(chatty.url)]);
  const policy = one.headers.get('content-security-policy');
  assert.match(policy, /^default-src 'none'; script-src 'nonce-[0-9a-f]{24,}'; style-src 'nonce-[0-9a-f]{24,}'; /);
  assert.doesNotMatch(policy, /unsafe|\*/);
  assert.notEqual(policy, two.headers.get('content-security-policy'));
  assert.equal(one.headers.get('x-content-type-options'), 'nosniff');
  const text = await one.text();
  assert.ok(!text.includes('@nonce@'));
  assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacent|document\.write|eval\(/);
});
