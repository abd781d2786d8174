// Tests the Jinja interpreter with @huggingface/jinja: our own templates and, if ../shared exists,
// 46 published ones give the same text for every conversation of template_cases.js.
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Template } from '@huggingface/jinja';
import { cases } from './template_cases.js';
import { thimble } from './thimble.js';

const folder = mkdtempSync(join(tmpdir(), 'thimble-jinja-'));
after(() => rmSync(folder, { recursive: true }));
const golden = fileURLToPath(new URL('../golden/', import.meta.url));
const published = fileURLToPath(new URL('../../../shared/fixtures/chat_templates/', import.meta.url));

function templates_in(path) {
  return existsSync(path) ? readdirSync(path).filter((name) => name.endsWith('.jinja')).sort().map((name) => join(path, name)) : [];
}

// The text, or null if the library fails. Where a template adds a list or a dict to a string, Jinja
// and thimble report an error; the library writes the items without brackets, or [object Map].
function theirs(template, variables) {
  try {
    const text = template.render(structuredClone(variables));
    return text.includes('"},{"') || text.includes('[object') ? null : text;
  } catch {
    return null;
  }
}

function ours(path, all) {
  const file = join(folder, 'variables.jsonl');
  writeFileSync(file, all.map((variables) => JSON.stringify(variables) + '\n').join(''));
  const run = thimble('tokenizer', 'render', path, file, '--json');
  assert.equal(run.exit_code, 0, `${basename(path)}: ${run.stderr}`);
  return JSON.parse(run.stdout).prompts;
}

// The library has no integer keys, no str.format(), and no `type` of an undefined value. thimble's output for these
// templates was compared with Python's Jinja.
const beyond_the_library = ['ByteDance-Seed-OSS.jinja', 'NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja', 'tencent-Hy3.jinja'];

for (const path of [...templates_in(join(golden, 'chat')), ...templates_in(join(golden, 'jinja')), ...templates_in(published)]) {
  const name = basename(path);
  test(`${name} renders as with @huggingface/jinja`, () => {
    const template = new Template(readFileSync(path, 'utf8'));
    const expected = Object.entries(cases).map(([title, variables]) => [title, variables, theirs(template, variables)])
      .filter(([, , text]) => text !== null);
    if (beyond_the_library.includes(name)) {
      const plain = Object.entries(cases).filter(([title]) => title.startsWith('several turns')).map(([, variables]) => variables);
      for (const text of ours(path, plain)) assert.match(text, /Twelve\./);
    } else {
      assert.ok(expected.length >= 4, `the library renders ${expected.length} conversations`);
    }
    if (expected.length === 0) return;
    const found = ours(path, expected.map(([, variables]) => variables));
    for (const [i, [title, , text]] of expected.entries()) assert.equal(found[i], text, `${name}: ${title}`);
  });
}
