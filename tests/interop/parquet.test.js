// Reads Parquet files written by hyparquet-writer and by parquetjs. The rows are also written as
// JSON lines, and both must give the same tokens.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import zlib from 'node:zlib';
import { parquetWriteBuffer } from 'hyparquet-writer';
import parquetjs from 'parquetjs';
import { thimble } from './thimble.js';

let folder;
before(() => { folder = mkdtempSync(join(tmpdir(), 'thimble-interop-')); });
after(() => rmSync(folder, { recursive: true }));

const texts = Array.from({ length: 2500 }, (_, i) =>
  `Row ${i}: ${'the cat '.repeat(i % 20)}café 猫 ${i % 7 === 0 ? '\n"quoted"' : ''}`);
const chats = Array.from({ length: 300 }, (_, i) => ({
  messages: Array.from({ length: 2 * (i % 4) + 2 }, (_, j) =>
    ({ role: j % 2 ? 'assistant' : 'user', content: `turn ${j} of ${i} é` })),
}));

const as_lines = rows => rows.map(row => JSON.stringify(row)).join('\n') + '\n';

// The token ids of a file, as thimble stores them.
function tokens(name, ...options) {
  const out = join(folder, `shards-${name}`);
  const run = thimble('data', 'build', join(folder, name), '-o', out, '--val-fraction', '0', '--quiet', ...options);
  assert.equal(run.exit_code, 0, `${name}: ${run.stderr}`);
  return readFileSync(join(out, 'data_train_000000.bin'));
}

function assert_same_tokens(rows, names, ...options) {
  writeFileSync(join(folder, 'rows.jsonl'), as_lines(rows));
  const expected = tokens('rows.jsonl', '--force', ...options);
  for (const name of names) assert.ok(tokens(name, ...options).equals(expected), name);
}

// Node has zstd from version 22 on.
function zstd(bytes) {
  if (zlib.zstdCompressSync) return zlib.zstdCompressSync(bytes);
  return spawnSync('zstd', ['--quiet', '--stdout'], { input: bytes, maxBuffer: 1 << 28 }).stdout;
}
const has_zstd = zlib.zstdCompressSync !== undefined || spawnSync('zstd', ['--version']).status === 0;
const compressors = { GZIP: bytes => new Uint8Array(zlib.gzipSync(bytes)), ZSTD: bytes => new Uint8Array(zstd(bytes)) };

test('hyparquet-writer: the codecs and the encodings of strings', () => {
  const names = [];
  for (const [codec, encoding] of [['UNCOMPRESSED', 'PLAIN'], ['SNAPPY', 'RLE_DICTIONARY'], ['SNAPPY', 'PLAIN'],
    ['GZIP', 'DELTA_LENGTH_BYTE_ARRAY'], ['SNAPPY', 'DELTA_BYTE_ARRAY'], ...(has_zstd ? [['ZSTD', 'PLAIN']] : [])]) {
    const bytes = parquetWriteBuffer({
      columnData: [
        { name: 'id', data: texts.map((_, i) => i), type: 'INT32' },
        { name: 'text', data: texts, type: 'STRING', encoding },
        { name: 'kind', data: texts.map((_, i) => i % 5 ? ['poem', 'tale'][i % 2] : null), type: 'STRING' },
      ],
      codec, rowGroupSize: 1000, compressors: codec === 'SNAPPY' ? undefined : compressors,
    });
    names.push(`hy-${codec}-${encoding}.parquet`);
    writeFileSync(join(folder, names.at(-1)), new Uint8Array(bytes));
  }
  assert_same_tokens(texts.map(text => ({ text })), names, '--tokenizer', 'bytes');
  // A column with nulls, which are empty documents.
  const kinds = texts.map((_, i) => ({ kind: i % 5 ? ['poem', 'tale'][i % 2] : '' }));
  rmSync(join(folder, `shards-${names[0]}`), { recursive: true });
  assert_same_tokens(kinds, [names[0]], '--tokenizer', 'bytes', '--text-field', 'kind');
});

test('hyparquet-writer: a list of structures is a chat', () => {
  const schema = [
    { name: 'root', num_children: 1 },
    { name: 'messages', repetition_type: 'OPTIONAL', num_children: 1, converted_type: 'LIST' },
    { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
    { name: 'element', repetition_type: 'OPTIONAL', num_children: 2 },
    { name: 'role', repetition_type: 'OPTIONAL', type: 'BYTE_ARRAY', converted_type: 'UTF8' },
    { name: 'content', repetition_type: 'OPTIONAL', type: 'BYTE_ARRAY', converted_type: 'UTF8' },
  ];
  const bytes = parquetWriteBuffer({ columnData: [{ name: 'messages', data: chats.map(chat => chat.messages) }],
    schema, rowGroupSize: 100 });
  writeFileSync(join(folder, 'hy-chats.parquet'), new Uint8Array(bytes));
  assert_same_tokens(chats, ['hy-chats.parquet'], '--tokenizer', 'bytes:chat', '--chat');
});

async function write_with_parquetjs(name, fields, rows, useDataPageV2, rowGroupSize) {
  const writer = await parquetjs.ParquetWriter.openFile(new parquetjs.ParquetSchema(fields), join(folder, name),
    { useDataPageV2, rowGroupSize });
  for (const row of rows) await writer.appendRow(row);
  await writer.close();
}

for (const version of [1, 2])
  test(`parquetjs: version ${version} pages of texts and of repeated groups`, async () => {
    const text_files = [], chat_files = [];
    for (const compression of ['UNCOMPRESSED', 'SNAPPY', 'GZIP']) {
      const string = { type: 'UTF8', compression };
      text_files.push(`pj-${compression}-${version}.parquet`);
      await write_with_parquetjs(text_files.at(-1), { id: { type: 'INT64' }, text: string,
        note: { ...string, optional: true } },
      texts.map((text, i) => i % 3 ? { id: i, text } : { id: i, text, note: `n${i}` }), version === 2, 700);
      chat_files.push(`pj-chats-${compression}-${version}.parquet`);
      await write_with_parquetjs(chat_files.at(-1), { messages: { repeated: true,
        fields: { role: string, content: string } } }, chats, version === 2, 100);
    }
    assert_same_tokens(texts.map(text => ({ text })), text_files, '--tokenizer', 'bytes');
    assert_same_tokens(chats, chat_files, '--tokenizer', 'bytes:chat', '--chat');
  });
