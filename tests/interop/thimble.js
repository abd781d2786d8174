// Runs the binary under test.
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

export const binary = process.env.THIMBLE_BINARY
  ?? fileURLToPath(new URL('../../build/release/bin/thimble', import.meta.url));

export function thimble(...words) {
  const run = spawnSync(binary, words, { encoding: 'utf8', timeout: 300_000 });
  if (run.error) throw run.error;
  return { exit_code: run.status, stdout: run.stdout, stderr: run.stderr };
}
