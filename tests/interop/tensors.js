// Minimal safetensors code to pass token ids to `thimble trace` and to read its logits.
import { readFileSync, writeFileSync } from 'node:fs';

export function write_ids(path, ids) {
  const data = new Int32Array(ids);
  const header = Buffer.from(JSON.stringify(
    { input: { dtype: 'I32', shape: [1, data.length], data_offsets: [0, data.byteLength] } }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(path, Buffer.concat([length, header, Buffer.from(data.buffer)]));
}

// Returns one Float32Array per position.
export function read_logits(path) {
  const file = readFileSync(path), size = Number(file.readBigUInt64LE(0));
  const { logits } = JSON.parse(file.toString('utf8', 8, 8 + size));
  const [begin, end] = logits.data_offsets, width = logits.shape.at(-1);
  const values = new Float32Array(Uint8Array.from(file.subarray(8 + size + begin, 8 + size + end)).buffer);
  return Array.from({ length: values.length / width }, (_, i) => values.subarray(i * width, (i + 1) * width));
}

export function log_softmax(logits) {
  const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - largest), 0);
  return Float64Array.from(logits, (logit) => logit - largest - Math.log(sum));
}
