// Runs models in llama.cpp, through node-llama-cpp.
//
// Everything runs on the CPU in f32 with an f32 cache and one thread, so that results differ from
// thimble's only by rounding. With the defaults (f16 cache, flash attention) log-probabilities
// change by 0.02.
import { Template } from '@huggingface/jinja';

// For { skip }: the reason why it cannot run on this machine, or false.
export const llama_missing = Number(process.versions.node.split('.')[0]) < 20 ? 'node-llama-cpp needs Node 20' : false;

let llama;

// What llama.cpp warned about.
export const warnings = [];

// The caller must dispose of the model.
export async function load(path) {
  const { getLlama, LlamaLogLevel } = await import('node-llama-cpp');
  llama ??= await getLlama({
    gpu: false, build: 'never', maxThreads: 1, logLevel: LlamaLogLevel.warn,
    logger: (level, message) => (level === 'warn' ? warnings.push(message.trim()) : console.error(message)),
  });
  return llama.loadModel({ modelPath: path, gpuLayers: 0, useMmap: false });
}

// The context must not become full: llama.cpp would shift it and drop the first tokens.
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

// For each id, a Map from next token id to its log-probability.
export async function log_probabilities(model, ids) {
  return with_sequence(model, ids.length, async (sequence) => {
    const outputs = await sequence.controlledEvaluate(
      ids.map((id) => [id, { generateNext: { probabilities: true } }]));
    return outputs.map(({ next }) => new Map(Array.from(next.probabilities, ([id, p]) => [id, Math.log(p)])));
  });
}

// Greedy decoding: `count` tokens, or fewer if an end token is generated.
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

// Token ids of a text, without parsing or adding special tokens.
export function ids_of(model, text) {
  return Array.from(model.tokenize(text, false));
}

// Token ids of a conversation, rendered with the chat template in the file.
export function prompt_ids(model, messages, { add_generation_prompt = true } = {}) {
  const { tokenizer } = model.fileInfo.metadata;
  const bos_token = tokenizer.ggml.tokens[tokenizer.ggml.bos_token_id];
  const text = new Template(tokenizer.chat_template).render({ messages, bos_token, add_generation_prompt });
  return Array.from(model.tokenize(text, true));
}

// The largest difference between thimble's and llama.cpp's log-probabilities, over all positions
// and all tokens with a probability above `least`. Smaller probabilities have lost too much
// precision in f32.
export function largest_difference(ours, theirs, least = 1e-5) {
  let largest = 0;
  theirs.forEach((probabilities, i) => {
    for (const [id, log_p] of probabilities)
      if (log_p > Math.log(least)) largest = Math.max(largest, Math.abs(log_p - ours[i][id]));
  });
  return largest;
}
