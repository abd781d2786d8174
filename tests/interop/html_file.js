// HTML files that run a model, for tests: the page of `export --format html` with a mock of the
// runtime, and Firefox to open them in.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath, pathToFileURL } from 'node:url';
import puppeteer from 'puppeteer-core';

const source = (path) => readFileSync(fileURLToPath(new URL(`../../src/${path}`, import.meta.url)), 'utf8');

const policy = (nonce) => `default-src 'none'; script-src 'nonce-${nonce}' 'wasm-unsafe-eval'; style-src 'nonce-${nonce}'; ` +
  "img-src data:; worker-src blob:; base-uri 'none'; form-action 'none'";

// A module in place of thimble.mjs. Its "model" is JSON: `tokens` are what it answers, again and
// again; see `answers` for the other fields.
const mock = `
export class ThimbleError extends Error {
  constructor(code, message, hint) { super(message); Object.assign(this, { name: 'ThimbleError', code, hint }); }
}
export async function decode_part(text, part) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const found = 'the model should have ' + part.bytes + ' bytes, but ' + bytes.length + ' were found';
  if (bytes.length !== part.bytes) throw new ThimbleError('damaged', found);
  return bytes;
}
const pause = (milliseconds = 0) => new Promise((resolve) => setTimeout(resolve, milliseconds));
class Model {
  constructor(canned) { this.canned = canned; this.info = canned.info; }
  async complete({ prompt, messages, max_tokens = 64, echo, logprobs, onToken, signal, ...rest }) {
    const { tokens, fails, blocks } = this.canned;
    if (fails) throw new ThimbleError('invalid', fails);
    for (const end = performance.now() + (blocks ?? 0); performance.now() < end;);
    const used = messages ? JSON.stringify(messages).length : prompt.length;
    let text = '', count = 0, finish_reason = 'length';
    while (count < max_tokens) {
      if (signal?.aborted) { finish_reason = 'abort'; break; }
      if (!this.canned.endless && count === tokens.length) { finish_reason = 'stop'; break; }
      const piece = tokens[count % tokens.length];
      const alternatives = tokens.slice(0, 5).map((other, i) => ({ text: other, logprob: -1 - i }));
      const logprob = [-0.01, -1, -2.5, -4, -7][count % 5], bytes = new TextEncoder().encode(piece);
      onToken?.({ text: piece, token: count, logprob, top: logprobs ? alternatives : undefined, bytes });
      text += piece;
      if (++count % 4 === 0) await pause(this.canned.endless ? 5 : 0);
    }
    if (this.canned.repeat_options) {
      text = JSON.stringify({ prompt, messages, max_tokens, logprobs, ...rest });
      onToken?.({ text, token: 0 });
    }
    return { text, tokens: Array.from({ length: count }, (_, i) => i), finish_reason,
      usage: { prompt_tokens: used, completion_tokens: count, context_used: used + count },
      timings: { prompt_seconds: 0, seconds: 1, tokens_per_second: 123 } };
  }
}
export async function load({ model, onProgress }) {
  const canned = JSON.parse(new TextDecoder().decode(model));
  for (let i = 0; i <= 4; ++i) {
    onProgress({ stage: 'decoding weights', fraction: i / 4 });
    await pause(canned.slow);
  }
  if (canned.no_memory) throw new RangeError('WebAssembly.Memory(): could not allocate memory');
  if (canned.hangs) await new Promise(() => {});
  return new Model(canned);
}
`;

const base64 = (text) => Buffer.from(text).toString('base64');
const as_json = (value) => JSON.stringify(value).replaceAll('<', '\\u003c');

// Writes a file with the mock and returns its URL. `answers`: {tokens, endless, repeat_options (the
// answer is the request), fails, blocks, slow, no_memory, hangs}. `edit` changes the page's text.
export function write_mock(path, answers = {}, { facts = {}, edit = (text) => text } = {}) {
  const info = {
    name: 'tales', architecture: 'gpt', parameters: 722304, bytes: 358901, bits_per_byte: 0.0021, context: 256,
    vocabulary: 1024, dtype: 'int6', chat: true, version: '0.1.0', ...facts,
  };
  const model = JSON.stringify({ tokens: ['The', ' green', ' bell', ' belongs', ' to', ' Kate', '.'], ...answers, info });
  const about = { ...info, model_card: { data: 'built-in chats', training: { steps: 1400, tokens: 2867200 } },
    licences: [{ name: 'thimble: Apache-2.0', text: 'Apache License\nVersion 2.0' }, { name: 'zstd: BSD', text: 'Copyright Meta' }],
    parts: { 'thimble-wasm': { bytes: 4 }, 'thimble-model': { bytes: Buffer.byteLength(model), digest: '0123456789abcdef' } } };
  const element = (id, type, text) => `<script type="${type}" id="${id}">${text}</script>\n`;
  const values = {
    nonce: 'a1b2c3', head: `<meta http-equiv="Content-Security-Policy" content="${policy('a1b2c3')}">\n`,
    backend: source('wasm/web/local.js'),
    parts: element('thimble-about', 'application/json', as_json(about)) +
      element('thimble-worker', 'text/plain', `${mock}\n${source('wasm/web/worker.js')}`) +
      element('thimble-wasm', 'text/plain', base64('\0asm')) + element('thimble-model', 'text/plain', base64(model)) +
      element('thimble-end', 'text/plain', ''),
  };
  const page = source('serve/web/index.html').replace(/@(nonce|head|backend|parts)@/g, (_, name) => values[name]);
  writeFileSync(path, edit(page));
  return pathToFileURL(path).href;
}

const executable = process.env.FIREFOX ?? '/usr/bin/firefox-esr';
export const no_firefox = existsSync(executable) ? false : `${executable} not found (Debian: apt install firefox-esr)`;

export const launch_firefox = () => puppeteer.launch({ browser: 'firefox', executablePath: executable, headless: true });

// Runs `use` with a new page of Firefox at `url`; returns the addresses it requested.
export async function with_firefox(browser, url, use) {
  const page = await browser.newPage(), requested = [];
  page.on('request', (request) => requested.push(request.url()));
  try {
    await page.goto(url);
    await use(page);
    return requested.filter((to) => to !== url && !/^(data|blob):/.test(to));
  } finally {
    await page.close();
  }
}
