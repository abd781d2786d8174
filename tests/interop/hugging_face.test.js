// Tests exported Hugging Face folders with Hugging Face's tokenizers and Jinja libraries.
// check_transformers.py checks the weights with Transformers.
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Template } from '@huggingface/jinja';
import { Tokenizer } from 'tokenizers';
import { thimble } from './thimble.js';

const folder = mkdtempSync(join(tmpdir(), 'thimble-hf-'));
after(() => rmSync(folder, { recursive: true }));

function run(...words) {
  const result = thimble(...words);
  assert.equal(result.exit_code, 0, `thimble ${words.join(' ')}: ${result.stderr}`);
  return result.stdout;
}

const chats = join(folder, 'chats.jsonl'), tales = join(folder, 'tales.txt');
run('data', 'sample', '--kind', 'chat', '-o', chats);
run('data', 'sample', '--kind', 'tales', '-o', tales);

const sizes = ['layers=2', 'dim=32', 'heads=2', 'kv_heads=1', 'head_dim=16', 'mlp_hidden=48', 'context=64', 'batch_tokens=256',
  'steps=1', 'warmup_steps=0', 'val_every=0'].flatMap((setting) => ['--set', setting]);

function exported(name, preset, data, tokenizer) {
  const base = join(folder, name), out = join(folder, `${name}-hf`);
  run('train', '--preset', preset, '--data', data, '--tokenizer', tokenizer, ...sizes, '-o', base, '--quiet');
  run('export', base, '--format', 'hf', '-o', out);
  return out;
}

function json_in(path, name) {
  return JSON.parse(readFileSync(join(path, name), 'utf8'));
}

// Ids from thimble reading the same folder, with `--parse-special` because Hugging Face always
// parses special tokens.
function thimble_ids(path, text, ...more) {
  const file = join(folder, 'text.txt');
  writeFileSync(file, text);
  return run('tokenizer', 'encode', path, file, '--whole', '--parse-special', ...more)
    .trim().split(' ').filter(Boolean).map(Number);
}

const texts = ['Once upon a time there was a small cat.', ' leading and  two  spaces', 'Numbers 1234567 and $3.50!',
  'It\'s "quoted" - isn\'t it?', 'naïve café, Ελληνικά, 中文字符, עברית, 😀👍🏽', 'aaaaaaaaaaaa the the the bbbb'];
// SentencePiece's nmt_nfkc normalizes characters, Hugging Face's version graphemes, so the texts
// contain no letters with several combining marks. SentencePiece turns newlines and tabs into
// spaces.
const lines = ['one\ntwo\n\nthree', 'a tab\tand a trailing space '];

async function assert_same_ids(path, all) {
  const theirs = Tokenizer.fromFile(join(path, 'tokenizer.json'));
  for (const text of all) {
    const plain = await theirs.encode(text, null, { addSpecialTokens: false });
    assert.deepEqual(thimble_ids(path, text), plain.getIds(), JSON.stringify(text));
    const framed = await theirs.encode(text);
    assert.deepEqual(thimble_ids(path, text, '--add-special'), framed.getIds(), JSON.stringify(text));
    const back = run('tokenizer', 'decode', path, '--whole', '--text', plain.getIds().join(' '));
    assert.equal(await theirs.decode(plain.getIds(), true), back, JSON.stringify(text));
  }
}

async function assert_same_prompt(path) {
  const messages = [{ role: 'system', content: 'Answer in one word.' }, { role: 'user', content: 'Who is there?  ' },
    { role: 'assistant', content: 'Anna.' }, { role: 'user', content: 'Where is <b>she</b>?\nAnd why?' }];
  const { chat_template, bos_token, eos_token } = json_in(path, 'tokenizer_config.json');
  const text = new Template(chat_template).render({ messages, bos_token, add_generation_prompt: true });
  const theirs = Tokenizer.fromFile(join(path, 'tokenizer.json'));
  const rendered = (await theirs.encode(text, null, { addSpecialTokens: false })).getIds();
  const id = (token) => theirs.tokenToId(token);
  const plain = (content) => run('tokenizer', 'encode', path, '--whole', '--text', content).trim().split(' ').map(Number);
  const ours = [id(bos_token), ...messages.flatMap(({ role, content }) => [id(`<${role}>`), ...plain(content), id('<end_turn>')]),
    id('<assistant>')];
  assert.deepEqual(rendered, ours);
  assert.equal(eos_token, '<end_turn>');
  assert.equal(json_in(path, 'generation_config.json').eos_token_id[0], id('<end_turn>'));
}

for (const [preset, tokenizer] of [['llama', 'bpe:400'], ['qwen2', 'bytes'], ['qwen3', 'sentencepiece:400']]) {
  test(`${preset} with ${tokenizer}: Hugging Face's tokenizer gives the same ids for texts and chats`, async () => {
    const path = exported(`${preset}-chat`, preset, chats, tokenizer);
    await assert_same_ids(path, tokenizer.startsWith('sentencepiece') ? texts : [...texts, ...lines]);
    await assert_same_prompt(path);
    const config = json_in(path, 'config.json');
    assert.equal(config.model_type, preset);
    assert.equal(Tokenizer.fromFile(join(path, 'tokenizer.json')).getVocabSize(), config.vocab_size);
  });
}

// Chats in a template that writes roles as text. The shards have the ids of Hugging Face's libraries, and bit 30 marks
// the answers with the tokens that end them.
for (const [preset, tokenizer] of [['llama', 'bpe:400'], ['qwen3', 'sentencepiece:400']]) {
  test(`${preset} with ${tokenizer}: chats for training in a template have the same ids, and answers are marked`, async () => {
    const path = exported(`${preset}-template`, preset, chats, tokenizer), shards = join(folder, `${preset}-shards`);
    const template = '{{ bos_token }}{% for m in messages %}<system>{{ m.role }}\n{{ m.content | trim }}<end_turn>\n{% endfor %}'
      + '{% if add_generation_prompt %}<system>assistant\n{% endif %}';
    writeFileSync(join(path, 'chat_template.jinja'), template);
    const conversations = readFileSync(chats, 'utf8').trim().split('\n').slice(0, 40).map((line) => JSON.parse(line).messages);
    const file = join(folder, 'some.jsonl');
    writeFileSync(file, conversations.map((messages) => `${JSON.stringify({ messages })}\n`).join(''));
    run('data', 'build', file, '--chat', '--tokenizer', path, '--layout', path, '--val-docs', '0', '-q', '-o', shards);
    const bytes = readFileSync(join(shards, 'data_train_000000.bin'));
    assert.equal(bytes.readInt32LE(0), 20261120);
    const tokens = Array.from({ length: (bytes.length - 1024) / 4 }, (_, i) => bytes.readInt32LE(1024 + 4 * i));
    const starts = tokens.flatMap((token, i) => (token & (1 << 29) ? [i] : []));
    assert.equal(starts.length, conversations.length);
    const theirs = Tokenizer.fromFile(join(path, 'tokenizer.json')), { bos_token } = json_in(path, 'tokenizer_config.json');
    for (const [i, messages] of conversations.entries()) {
      const document = tokens.slice(starts[i], starts[i + 1]);
      const text = new Template(template).render({ messages, bos_token });
      const expected = (await theirs.encode(text, null, { addSpecialTokens: false })).getIds();
      assert.deepEqual(document.map((token) => token & ((1 << 29) - 1)), expected);
      const learned = document.map((token) => ((token & (1 << 30)) ? token & ((1 << 29) - 1) : null));
      const runs = [];
      learned.forEach((id, at) => {
        if (id === null) return;
        if (at === 0 || learned[at - 1] === null) runs.push([]);
        runs.at(-1).push(id);
      });
      const answers = messages.filter(({ role }) => role === 'assistant').map(({ content }) => `${content.trim()}<end_turn>`);
      const found = await Promise.all(runs.map((ids) => theirs.decode(ids, false)));
      assert.deepEqual(found.map((one) => one.trim().replace(' <end_turn>', '<end_turn>')), answers);
    }
  });
}

test('SentencePiece with a normalizer: the exported tokenizer.json gives the same ids', async () => {
  const path = exported('normalized', 'llama', tales, 'sentencepiece:500');
  assert.equal(json_in(path, 'tokenizer.json').normalizer.normalizers[0].type, 'Precompiled');
  await assert_same_ids(path, [...texts, ...lines, 'ﬁne ½ ｆｕｌｌ　width  ']);
});

// Models with the settings of parameter-golf and, if they exist, a published one and corpora.
const golden = fileURLToPath(new URL('../golden/', import.meta.url)), shared = fileURLToPath(new URL('../../../shared/', import.meta.url));
const models = [join(golden, 'tokenizers/golf_1024.model'), join(shared, 'fixtures/sentencepiece/fineweb_1024_bpe.model')].filter(existsSync);
const corpora = [tales, join(golden, 'corpus/scripts.txt'),
  ...['tinyshakespeare.txt', 'wiki.test.raw', 'fineweb_edu_sample_1m.txt'].map((name) => join(shared, 'corpora', name))].filter(existsSync);

for (const model of models) {
  test(`${basename(model)} gives the same ids for every line of the corpora`, async () => {
    const path = exported(basename(model), 'llama', tales, model);
    const theirs = Tokenizer.fromFile(join(path, 'tokenizer.json'));
    const file = join(folder, 'lines.txt');
    for (const corpus of corpora) {
      const all = readFileSync(corpus, 'utf8').split('\n').slice(0, 1000)
        .filter((line) => corpus.startsWith(shared) || !/\p{M}|\u200D/u.test(line));  // see the comment above `lines`
      writeFileSync(file, `${all.join('\n')}\n`);
      const ours = run('tokenizer', 'encode', path, file).split('\n');
      const encodings = await theirs.encodeBatch(all, { addSpecialTokens: false });
      all.forEach((line, i) => assert.equal(ours[i], encodings[i].getIds().join(' '), `${corpus}: ${line}`));
    }
  });
}
