// Real llama.cpp, by node-llama-cpp: what it makes of our files.
//
// Everything runs on the CPU in f32 with an f32 cache and one thread, so that only rounding is left between its numbers
// and ours. With the defaults (f16 cache, flash attention) log-probabilities move by 0.02.
import { Template } from '@huggingface/jinja';

// For { skip }: why it cannot run on this machine, or false.
export const llama_missing = Number(process.versions.node.split('.')[0]) < 20 ? 'node-llama-cpp needs Node 20' : false;

let llama;

// Models are large: dispose of them.
export async function load(path) {
  const { getLlama, LlamaLogLevel } = await import('node-llama-cpp');
  llama ??= await getLlama({ gpu: false, build: 'never', maxThreads: 1, logLevel: LlamaLogLevel.error });
  return llama.loadModel({ modelPath: path, gpuLayers: 0, useMmap: false });
}

// A full context would be shifted, and what was read first forgotten.
async function with_sequence(model, tokens, use) {
  const room = tokens + 8;
  const context = await model.createContext({
    contextSize: room, batchSize: room, sequences: 1, threads: 1, flashAttention: false,
    experimentalKvCacheKeyType: 'F32', experimentalKvCacheValueType: 'F32',
  });
  try {
    return await use(context.getSequence());
  } finally {
    await context.dispose();
  }
}

// For each id the log-probabilities of all tokens that may follow, as Maps from id.
export async function log_probabilities(model, ids) {
  return with_sequence(model, ids.length, async (sequence) => {
    const outputs = await sequence.controlledEvaluate(
      ids.map((id) => [id, { generateNext: { probabilities: true } }]));
    return outputs.map(({ next }) => new Map(Array.from(next.probabilities, ([id, p]) => [id, Math.log(p)])));
  });
}

// The likeliest next token, `count` times or up to what ends a text.
export async function greedy(model, ids, count) {
  return with_sequence(model, ids.length + count, async (sequence) => {
    const out = [];
    for await (const id of sequence.evaluate(ids, { temperature: 0, yieldEogToken: true })) {
      out.push(id);
      if (out.length === count || model.isEogToken(id)) break;
    }
    return out;
  });
}

// Ids of a text without special tokens in it and around it.
export function ids_of(model, text) {
  return Array.from(model.tokenize(text, false));
}

// What the file's own chat template makes of a conversation.
export function prompt_ids(model, messages, { add_generation_prompt = true } = {}) {
  const { tokenizer } = model.fileInfo.metadata;
  const bos_token = tokenizer.ggml.tokens[tokenizer.ggml.bos_token_id];
  const text = new Template(tokenizer.chat_template).render({ messages, bos_token, add_generation_prompt });
  return Array.from(model.tokenize(text, true));
}

// The largest difference between our log-probabilities and its own, over all positions and all tokens to which it gives
// more than `least`: of the rarest it only has what is left of a sum in f32.
export function largest_difference(ours, theirs, least = 1e-5) {
  let largest = 0;
  theirs.forEach((probabilities, i) => {
    for (const [id, log_p] of probabilities)
      if (log_p > Math.log(least)) largest = Math.max(largest, Math.abs(log_p - ours[i][id]));
  });
  return largest;
}
