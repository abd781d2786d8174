// Compares thimble's tokenizers with Hugging Face's Rust library, from the npm package
// `tokenizers`.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import { decompress } from 'fzstd';
import { Tokenizer } from 'tokenizers';

const golden = fileURLToPath(new URL('../golden/', import.meta.url));
// Published tokenizers and corpora, which are tested too if they exist.
const shared = fileURLToPath(new URL('../../../shared/', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'thimble-tokenizer-'));
after(() => rmSync(folder, { recursive: true }));

function files(folder, ...names) {
  return existsSync(folder) ? names.map((name) => join(folder, name)) : [];
}

const corpora = [
  ...files(golden, 'corpus/tales.txt.gz', 'corpus/chats.jsonl.gz', 'corpus/scripts.txt', 'tokenizers/strings.json'),
  ...files(join(shared, 'corpora'), 'tinyshakespeare.txt', 'tinystories_sample_944k.txt', 'fineweb_edu_sample_1m.txt',
    'wiki.test.raw', 'names.txt', 'oasst1_chat.jsonl.zst', 'alpaca_en_demo.json.zst', 'udhr2_all_utf8.txt.zst')];
const tokenizers = [
  ...files(golden, 'tokenizers/gpt2.json', 'tokenizers/llama3.json', 'tokenizers/qwen2.json', 'tokenizers/o200k.json'),
  ...files(join(shared, 'fixtures/tokenizers'), 'gpt2/tokenizer.json.zst', 'llama3_2/tokenizer.json.zst', 'qwen2_5/tokenizer.json.zst')];

function unpacked(file) {
  const bytes = readFileSync(file);
  return file.endsWith('.zst') ? Buffer.from(decompress(bytes)) : file.endsWith('.gz') ? gunzipSync(bytes) : bytes;
}

function text_of(file) {
  return unpacked(file).toString('utf8');
}

// The file, or a decompressed copy.
function plain_file(file) {
  if (!/\.(zst|gz)$/.test(file)) return file;
  const plain = join(folder, file.replaceAll('/', '-').replace(/\.(zst|gz)$/, ''));
  writeFileSync(plain, unpacked(file));
  return plain;
}

const binary = process.env.THIMBLE_BINARY
  ?? fileURLToPath(new URL('../../build/release/bin/thimble', import.meta.url));

// The ids of a corpus are several megabytes, more than the buffer of thimble.js.
function run(...words) {
  const result = spawnSync(binary, words, { encoding: 'utf8', maxBuffer: 1 << 28, timeout: 300_000 });
  if (result.error) throw result.error;
  assert.equal(result.status, 0, `thimble ${words.join(' ')}: ${result.stderr}`);
  return result.stdout;
}

// One array of ids per line, with `--parse-special` because Hugging Face always parses special
// strings.
function thimble_ids(tokenizer, file, ...more) {
  return run('tokenizer', 'encode', tokenizer, file, '--parse-special', ...more)
    .trimEnd().split('\n').map((line) => line.split(' ').filter(Boolean).map(Number));
}

// deepEqual takes seconds for a million numbers.
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

// A pseudo-random text of pieces that patterns and normalizers treat specially.
function strange_text(count) {
  const pieces = [' ', ' ', ' ', '\n', '\n\n', '\r\n', '\t', '\u00A0', '\u3000', '\u0085', '\u180E', "'s", "'S", "'\u017F",
    "'ll", "'LL", "'re", "'vE", "'", 'a', 'word', 'Z', 'Word', 'WORD', '\u00E9', 'e\u0301', '\u0391', '\u03B1', '\u01C5',
    '\u02B0', '\u4E2D\u6587', '\u05D0', '0', '42', '123456', '\u0665', '\u00BD', '\u2167', '\u0301', '\u0903', '\u09C7\u09BE',
    '\u1112\u1161\u11AB', '\uAC00', '\uF900', '\u212B', '!', '...', '/', '//', '-', '_', '\u2019', '\u{1F600}', '\u200D', '\u0001',
    '\u0130', '\uFB01', '<|endoftext|>', '<|im_start|>', '<|', '<tool_call>'];
  let state = 12345;
  let text = '';
  for (let i = 0; i < count; ++i) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    text += pieces[(state >>> 8) % pieces.length];
  }
  return text;
}

for (const file of tokenizers) {
  const name = file.startsWith(golden) ? basename(file) : file.slice(shared.length);

  test(`${name}: every line of every corpus has the same ids as with Hugging Face`, async () => {
    for (const corpus of corpora) await assert_same_ids(plain_file(file), corpus, text_of(corpus));
  });

  test(`${name}: multi-line texts and unusual characters have the same ids`, async () => {
    await assert_same_ids_of_whole(plain_file(file), 'strange text', strange_text(20_000));
    for (const corpus of corpora) await assert_same_ids_of_whole(plain_file(file), corpus, text_of(corpus).slice(0, 200_000));
  });

  test(`${name}: --add-special adds the same tokens as Hugging Face`, async () => {
    const tokenizer = plain_file(file);
    const ours = run('tokenizer', 'encode', tokenizer, '--text', 'Hello world', '--add-special').trim().split(' ').map(Number);
    assert.deepEqual(ours, (await Tokenizer.fromFile(tokenizer).encode('Hello world')).getIds());
  });
}

const tales = join(folder, 'tales.txt'), scripts = join(golden, 'corpus/scripts.txt');
run('data', 'sample', '--kind', 'tales', '--size', '1M', '-o', tales);

for (const pattern of ['qwen2', 'gpt2', 'llama3', 'o200k']) {
  test(`a tokenizer trained by thimble (${pattern}) gives the same ids in Hugging Face's library`, async () => {
    const tokenizer = join(folder, `trained-${pattern}.json`);
    run('tokenizer', 'train', tales, scripts, '--chat', '--vocab-size', '1200', '--pattern', pattern, '-o', tokenizer);
    const theirs = Tokenizer.fromFile(tokenizer);
    assert.equal(theirs.getVocabSize(), 1200);
    ['<bos>', '<user>', '<assistant>', '<end_turn>', '<system>'].forEach((token, id) => assert.equal(theirs.tokenToId(token), id));
    for (const corpus of corpora)
      await assert_same_ids(tokenizer, corpus, text_of(corpus).slice(0, 1_000_000));
    const text = strange_text(5_000);
    await assert_same_ids_of_whole(tokenizer, 'strange text', text);
    const ids = (await theirs.encode(text, null, { addSpecialTokens: false })).getIds();
    assert.equal(await theirs.decode(ids, false), text);
  });
}

// Training on one text until no pair is left, or until the library's default of 30,000 tokens. Its
// Node binding trains only with default settings: no special tokens, no minimum frequency.
const training_texts = [[scripts, 1_000], [tales, 500], ...files(join(shared, 'corpora'), 'wiki.test.raw').map((file) => [file, 29_000])];
for (const pattern of ['gpt2', 'qwen2']) {
  test(`training gives the same merges as Hugging Face (${pattern})`, () => {
    for (const [corpus, expected_merges] of training_texts) {
      const ours = join(folder, `ours-${pattern}.json`), theirs = join(folder, `theirs-${pattern}.json`);
      run('tokenizer', 'train', corpus, '--vocab-size', '30000', '--min-frequency', '1', '--pattern', pattern, '--documents', 'line', '-f', '-o', ours);
      const file = JSON.parse(readFileSync(ours, 'utf8'));
      const our_merges = file.model.merges.map((pair) => pair.join(' '));
      Object.assign(file, { added_tokens: [], post_processor: null });
      Object.assign(file.model, { vocab: {}, merges: [] });
      const learner = Tokenizer.fromString(JSON.stringify(file));
      learner.train([corpus]);
      learner.save(theirs);
      const their_merges = JSON.parse(readFileSync(theirs, 'utf8')).model.merges.map((pair) => pair.join(' '));
      // Hugging Face learns more merges if the limit is reached: it has no special tokens, and only the bytes that occur.
      assert.ok(our_merges.length > expected_merges && their_merges.length >= our_merges.length, `${corpus}: ${our_merges.length}, ${their_merges.length}`);
      assert.deepEqual(their_merges.slice(0, our_merges.length), our_merges);
    }
  });
}
