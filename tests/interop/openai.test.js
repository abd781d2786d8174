// Tests `thimble serve` with the official `openai` client.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { eventually, metric, remove, serve, temporary_folder, train } from './server.js';

const folder = temporary_folder();
const servers = [];
let chatty, endless, client, slow_client;

const client_of = (server, options) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0, ...options });

before(async () => {
  chatty = await serve(train(folder, 'chatty'));
  endless = await serve(train(folder, 'endless'), '--slots', '1');
  servers.push(chatty, endless);
  client = client_of(chatty);
  slow_client = client_of(endless);
});
after(async () => {
  for (const server of servers) await server.stop();
  remove(folder);
});

const model = 'any';
const messages = [{ role: 'user', content: 'Tilda has eight pears. Will has one pear. Who has fewer pears?' }];
const greedy = { model, messages, temperature: 0, max_tokens: 40 };
const text_greedy = { model, prompt: 'Tilda has eight pears.', temperature: 0, max_tokens: 12, ignore_eos: true };

async function all_of(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}
const chat_text = (chunks, index = 0) => chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index)
  .map((choice) => choice.delta.content ?? '').join('');
const finish_reasons = (chunks) => chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.finish_reason).filter(Boolean);

function assert_envelope(answer, object) {
  assert.equal(answer.object, object);
  assert.ok(answer.id.length > 4);
  assert.ok(Math.abs(answer.created - Date.now() / 1000) < 600, `created ${answer.created}`);
  assert.equal(typeof answer.model, 'string');
}

test('the model list contains the model name used in answers', async () => {
  const models = await client.models.list();
  assert.equal(models.data.length, 1);
  assert.equal(models.data[0].object, 'model');
  const answer = await client.chat.completions.create({ ...greedy, model: models.data[0].id });
  assert.equal(answer.model, models.data[0].id);
});

test('chat: a complete answer has the expected fields', async () => {
  const answer = await client.chat.completions.create(greedy);
  assert_envelope(answer, 'chat.completion');
  assert.equal(answer.choices.length, 1);
  const [choice] = answer.choices;
  assert.equal(choice.index, 0);
  assert.equal(choice.message.role, 'assistant');
  assert.ok(choice.message.content.length > 0);
  assert.ok(['stop', 'length'].includes(choice.finish_reason));
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.ok(prompt_tokens > 10 && completion_tokens > 0 && completion_tokens <= 40);
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
});

test('chat: a stream gives the same text as a complete answer', async () => {
  const complete = await client.chat.completions.create(greedy);
  const chunks = await all_of(client.chat.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } }));
  for (const chunk of chunks) assert_envelope(chunk, 'chat.completion.chunk');
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.equal(chat_text(chunks), complete.choices[0].message.content);
  assert.deepEqual(finish_reasons(chunks), [complete.choices[0].finish_reason]);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.prompt_tokens, complete.usage.prompt_tokens);
  assert.equal(chunks.at(-1).usage.completion_tokens, complete.usage.completion_tokens);
});

test('chat: without include_usage no chunk has usage', async () => {
  const chunks = await all_of(client.chat.completions.create({ ...greedy, stream: true }));
  assert.ok(chunks.length > 2);
  for (const chunk of chunks) assert.ok(!chunk.usage && chunk.choices.length === 1);
});

test("chat: the client's stream helper assembles the same answer", async () => {
  const complete = await client.chat.completions.create(greedy);
  const final = await client.chat.completions.stream({ ...greedy, stream: true }).finalChatCompletion();
  assert.equal(final.choices[0].message.content, complete.choices[0].message.content);
  assert.equal(final.choices[0].finish_reason, complete.choices[0].finish_reason);
});

test('chat: n answers with one seed are the same streamed and complete', async () => {
  const request = { ...greedy, temperature: 1.2, seed: 7, n: 3, max_tokens: 24 };
  const complete = await client.chat.completions.create(request);
  assert.deepEqual(complete.choices.map((choice) => choice.index), [0, 1, 2]);
  const texts = complete.choices.map((choice) => choice.message.content);
  assert.ok(new Set(texts).size > 1, 'three samples are not all equal');
  const chunks = await all_of(client.chat.completions.create({ ...request, stream: true }));
  assert.deepEqual([0, 1, 2].map((index) => chat_text(chunks, index)), texts);
  assert.equal(finish_reasons(chunks).length, 3);
});

test('chat: without a seed answers differ; max_completion_tokens is respected', async () => {
  const request = { model, messages, temperature: 1.5, max_completion_tokens: 16, ignore_eos: true };
  const answers = await Promise.all(Array.from({ length: 4 }, () => client.chat.completions.create(request)));
  assert.ok(new Set(answers.map((answer) => answer.choices[0].message.content)).size > 1);
  for (const answer of answers) assert.equal(answer.usage.completion_tokens, 16);
});

test('chat: an answer ends before a stop string', async () => {
  const { content } = (await client.chat.completions.create(greedy)).choices[0].message;
  const middle = Math.floor(content.length / 2), stop = content.slice(middle, middle + 3);
  const expected = content.slice(0, content.indexOf(stop));
  for (const given of [stop, ['never generated', stop]]) {
    const { choices } = await client.chat.completions.create({ ...greedy, stop: given });
    assert.equal(choices[0].message.content, expected);
    assert.equal(choices[0].finish_reason, 'stop');
    assert.equal(chat_text(await all_of(client.chat.completions.create({ ...greedy, stop: given, stream: true }))), expected);
  }
});

test('chat: log-probabilities of chosen tokens and alternatives', async () => {
  const request = { ...greedy, logprobs: true, top_logprobs: 4 };
  const { choices } = await client.chat.completions.create(request);
  const { content } = choices[0].logprobs;
  assert.equal(content.map((entry) => entry.token).join(''), choices[0].message.content);
  for (const entry of content) {
    assert.ok(entry.logprob <= 0);
    assert.equal(Buffer.from(entry.bytes).toString(), entry.token);
    assert.equal(entry.top_logprobs.length, 4);
    assert.equal(entry.top_logprobs[0].token, entry.token);  // greedy
    const sorted = entry.top_logprobs.map((top) => top.logprob);
    assert.deepEqual(sorted, sorted.toSorted((a, b) => b - a));
    assert.ok(sorted.reduce((sum, logprob) => sum + Math.exp(logprob), 0) <= 1.0001);
  }
  const chunks = await all_of(client.chat.completions.create({ ...request, stream: true }));
  const streamed = chunks.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []);
  assert.deepEqual(streamed.map((entry) => entry.token), content.map((entry) => entry.token));
});

test('chat: logit_bias forbids a token and forces another', async () => {
  const first = async (logit_bias) => {
    const request = { ...greedy, max_tokens: 1, logprobs: true, top_logprobs: 2, logit_bias };
    return (await client.chat.completions.create(request)).choices[0].logprobs?.content[0]?.token;
  };
  const usual = await first({});
  const { tokens: [id] } = await client.post('/../tokenize', { body: { content: usual, add_special: false } });
  assert.notEqual(await first({ [id]: -100 }), usual);
  const { tokens: [other] } = await client.post('/../tokenize', { body: { content: 'x', add_special: false } });
  assert.equal(await first({ [other]: 100 }), 'x');
});

test('completions: a stream gives the same text as a complete answer', async () => {
  const complete = await client.completions.create(text_greedy);
  assert_envelope(complete, 'text_completion');
  assert.equal(complete.usage.completion_tokens, 12);
  assert.equal(complete.choices[0].finish_reason, 'length');
  const chunks = await all_of(client.completions.create({ ...text_greedy, stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.text).join(''), complete.choices[0].text);
  assert.deepEqual(finish_reasons(chunks), ['length']);
  assert.equal(chunks.at(-1).usage.total_tokens, complete.usage.total_tokens);
});

test('completions: several prompts with n samples each, in order', async () => {
  const prompt = ['Tilda has', 'Who has'], request = { ...text_greedy, temperature: 0.9, seed: 3, max_tokens: 6 };
  const both = await client.completions.create({ ...request, prompt, n: 2 });
  assert.deepEqual(both.choices.map((choice) => choice.index), [0, 1, 2, 3]);
  const second = await client.completions.create({ ...request, prompt: prompt[1], n: 2 });
  assert.deepEqual(both.choices.slice(2).map((choice) => choice.text), second.choices.map((choice) => choice.text));
});

test('completions: echo with max_tokens 0 scores a text', async () => {
  const prompt = 'Tilda has eight pears. Will has one.';
  const [scored] = (await client.completions.create({ model, prompt, echo: true, logprobs: 3, max_tokens: 0 })).choices;
  const { tokens, token_logprobs, top_logprobs, text_offset } = scored.logprobs;
  assert.equal(scored.text, prompt);
  assert.equal(tokens.join(''), prompt);
  assert.deepEqual(text_offset, tokens.map((_, i) => tokens.slice(0, i).join('').length));
  for (const [i, token] of tokens.entries()) {
    if (i === 0 && token_logprobs[0] === null) continue;
    assert.ok(token_logprobs[i] <= 0);
    assert.equal(top_logprobs[i][token], token_logprobs[i]);
  }
});

test('completions: scoring gives the same log-probabilities as generation', async () => {
  const [made] = (await client.completions.create({ ...text_greedy, logprobs: 3 })).choices;
  const ids = async (content, add_special) => (await client.post('/../tokenize', { body: { content, add_special } })).tokens;
  const made_ids = (await Promise.all(made.logprobs.tokens.map((token) => ids(token, false)))).flat();
  assert.equal(made_ids.length, 12, 'each token is re-encoded as one token');
  const prompt = [...await ids(text_greedy.prompt, true), ...made_ids];
  const [scored] = (await client.completions.create({ model, prompt, echo: true, logprobs: 3, max_tokens: 0 })).choices;
  assert.deepEqual(scored.logprobs.tokens.slice(-12), made.logprobs.tokens);
  for (const [i, logprob] of scored.logprobs.token_logprobs.slice(-12).entries())
    assert.ok(Math.abs(logprob - made.logprobs.token_logprobs[i]) < 1e-3, `token ${i}: ${logprob}`);
});

test('chat: fields about accounts, storage, reasoning and speed do not change the answer', async () => {
  const plain = (await client.chat.completions.create(greedy)).choices[0].message.content;
  const answer = await client.chat.completions.create({ ...greedy, metadata: { run: '7' }, store: true, service_tier: 'flex',
    user: 'me', safety_identifier: 'me', prompt_cache_key: 'k', prompt_cache_retention: '24h', reasoning_effort: 'low',
    verbosity: 'low', parallel_tool_calls: false, prediction: { type: 'content', content: 'Will' }, tool_choice: 'auto' });
  assert.equal(answer.choices[0].message.content, plain);
});

test('an invalid request gives a typed error that names the field', async () => {
  const wrong = [
    [{ temperature: -0.5 }, 'temperature', /temperature must be >= 0, got -0\.5/],
    [{ top_p: 2 }, 'top_p', /top_p.*2/],
    [{ n: 0 }, 'n', /n must be/],
    [{ max_tokens: -3 }, 'max_tokens', /max_tokens.*-3/],
    [{ stop: [1] }, 'stop', /stop/],
    [{ messages: [] }, 'messages', /messages/],
    [{ messages: [{ role: 'wizard', content: 'hm' }] }, 'messages[0].role', /role.*wizard/],
    [{ tools: [{ type: 'function', function: { name: 'f' } }] }, 'tools', /tools/],
    [{ response_format: { type: 'xml' } }, 'response_format.type', /response_format/],
    [{ response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { not: {} } } } },
      'response_format.json_schema.schema', /keyword 'not'/],
    [{ temprature: 1 }, 'temprature', /temprature/],
    [{ metadata: 'text' }, 'metadata', /metadata must be an object/],
    [{ min_tokens: 41 }, 'min_tokens', /min_tokens must be at most max_tokens/],
  ];
  for (const [field, param, message] of wrong) {
    await assert.rejects(client.chat.completions.create({ ...greedy, ...field }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError, `${JSON.stringify(field)}: ${error}`);
      assert.match(error.message, message);
      assert.ok(error.param === param || error.param?.startsWith(param), `${JSON.stringify(field)}: param ${error.param}`);
      assert.equal(error.type, 'invalid_request_error');
      return true;
    });
  }
  await assert.rejects(client.chat.completions.create({ ...greedy, stream: true, min_p: 3 }), OpenAI.BadRequestError);
  await assert.rejects(client.completions.create({ ...text_greedy, prompt: 'word '.repeat(3000) }),
    (error) => error instanceof OpenAI.BadRequestError && /context/.test(error.message));
  await assert.rejects(client.embeddings.create({ model, input: 'x' }), OpenAI.NotFoundError);
});

test('a server with an API key rejects requests without it', async () => {
  const guarded = await serve(`${folder}/chatty`, '--api-key', 'open-sesame');
  servers.push(guarded);
  for (const apiKey of ['wrong', 'open-sesam', 'open-sesame1'])
    await assert.rejects(client_of(guarded, { apiKey }).chat.completions.create(greedy), OpenAI.AuthenticationError);
  const answer = await client_of(guarded, { apiKey: 'open-sesame' }).chat.completions.create(greedy);
  assert.ok(answer.choices[0].message.content.length > 0);
  assert.equal((await fetch(`${guarded.url}/health`)).status, 200);
  assert.ok(!guarded.log().includes('open-sesam'), 'keys are not logged');
});

const long = { model, messages: [{ role: 'user', content: 'Go on.' }], temperature: 0, max_tokens: 900 };
// `endless` has one slot, so a short request succeeds only if that slot is free.
async function assert_slot_is_free() {
  await eventually('no request is processed', async () => (await metric(endless.url, 'thimble_requests_processing')) === 0);
  const answer = await slow_client.chat.completions.create({ ...long, max_tokens: 2 }, { timeout: 120_000 });
  assert.equal(answer.usage.completion_tokens, 2);
}

test('an aborted stream frees its slot', async () => {
  const stream = await slow_client.chat.completions.create({ ...long, stream: true });
  let pieces = 0;
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content && ++pieces === 3) stream.controller.abort();
  }
  assert.ok(pieces < long.max_tokens / 2, `${pieces} pieces after the abort`);
  await assert_slot_is_free();
});

test('an aborted request leaves the slot or the queue', async () => {
  const first = new AbortController(), second = new AbortController();
  const answers = [first, second].map(({ signal }) => slow_client.chat.completions.create(long, { signal }));
  const refused = answers.map((answer) => assert.rejects(answer, OpenAI.APIUserAbortError));
  await eventually('both requests have arrived', async () => (await metric(endless.url, 'thimble_requests_processing')) +
    (await metric(endless.url, 'thimble_requests_deferred')) === 2);
  second.abort();
  first.abort();
  await Promise.all(refused);
  await assert_slot_is_free();
});

test("a client's timeout frees the slot", async () => {
  await assert.rejects(slow_client.chat.completions.create(long, { timeout: 300 }), OpenAI.APIConnectionTimeoutError);
  await assert_slot_is_free();
});

test('after SIGTERM a running answer is completed and the exit code is 0', async () => {
  const draining = await serve(`${folder}/chatty`);
  const stream = await client_of(draining).chat.completions.create({ ...greedy, stream: true });
  let ended, text = '';
  for await (const chunk of stream) {
    ended ??= draining.stop();
    text += chunk.choices[0]?.delta.content ?? '';
  }
  assert.equal(text, (await client.chat.completions.create(greedy)).choices[0].message.content);
  assert.equal(await ended, 0);
});
