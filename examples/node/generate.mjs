// Completes a text with an exported model, in Node 17 or newer:
//
//   thimble export MODEL --format js -o web
//   node generate.mjs web "Once upon a time"
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder = 'web', prompt = 'Once upon a time'] = process.argv.slice(2);
const { load } = await import(pathToFileURL(resolve(folder, 'thimble.mjs')).href);

const model = await load({ wasm: join(folder, 'thimble.wasm'), model: join(folder, 'model.thimble') });
process.stdout.write(prompt);
const { usage, timings } = await model.complete({
  prompt, max_tokens: 64, temperature: 0.8, seed: 1, onToken: ({ text }) => process.stdout.write(text),
});
console.log(`\n${usage.completion_tokens} tokens, ${timings.tokens_per_second.toFixed(0)} tokens/s`);
model.close();
