// Load tests: with many clients, no answer is lost, mixed up or delayed forever. Time to first
// token is printed but not checked. THIMBLE_LOAD_SECONDS: duration of the load (default 10).
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { eventually, metric, remove, serve, temporary_folder, train, unread_requests } from './server.js';
import { thimble } from './thimble.js';

const seconds = Number(process.env.THIMBLE_LOAD_SECONDS ?? 10);
const folder = temporary_folder();
let questions;

before(() => {
  train(folder, 'chatty');
  const file = join(folder, 'questions.jsonl');
  assert.equal(thimble('data', 'sample', '--kind', 'chat', '--split', 'heldout', '--count', '64', '-o', file, '-q').exit_code, 0);
  const lines = readFileSync(file, 'utf8').trim().split('\n').map((line) => JSON.parse(line));
  questions = lines.map(({ messages }) => messages.slice(0, 1));
});
after(() => remove(folder));

// Streams one greedy answer. Returns its text, the number of pieces and the time to the first
// piece.
async function stream(url, messages) {
  const began = performance.now();
  const body = JSON.stringify({ messages, temperature: 0, max_tokens: 48, stream: true });
  const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', body, headers: { 'Content-Type': 'application/json' } });
  if (response.status !== 200)
    return { status: response.status, retry_after: response.headers.get('Retry-After'), body: await response.json() };
  const answer = { status: 200, text: '', pieces: 0, finish: null, done: false };
  let waiting = '';
  const decoder = new TextDecoder();
  for await (const bytes of response.body) {
    const lines = (waiting + decoder.decode(bytes, { stream: true })).split('\n');
    waiting = lines.pop();
    for (const line of lines.filter((line) => line.startsWith('data: '))) take(answer, line.slice(6), began);
  }
  return answer;
}

function take(answer, data, began) {
  if (data === '[DONE]') { answer.done = true; return; }
  const [choice] = JSON.parse(data).choices;
  answer.finish ??= choice.finish_reason;
  if (!choice.delta.content) return;
  answer.text += choice.delta.content;
  answer.first_seconds ??= (performance.now() - began) / 1000;
  ++answer.pieces;
}

const memory_of = (pid, line) => 1024 * Number(readFileSync(`/proc/${pid}/status`, 'utf8').match(new RegExp(`${line}:\\s+(\\d+)`))[1]);
const resident_bytes = (pid) => memory_of(pid, 'VmRSS'), peak_bytes = (pid) => memory_of(pid, 'VmHWM');
const quantile = (values, share) => values.toSorted((a, b) => a - b)[Math.floor(share * (values.length - 1))];
const in_ms = (value) => `${(1000 * value).toFixed(0)} ms`;

async function solo_answers(url) {
  const answers = [];
  for (const messages of questions) answers.push(await stream(url, messages));
  return answers;
}

// Each client sends one question after the other until `until`. Every answer must equal the one in
// `solo`.
async function load(url, clients, until, solo) {
  const first_seconds = [];
  let pieces = 0;
  await Promise.all(Array.from({ length: clients }, async (_, client) => {
    for (let turn = 0; turn === 0 || performance.now() < until; ++turn) {
      const which = (client + 7 * turn) % questions.length;
      const answer = await stream(url, questions[which]);
      assert.deepEqual([answer.status, answer.text, answer.finish, answer.done], [200, solo[which].text, solo[which].finish, true]);
      first_seconds.push(answer.first_seconds);
      pieces += answer.pieces;
    }
  }));
  return { first_seconds, pieces };
}

test('64 concurrent clients: answers equal those without load, and memory does not grow', { timeout: 1000 * seconds + 600_000 }, async (t) => {
  const server = await serve(join(folder, 'chatty'), '--slots', '16', '--queue', '256');
  try {
    const solo = await solo_answers(server.url);
    assert.ok(new Set(solo.map((answer) => answer.text)).size > 10, 'questions have different answers');
    const began = performance.now(), memory = [], first_seconds = [];
    let pieces = 0;
    for (const share of [0.25, 0.5, 1]) {
      const part = await load(server.url, 64, began + 1000 * seconds * share, solo);
      memory.push(resident_bytes(server.pid));
      first_seconds.push(...part.first_seconds);
      pieces += part.pieces;
    }
    // Connections (the client opens more with each part), buffers and caches reach their final size
    // in the first half.
    const took = (performance.now() - began) / 1000, growth = memory[2] - memory[1];
    t.diagnostic(`${first_seconds.length} answers in ${took.toFixed(1)} s, ${Math.round(pieces / took)} pieces/s, ` +
      `time to first token p50 ${in_ms(quantile(first_seconds, 0.5))}, p99 ${in_ms(quantile(first_seconds, 0.99))}, ` +
      `memory ${memory.map((bytes) => (bytes / 2 ** 20).toFixed(1)).join(', ')} MiB`);
    assert.ok(growth < 16 * 2 ** 20, `memory grew by ${growth} bytes in the second half`);
    await eventually('all slots are free', async () => (await metric(server.url, 'thimble_requests_processing')) === 0);
    await eventually('all connections are closed', async () => (await metric(server.url, 'thimble_connections')) <= 65);
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('200 clients, 8 slots, queue of 32: other requests get 503 with Retry-After, none hangs', { timeout: 600_000 }, async (t) => {
  const server = await serve(join(folder, 'chatty'), '--slots', '8', '--queue', '32');
  try {
    const solo = await solo_answers(server.url);
    // Pause the server so that all requests arrive before it reads the first one.
    process.kill(server.pid, 'SIGSTOP');
    const requests = Array.from({ length: 200 }, (_, i) => stream(server.url, questions[i % questions.length]));
    await eventually('all requests are sent', () => unread_requests(server) === 200);
    process.kill(server.pid, 'SIGCONT');
    const answers = await Promise.all(requests);
    const refused = answers.filter((answer) => answer.status === 503);
    t.diagnostic(`${200 - refused.length} answered, ${refused.length} refused`);
    for (const [i, answer] of answers.entries()) {
      if (answer.status === 503) {
        assert.ok(Number(answer.retry_after) >= 1, `Retry-After: ${answer.retry_after}`);
        assert.equal(typeof answer.body.error.message, 'string');
      } else {
        assert.deepEqual([answer.status, answer.text, answer.done], [200, solo[i % questions.length].text, true]);
      }
    }
    assert.ok(refused.length > 0 && refused.length <= 160, 'the queue overflows, but slots and queue are used');
    assert.equal((await stream(server.url, questions[0])).text, solo[0].text, 'the server works normally afterwards');
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('12 clients with the largest requests: memory stays within --max-memory and is given back', { timeout: 600_000 }, async (t) => {
  const MiB = 2 ** 20, max_memory = 128 * MiB, max_body = MiB / 2;
  const server = await serve(join(folder, 'chatty'), '--max-memory', `${max_memory}`, '--max-body', `${max_body}`);
  const bodies = {
    '/tokenize': JSON.stringify({ content: 'a'.repeat(max_body - 40), with_pieces: true }),
    '/detokenize': `{"tokens":[${'9,'.repeat(max_body / 2 - 10)}9]}`,
    '/apply-template': JSON.stringify({ messages: [{ role: 'user', content: 'a'.repeat(max_body - 60) }] }),
    '/v1/completions': `{"prompt":[${'9,'.repeat(max_body / 2 - 10)}9]}`,  // longer than the context
    '/v1/chat/completions': JSON.stringify({ messages: questions[0], n: 6, max_tokens: 100, ignore_eos: true,
      logprobs: true, top_logprobs: 100 }),
  };
  const ask = async (path) => {
    const response = await fetch(server.url + path, { method: 'POST', body: bodies[path] });
    for await (const piece of response.body) assert.ok(piece.length > 0);  // the client keeps nothing
    return response.status;
  };
  try {
    await stream(server.url, questions[0]);
    const before = resident_bytes(server.pid);
    for (const path of Object.keys(bodies)) {
      const statuses = await Promise.all(Array.from({ length: 12 }, () => ask(path)));
      assert.deepEqual(new Set(statuses), new Set([path === '/v1/completions' ? 400 : 200]), path);
    }
    const refused = JSON.stringify({ messages: questions[0], n: 72, ignore_eos: true, logprobs: true, top_logprobs: 100 });
    const response = await fetch(`${server.url}/v1/chat/completions`, { method: 'POST', body: refused });
    assert.equal(response.status, 400);
    assert.match((await response.json()).error.message, new RegExp(`limit is ${max_memory / 32}`));
    const peak = peak_bytes(server.pid);
    t.diagnostic(`memory ${[before, peak, resident_bytes(server.pid)].map((bytes) => (bytes / MiB).toFixed(1)).join(', ')} MiB`);
    assert.ok(peak < before + max_memory, `${peak} bytes after ${before}`);
    await eventually('memory is given back', () => resident_bytes(server.pid) < 1.2 * before + 32 * MiB, 10);
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('8 streams are decoded in one batch', { timeout: 600_000 }, async (t) => {
  const server = await serve(train(folder, 'endless'), '--slots', '8');
  try {
    const requests = questions.slice(0, 8), texts = (answers) => answers.map((answer) => answer.text);
    const pieces_per_second = (answers, began) =>
      answers.reduce((sum, answer) => sum + answer.pieces, 0) / ((performance.now() - began) / 1000);
    const alone_began = performance.now(), alone = [];
    for (const messages of requests) alone.push(await stream(server.url, messages));
    const one = pieces_per_second(alone, alone_began);
    const steps_alone = await metric(server.url, 'thimble_decode_steps_total');
    const together_began = performance.now(), together = await Promise.all(requests.map((messages) => stream(server.url, messages)));
    const eight = pieces_per_second(together, together_began);
    const steps_together = await metric(server.url, 'thimble_decode_steps_total') - steps_alone;
    t.diagnostic(`1 stream ${Math.round(one)} pieces/s, 8 streams ${Math.round(eight)}: ${(eight / one).toFixed(1)}x`);
    assert.deepEqual(texts(together), texts(alone));
    assert.ok(steps_together < steps_alone / 4, `${steps_together} steps concurrently, ${steps_alone} sequentially`);
  } finally {
    assert.equal(await server.stop(), 0);
  }
});
