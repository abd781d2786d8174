// The browser's runtime tokenizes as the native program does: byte-level BPE, SentencePiece, normal
// forms and regular expressions, in Node, Chromium and Firefox. Only the last two depend on the
// browser (src/wasm/browser.cpp).
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { launch, no_browser, with_page } from './browser.js';
import { launch_firefox, no_firefox, with_firefox } from './html_file.js';
import { remove, temporary_folder } from './server.js';
import { binary, thimble } from './thimble.js';

const no_runtime = existsSync(join(dirname(binary), '../share/thimble/thimble.wasm')) ? false : 'the runtime is not built (./test --wasm)';
const golden = (path) => fileURLToPath(new URL(`../golden/${path}`, import.meta.url));
const folder = temporary_folder();
const at = (...names) => join(folder, ...names);

const succeed = (...words) => {
  const { exit_code, stdout, stderr } = thimble(...words);
  assert.equal(exit_code, 0, `thimble ${words.join(' ')}: ${stdout}${stderr}`);
  return stdout;
};

// ---- tokenizers that consist of the 256 bytes, to which a normalizer writes its result

const byte_characters = (() => {
  const printable = (byte) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : next++));
})();

const bytes_after = (...steps) => JSON.stringify({
  version: '1.0', truncation: null, padding: null, added_tokens: [],
  normalizer: { type: 'Sequence', normalizers: steps },
  pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, use_regex: false, trim_offsets: true }, post_processor: null,
  decoder: { type: 'ByteLevel' },
  model: { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false,
    ignore_merges: false, vocab: Object.fromEntries(byte_characters.map((text, id) => [text, id])), merges: [] },
});

// Each match becomes one mark.
const marks = (pattern) => bytes_after({ type: 'Replace', pattern: { Regex: pattern }, content: '\u0001' });
const patterns = {
  deepseek: String.raw`[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_${'`'}{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
  han: String.raw`[一-龥぀-ゟ゠-ヿ]+|\p{Hangul}|\p{N}{1,3}`,
  possessive: String.raw`'(?i:[sdmtk]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|(?>\p{N}{1,2})[0-9]| ?[^\s\p{L}\p{N}]++[\r\n]*`,
  places: String.raw`\A.|\b\w{3}\b|\B[^[:alpha:]].$|(?<=a)[^\S\n]|[a-]\x{62}|[]x]+?|\d(?=\d)`,
  sentencepiece: String.raw`\A +| +\z| {2,}|\h|(?i)straße|(?-i:KÄSE)`,
  empty: String.raw`x*`,
};

const tokenizers = {
  gpt2: golden('tokenizers/gpt2.json'), llama3: golden('tokenizers/llama3.json'), qwen2: golden('tokenizers/qwen2.json'),
  o200k: golden('tokenizers/o200k.json'), golf: golden('tokenizers/golf_1024.model'), identity: golden('tokenizers/identity_700.model'),
};

// A model without weights to speak of, around a tokenizer.
function export_with(name, file, content) {
  mkdirSync(at(name));
  const own = at(name, file);
  writeFileSync(own, content);
  const rows = 2048, width = 16, shapes = { 'model.embed_tokens.weight': [rows, width], 'model.norm.weight': [width] };
  const layer = { 'input_layernorm': [width], 'post_attention_layernorm': [width], 'self_attn.q_proj': [width, width], 'self_attn.k_proj': [width, width],
    'self_attn.v_proj': [width, width], 'self_attn.o_proj': [width, width], 'mlp.gate_proj': [width, width], 'mlp.up_proj': [width, width], 'mlp.down_proj': [width, width] };
  for (const [part, shape] of Object.entries(layer)) shapes[`model.layers.0.${part}.weight`] = shape;
  let end = 0;
  const header = Object.fromEntries(Object.entries(shapes).map(([tensor, shape]) => {
    const begin = end;
    end += 4 * shape.reduce((a, b) => a * b);
    return [tensor, { dtype: 'F32', shape, data_offsets: [begin, end] }];
  }));
  const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(at(name, 'model.safetensors'), Buffer.concat([length, text, Buffer.alloc(end)]));
  writeFileSync(at(name, 'config.json'), JSON.stringify({ architectures: ['LlamaForCausalLM'], model_type: 'llama', hidden_size: width, intermediate_size: width,
    num_hidden_layers: 1, num_attention_heads: 1, num_key_value_heads: 1, vocab_size: rows, max_position_embeddings: 64, rms_norm_eps: 1e-5, rope_theta: 10000,
    tie_word_embeddings: true, hidden_act: 'silu' }));
  succeed('export', at(name), '--format', 'js', '-o', at(`${name}-js`), '-q');
  return own;
}

const lines = [
  ...JSON.parse(readFileSync(golden('tokenizers/strings.json'), 'utf8')).strings.map((text) => text.replaceAll(/[\r\n]/g, ' ')).filter((text) => text),
  ...readFileSync(golden('corpus/scripts.txt'), 'utf8').split('\n').filter((text) => text),
  "It's the KÄSE we'LL  eat;\u00a0STRASSE, straße ſ K \u212a\u180ex\u0085y\u3000z", 'a\u0308 \u1e9b\u0323 \ufb01 \u01c4 \u0130I \u1112\u1161\u11ab \u0345\u03b1 \ud55c\uae00 12345 ²³½',
];
const expected = {};  // by tokenizer: a line of ids for each line

before(() => {
  if (no_runtime) return;
  writeFileSync(at('lines.txt'), lines.join('\n') + '\n');
  const all = Object.entries(tokenizers).map(([name, path]) => [name, path.endsWith('.json') ? 'tokenizer.json' : 'tokenizer.model', readFileSync(path)]);
  for (const [name, pattern] of Object.entries(patterns)) all.push([`pattern-${name}`, 'tokenizer.json', marks(pattern)]);
  for (const form of ['NFC', 'NFD', 'NFKC', 'NFKD']) all.push([form, 'tokenizer.json', bytes_after({ type: form }, { type: 'Lowercase' })]);
  for (const [name, file, content] of all) {
    const native = succeed('tokenizer', 'encode', export_with(name, file, content), at('lines.txt'));
    expected[name] = native.trimEnd().split('\n');
    assert.equal(expected[name].length, lines.length, name);
  }
}, { timeout: 300_000 });
after(() => remove(folder));

// Runs in Node and in pages.
async function tokenize_all(root, names, texts) {
  const { load } = await import(`${root}/${names[0]}-js/thimble.mjs`);
  const found = {};
  for (const name of names) {
    const model = await load({ wasm: `${root}/${name}-js/thimble.wasm`, model: `${root}/${name}-js/model.thimble` });
    found[name] = texts.map((text) => model.tokenize(text).join(' '));
    model.close();
  }
  return found;
}

function assert_same(found) {
  for (const [name, native] of Object.entries(expected))
    for (const [i, line] of native.entries()) assert.equal(found[name][i], line, `${name}: ${JSON.stringify(lines[i])}`);
}

test('Node tokenizes as the native program does', { skip: no_runtime }, async () => {
  assert_same(await tokenize_all(pathToFileURL(folder).href, Object.keys(expected), lines));
});

async function with_server(use) {
  const types = { html: 'text/html', mjs: 'text/javascript', wasm: 'application/wasm' };
  const server = createServer(async ({ url }, response) => {
    const body = url === '/' ? '<!doctype html>' : await readFile(at(...url.slice(1).split('/'))).catch(() => null);
    response.writeHead(body ? 200 : 204, { 'Content-Type': types[url === '/' ? 'html' : url.split('.').at(-1)] ?? 'application/octet-stream' }).end(body);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  try {
    await use(`http://127.0.0.1:${server.address().port}`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

const in_page = (page, url) => page.evaluate(`(${tokenize_all})(${JSON.stringify(url)}, ${JSON.stringify(Object.keys(expected))}, ${JSON.stringify(lines)})`);

test('Chromium tokenizes as the native program does', { skip: no_runtime || no_browser, timeout: 300_000 }, async () => {
  const browser = await launch();
  try {
    await with_server((url) => with_page(browser, url, {}, async (page) => assert_same(await in_page(page, url))));
  } finally {
    await browser.close();
  }
});

test('Firefox tokenizes as the native program does', { skip: no_runtime || no_firefox, timeout: 300_000 }, async () => {
  const browser = await launch_firefox();
  try {
    await with_server((url) => with_firefox(browser, url, async (page) => assert_same(await in_page(page, url))));
  } finally {
    await browser.close();
  }
});

test('a regular expression that JavaScript cannot run is refused with a sentence', { skip: no_runtime }, async () => {
  export_with('refused', 'tokenizer.json', marks(String.raw`a\Kb`));
  const exported = at('refused-js'), { load } = await import(pathToFileURL(join(exported, 'thimble.mjs')).href);
  await assert.rejects(load({ wasm: join(exported, 'thimble.wasm'), model: join(exported, 'model.thimble') }),
    (error) => error.code === 'unsupported' && /regular expression "a\\Kb" cannot be run here: \\K is not supported/.test(error.message));
});
