// Quantizes and dequantizes with ggml and llama.cpp (ggml.cpp), from node-llama-cpp's libraries.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const compiler = process.env.CXX ?? 'c++';

// The sizes of a block, and the name in ggml's functions.
export const block_types = {
  Q4_0: { block: 32, bytes: 18, function: 'q4_0' }, Q4_1: { block: 32, bytes: 20, function: 'q4_1' },
  Q5_0: { block: 32, bytes: 22, function: 'q5_0' }, Q5_1: { block: 32, bytes: 24, function: 'q5_1' },
  Q8_0: { block: 32, bytes: 34, function: 'q8_0' }, Q2_K: { block: 256, bytes: 84, function: 'q2_K' },
  Q3_K: { block: 256, bytes: 110, function: 'q3_K' }, Q4_K: { block: 256, bytes: 144, function: 'q4_K' },
  Q5_K: { block: 256, bytes: 176, function: 'q5_K' }, Q6_K: { block: 256, bytes: 210, function: 'q6_K' },
  IQ4_NL: { block: 32, bytes: 18, function: 'iq4_nl' }, IQ4_XS: { block: 256, bytes: 136, function: 'iq4_xs' },
};

// For { skip }: the reason why it cannot run on this machine, or false.
export const ggml_missing = process.platform !== 'linux' || process.arch !== 'x64' ? 'only on Linux and x86-64'
  : spawnSync(compiler, ['--version']).error ? `${compiler} is not installed` : false;

// `folder` receives the compiled program.
export class Ggml {
  constructor(folder) {
    this.folder = fileURLToPath(new URL('node_modules/@node-llama-cpp/linux-x64/bins/linux-x64', import.meta.url));
    this.program = join(folder, 'ggml');
    const source = fileURLToPath(new URL('ggml.cpp', import.meta.url));
    this.call(compiler, ['-O1', '-Wall', '-Wextra', source, '-o', this.program, '-ldl']);
  }

  call(program, words, input) {
    const run = spawnSync(program, words, {
      input, maxBuffer: 1 << 28, timeout: 120_000, env: { ...process.env, LD_LIBRARY_PATH: this.folder },
    });
    if (run.status !== 0) throw new Error(`${program} ${words.join(' ')}: ${run.error ?? run.stderr}`);
    return run.stdout;
  }

  library(start) {
    return join(this.folder, readdirSync(this.folder).find((name) => name.startsWith(start)));
  }

  // The bytes of the f32 values.
  decode(type, bytes) {
    const { block, bytes: block_bytes, function: name } = block_types[type];
    return this.call(this.program, [this.library('libggml-base'), 'decode', name, block_bytes, block], bytes);
  }

  quantize(from, to, file_type) {
    this.call(this.program, [this.library('libllama.'), 'quantize', from, to, file_type]);
  }
}
