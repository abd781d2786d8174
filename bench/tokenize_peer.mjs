// The work of tokenize_bench with Hugging Face's tokenizers (Rust, through npm); prints JSON.
//
//   RAYON_NUM_THREADS=1 node bench/tokenize_peer.mjs encode tokenizer.json text.txt 4000000
//   node bench/tokenize_peer.mjs train text.txt
//
// The interop tests install the package.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(new URL('../tests/interop/package.json', import.meta.url));
const { Tokenizer } = require('tokenizers');

const passes = 3;
const now = () => Number(process.hrtime.bigint()) / 1e9;

async function encode(tokenizer_file, text_file, byte_limit) {
  const tokenizer = Tokenizer.fromFile(tokenizer_file);
  const lines = readFileSync(text_file).subarray(0, Number(byte_limit)).toString('utf8').split('\n').filter((line) => line.length > 0);
  const bytes = lines.reduce((sum, line) => sum + Buffer.byteLength(line), 0);
  let best = Infinity;
  for (let pass = 0; pass < passes; ++pass) {
    const start = now();
    await tokenizer.encodeBatch(lines, { addSpecialTokens: false });
    best = Math.min(best, now() - start);
  }
  return { megabytes_per_second: bytes / best / 1e6 };
}

// The binding always trains with the library's default of 30,000 tokens.
function train(text_file) {
  const pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const tokenizer = Tokenizer.fromString(JSON.stringify({
    version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, post_processor: null,
    pre_tokenizer: { type: 'Sequence', pretokenizers: [
      { type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false },
      { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false }] },
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
      fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab: {}, merges: [] },
  }));
  const start = now();
  tokenizer.train([text_file]);
  return { seconds: now() - start };
}

const [work, ...files] = process.argv.slice(2);
console.log(JSON.stringify(work === 'train' ? train(...files) : await encode(...files)));
