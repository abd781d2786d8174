// Runs llama.cpp through node-llama-cpp (installed by the interop tests) on a prompt and generates
// tokens on the CPU; prints one JSON object.
//
//   node bench/decode_peer.mjs MODEL.gguf PROMPT_TOKENS NEW_TOKENS THREADS[,THREADS...] [FOLDER]
//
// For each number of threads, with and without flash attention: the prompt in one batch, then
// tokens one by one, greedily. Prints {settings: [{threads, flash, prefill, decode}], system,
// versions} in tokens per second. Sampling and passing tokens to JavaScript are included. FOLDER:
// contains node_modules (default: tests/interop).
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [path, prompt_tokens, new_tokens, threads_list, folder] = process.argv.slice(2);
const root = folder ? pathToFileURL(`${folder}/`) : new URL('../tests/interop/', import.meta.url);
const require = createRequire(new URL('package.json', root));
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(require.resolve('node-llama-cpp')));

const prompt_count = Number(prompt_tokens), new_count = Number(new_tokens);
const now = () => Number(process.hrtime.bigint()) / 1e9;

const llama = await getLlama({ gpu: false, build: 'never', maxThreads: 0, logLevel: LlamaLogLevel.error });
const model = await llama.loadModel({ modelPath: path, gpuLayers: 0, useMmap: false });
const context_size = prompt_count + new_count + 8;
const token = (i) => 16 + (i * 37) % 512;

async function measure(threads, flash) {
  const context = await model.createContext({
    contextSize: context_size, batchSize: Math.max(prompt_count, 32), sequences: 1, threads, flashAttention: flash,
  });
  try {
    const sequence = context.getSequence();
    const prompt = Array.from({ length: prompt_count }, (_, i) => token(i));
    await sequence.evaluateWithoutGeneratingNewTokens(prompt);  // warms up
    await sequence.clearHistory();
    const started = now();
    await sequence.evaluateWithoutGeneratingNewTokens(prompt);
    const prompt_done = now();
    let first = 0, count = 0;
    for await (const _ of sequence.evaluate([token(prompt_count)], { temperature: 0, yieldEogToken: true })) {
      if (count++ === 0) first = now();
      if (count === new_count) break;
    }
    return { threads, flash, prefill: prompt_count / (prompt_done - started), decode: (count - 1) / (now() - first) };
  } finally {
    await context.dispose();
  }
}

const settings = [];
for (const threads of threads_list.split(',').map(Number))
  for (const flash of [false, true]) settings.push(await measure(threads, flash));
await model.dispose();
// The package does not export its package.json.
const { version } = JSON.parse(readFileSync(new URL('node_modules/node-llama-cpp/package.json', root)));
console.log(JSON.stringify({
  settings, system: llama.systemInfo, versions: { 'node-llama-cpp': version, 'llama.cpp': llama.llamaCppRelease.release, node: process.versions.node },
}));
process.exit(0);
