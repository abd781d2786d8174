// Starts `thimble serve` for tests, on a free port and with small models.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { binary, thimble } from './thimble.js';

const kinds = {
  // Answers the built-in questions, not always correctly, and ends its answers.
  chatty: ['context=256', 'layers=2', 'dim=64', 'heads=4', 'kv_heads=2', 'mlp_hidden=128', 'batch_tokens=1024',
    'steps=150', 'val_tokens=2000'],
  // Untrained and slow: greedy answers repeat until they are stopped.
  endless: ['context=1024', 'layers=8', 'dim=512', 'heads=8', 'kv_heads=4', 'mlp_hidden=1024', 'batch_tokens=1024',
    'steps=1', 'val_tokens=1024', 'muon_steps=1'],
};

// Trains a model of one of the kinds into `folder`; returns its path.
export function train(folder, kind) {
  const chats = join(folder, `${kind}.jsonl`), run = join(folder, kind);
  succeed('data', 'sample', '--kind', 'chat', '--size', '200k', '-o', chats, '-q');
  const settings = [...kinds[kind], 'head_dim=0', 'val_every=0', 'dtype=f32'];
  succeed('train', '--preset', 'chat', '--data', chats, '--tokenizer', 'bpe:400', '-o', run, '-q', '--threads', '2',
    ...settings.flatMap((setting) => ['--set', setting]));
  return run;
}

function succeed(...words) {
  const { exit_code, stdout, stderr } = thimble(...words);
  assert.equal(exit_code, 0, `thimble ${words.join(' ')}: ${stdout}${stderr}`);
}

export const temporary_folder = () => mkdtempSync(join(tmpdir(), 'thimble-serve-'));
export const remove = (folder) => rmSync(folder, { recursive: true });

// Starts a server and waits until it prints its address.
export async function serve(model, ...options) {
  const words = ['serve', model, '--port', '0', '--threads', '2', ...options];
  const child = spawn(binary, words, { stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = new Promise((resolve) => child.once('exit', (code, signal) => resolve(code ?? signal)));
  let output = '';
  const url = await new Promise((resolve, reject) => {
    const listen = (data) => {
      output += data;
      const found = output.match(/http:\/\/127\.0\.0\.1:\d+/);
      if (found) resolve(found[0]);
    };
    child.stdout.on('data', listen);
    child.stderr.on('data', listen);
    ended.then((code) => reject(new Error(`thimble serve ended with ${code}: ${output}`)));
  });
  const stop = async () => {
    child.kill('SIGTERM');
    return await ended;
  };
  return { url, stop, pid: child.pid, log: () => output };
}

// Number of connections with a request that the server has not read yet.
export function unread_requests({ url }) {
  const port = Number(new URL(url).port).toString(16).toUpperCase().padStart(4, '0');
  const sockets = readFileSync('/proc/net/tcp', 'utf8').split('\n').map((line) => line.trim().split(/\s+/));
  return sockets.filter(([, local, , state, queues]) =>
    local?.endsWith(`:${port}`) && state === '01' && parseInt(queues.split(':')[1], 16) > 0).length;
}

// Reads a gauge or counter from /metrics, summed over its labels.
export async function metric(url, name) {
  const lines = (await (await fetch(`${url}/metrics`)).text()).split('\n');
  const values = lines.filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`))
    .map((line) => Number(line.split(' ').at(-1)));
  assert.ok(values.length > 0, `no metric ${name} in\n${lines.join('\n')}`);
  return values.reduce((sum, value) => sum + value, 0);
}

// Polls until `is_true` returns true. Fails after `seconds`.
export async function eventually(what, is_true, seconds = 120) {
  const deadline = Date.now() + 1000 * seconds;
  while (!(await is_true())) {
    assert.ok(Date.now() < deadline, `timeout after ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
