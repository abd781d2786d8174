// thimble's tokenizers against Hugging Face's own: the npm package `tokenizers` holds their Rust library.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { decompress } from 'fzstd';
import { Tokenizer } from 'tokenizers';

const shared = fileURLToPath(new URL('../../../shared/', import.meta.url));
const skip = existsSync(shared) ? false : '../shared is not on this machine';
const folder = mkdtempSync(join(tmpdir(), 'thimble-tokenizer-'));
after(() => rmSync(folder, { recursive: true }));

const corpora = ['tinyshakespeare.txt', 'tinystories_sample_944k.txt', 'fineweb_edu_sample_1m.txt', 'wiki.test.raw',
  'names.txt', 'oasst1_chat.jsonl.zst', 'alpaca_en_demo.json.zst', 'udhr2_all_utf8.txt.zst'];

function shared_bytes(name) {
  const bytes = readFileSync(join(shared, name));
  return name.endsWith('.zst') ? Buffer.from(decompress(bytes)) : bytes;
}

function shared_tokenizer(name) {
  const file = join(folder, `${name}.json`);
  writeFileSync(file, shared_bytes(`fixtures/tokenizers/${name}/tokenizer.json.zst`));
  return file;
}

const binary = process.env.THIMBLE_BINARY
  ?? fileURLToPath(new URL('../../build/release/bin/thimble', import.meta.url));

// Ids of a corpus are some megabytes, more than thimble.js is ready for.
function run(...words) {
  const result = spawnSync(binary, words, { encoding: 'utf8', maxBuffer: 1 << 28, timeout: 300_000 });
  if (result.error) throw result.error;
  assert.equal(result.status, 0, `thimble ${words.join(' ')}: ${result.stderr}`);
  return result.stdout;
}

// One array of ids per line. Hugging Face always parses special strings, so here thimble does too.
function thimble_ids(tokenizer, file, ...more) {
  return run('tokenizer', 'encode', tokenizer, file, '--parse-special', ...more)
    .trimEnd().split('\n').map((line) => line.split(' ').filter(Boolean).map(Number));
}

// deepEqual takes seconds on a million numbers.
function assert_equal_ids(ours, theirs, name) {
  if (ours.length === theirs.length && ours.every((id, i) => id === theirs[i])) return;
  assert.deepEqual(ours.slice(0, 50), theirs.slice(0, 50), name);
  assert.fail(`${name}: ids differ after the fiftieth`);
}

async function assert_same_ids(tokenizer, name, text) {
  const theirs = Tokenizer.fromFile(tokenizer);
  const file = join(folder, 'text.txt');
  const lines = text.split('\n');
  if (lines.at(-1) === '') lines.pop();
  writeFileSync(file, `${lines.join('\n')}\n`);
  const ours = thimble_ids(tokenizer, file);
  assert.equal(ours.length, lines.length, name);
  const encodings = await theirs.encodeBatch(lines, { addSpecialTokens: false });
  for (let i = 0; i < lines.length; ++i)
    assert_equal_ids(ours[i], encodings[i].getIds(), `${name}, line ${i + 1}: ${JSON.stringify(lines[i])}`);
}

async function assert_same_ids_of_whole(tokenizer, name, text) {
  const file = join(folder, 'whole.txt');
  writeFileSync(file, text);
  const encoding = await Tokenizer.fromFile(tokenizer).encode(text, null, { addSpecialTokens: false });
  assert_equal_ids(thimble_ids(tokenizer, file, '--whole')[0], encoding.getIds(), name);
}

// Everything that the patterns and normalisers treat in a special way, at random but always the same.
function strange_text(pieces_wanted) {
  const pieces = [' ', ' ', ' ', '\n', '\n\n', '\r\n', '\t', '\u00A0', '\u3000', '\u0085', '\u180E', "'s", "'S", "'\u017F",
    "'ll", "'LL", "'re", "'vE", "'", 'a', 'word', 'Z', 'Word', 'WORD', '\u00E9', 'e\u0301', '\u0391', '\u03B1', '\u01C5',
    '\u02B0', '\u4E2D\u6587', '\u05D0', '0', '42', '123456', '\u0665', '\u00BD', '\u2167', '\u0301', '\u0903', '\u09C7\u09BE',
    '\u1112\u1161\u11AB', '\uAC00', '\uF900', '\u212B', '!', '...', '/', '//', '-', '_', '\u2019', '\u{1F600}', '\u200D', '\u0001',
    '\u0130', '\uFB01', '<|endoftext|>', '<|im_start|>', '<|', '<tool_call>'];
  let state = 12345;
  let text = '';
  for (let i = 0; i < pieces_wanted; ++i) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    text += pieces[(state >>> 8) % pieces.length];
  }
  return text;
}

for (const name of ['gpt2', 'llama3_2', 'qwen2_5']) {
  test(`${name}: the ids of every line of every corpus are Hugging Face's`, { skip }, async () => {
    const tokenizer = shared_tokenizer(name);
    for (const corpus of corpora)
      await assert_same_ids(tokenizer, corpus, shared_bytes(`corpora/${corpus}`).toString('utf8'));
  });

  test(`${name}: texts of many lines and strange characters, too`, { skip }, async () => {
    const tokenizer = shared_tokenizer(name);
    await assert_same_ids_of_whole(tokenizer, 'strange text', strange_text(20_000));
    await assert_same_ids_of_whole(tokenizer, 'shakespeare', shared_bytes('corpora/tinyshakespeare.txt').toString('utf8'));
    await assert_same_ids_of_whole(tokenizer, 'languages', shared_bytes('corpora/udhr2_all_utf8.txt.zst').toString('utf8').slice(0, 200_000));
  });

  test(`${name}: what Hugging Face puts around a text, thimble adds on request`, { skip }, async () => {
    const tokenizer = shared_tokenizer(name);
    const ours = run('tokenizer', 'encode', tokenizer, '--text', 'Hello world', '--add-special').trim().split(' ').map(Number);
    assert.deepEqual(ours, (await Tokenizer.fromFile(tokenizer).encode('Hello world')).getIds());
  });
}

for (const pattern of ['qwen2', 'gpt2', 'llama3', 'o200k']) {
  test(`a tokenizer trained by thimble (${pattern}) gives the same ids in Hugging Face's library`, { skip }, async () => {
    const tokenizer = join(folder, `trained-${pattern}.json`);
    run('tokenizer', 'train', join(shared, 'corpora/tinyshakespeare.txt'), '--chat', '--vocab-size', '2000', '--pattern', pattern, '-o', tokenizer);
    const theirs = Tokenizer.fromFile(tokenizer);
    assert.equal(theirs.getVocabSize(), 2000);
    ['<bos>', '<user>', '<assistant>', '<end_turn>', '<system>'].forEach((token, id) => assert.equal(theirs.tokenToId(token), id));
    for (const corpus of ['tinyshakespeare.txt', 'wiki.test.raw', 'udhr2_all_utf8.txt.zst'])
      await assert_same_ids(tokenizer, corpus, shared_bytes(`corpora/${corpus}`).toString('utf8').slice(0, 2_000_000));
    const text = strange_text(5_000);
    await assert_same_ids_of_whole(tokenizer, 'strange text', text);
    const ids = (await theirs.encode(text, null, { addSpecialTokens: false })).getIds();
    assert.equal(await theirs.decode(ids, false), text);
  });
}

// The library's Node binding trains with its default settings only: 30,000 tokens, no special ones, no minimum.
for (const pattern of ['gpt2', 'qwen2']) {
  test(`both learn the same merges in the same order (${pattern})`, { skip }, () => {
    const corpus = join(shared, 'corpora/wiki.test.raw');
    const ours = join(folder, `ours-${pattern}.json`), theirs = join(folder, `theirs-${pattern}.json`);
    run('tokenizer', 'train', corpus, '--vocab-size', '30000', '--min-frequency', '1', '--pattern', pattern, '--documents', 'line', '-o', ours);
    const file = JSON.parse(readFileSync(ours, 'utf8'));
    const our_merges = file.model.merges.map((pair) => pair.join(' '));
    Object.assign(file, { added_tokens: [], post_processor: null });
    Object.assign(file.model, { vocab: {}, merges: [] });
    const learner = Tokenizer.fromString(JSON.stringify(file));
    learner.train([corpus]);
    learner.save(theirs);
    const their_merges = JSON.parse(readFileSync(theirs, 'utf8')).model.merges.map((pair) => pair.join(' '));
    // Theirs has room for more: no special token, and only the bytes that occur.
    assert.ok(our_merges.length > 29_000 && their_merges.length >= our_merges.length);
    assert.deepEqual(their_merges.slice(0, our_merges.length), our_merges);
  });
}
