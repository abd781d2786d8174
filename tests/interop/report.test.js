// Tests the report, plots and the dashboard in a real browser, and event files with a third-party
// protobuf library. Screenshots are written to build/page.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { appendFileSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import crc32c from 'crc-32/crc32c.js';
import protobuf from 'protobufjs';
import { faint_texts, launch, no_browser, overflow, photograph, with_page } from './browser.js';
import { eventually, remove, temporary_folder } from './server.js';
import { binary, thimble } from './thimble.js';

const folder = temporary_folder(), children = [], needs_browser = { skip: no_browser, timeout: 600_000 };
const hostile = '</p></section><script>document.title = "mine"</script><img src=x onerror="document.title=1"><b>bold</b>';
let browser;

const settings = ['context=64', 'layers=2', 'dim=64', 'heads=4', 'kv_heads=2', 'head_dim=0', 'mlp_hidden=128', 'batch_tokens=512',
  'val_every=20', 'val_tokens=2000', 'dtype=f32', 'prime_steps=0'];
// The settings that `words` do not give: a setting given twice is refused.
const other_settings = (words) => settings.filter((setting) => !words.some((word) => word.startsWith(setting.replace(/=.*/, '='))))
  .flatMap((setting) => ['--set', setting]);
const train_command = (run, ...more) => ['train', '--preset', 'quick', ...(more.includes('--data') ? [] : ['--data', join(folder, 'tales.txt')]),
  '-o', join(folder, run), '--threads', '2', '-q', ...other_settings(more), ...more];

function succeed(...command) {
  const { exit_code, stdout, stderr } = thimble(...command);
  assert.equal(exit_code, 0, `thimble ${command.join(' ')}: ${stdout}${stderr}`);
  return stdout;
}

before(async () => {
  succeed('data', 'sample', '--kind', 'tales', '--size', '200k', '-o', join(folder, 'tales.txt'), '-q');
  succeed(...train_command('a', '--steps', '120', '--tensorboard'));
  succeed(...train_command('b', '--steps', '120', '--matrix-lr', '0.004'));
  if (!no_browser) browser = await launch();
});
after(async () => {
  await browser?.close();
  for (const child of children) child.kill('SIGKILL');  // left over from failed tests
  remove(folder);
});

const file = (...names) => pathToFileURL(join(folder, ...names)).href;
const looks = [
  { name: 'light', options: { colorScheme: 'light' } },
  { name: 'dark', options: { colorScheme: 'dark' } },
  { name: 'narrow-light', options: { colorScheme: 'light', viewport: { width: 360, height: 740 } } },
  { name: 'narrow-dark', options: { colorScheme: 'dark', viewport: { width: 360, height: 740 } } },
];

// Checks contrast and overflow of a page in all themes and widths.
async function check_all_looks(url, name, wait = async () => {}) {
  for (const look of looks)
    await with_page(browser, url, look.options, async (page) => {
      await wait(page);
      await photograph(page, `${name}-${look.name}`, { fullPage: true });
      assert.deepEqual(await faint_texts(page), [], `${name}, ${look.name}: contrast`);
      assert.equal(await overflow(page), 0, `${name}, ${look.name}: overflow`);
    });
}

test('the report has sufficient contrast and no overflow, light and dark, wide and narrow', needs_browser, () => check_all_looks(file('a', 'report.html'), 'report'));

test('the report shows curves, samples, the diagnosis and the command', needs_browser, () =>
  with_page(browser, file('a', 'report.html'), {}, async (page) => {
    assert.equal(await page.locator('figure.chart').count(), 5);
    assert.equal(await page.textContent('h1'), 'a');
    assert.match(await page.textContent('#limits'), /What limits this run: (infrastructure|data|optimization)/);
    const events = readFileSync(join(folder, 'a', 'metrics.jsonl'), 'utf8').trim().split('\n').map((line) => JSON.parse(line));
    const said = events.filter(({ event }) => event === 'sample');
    assert.equal(said.length, 2 * 7, 'two samples at each of seven validations');
    assert.ok((await page.textContent('#samples')).includes(said.at(-1).text));
    const best = Math.min(...events.filter(({ event }) => event === 'validation').map(({ val_bpb }) => val_bpb));
    assert.ok((await page.textContent('.tiles')).includes(best.toFixed(4)));
    assert.equal(await page.textContent('.command'), `thimble ${train_command('a', '--steps', '120', '--tensorboard').join(' ')}`);
  }));

test('values are shown at the pointer and by keyboard', needs_browser, () =>
  with_page(browser, file('a', 'report.html'), {}, async (page) => {
    const events = readFileSync(join(folder, 'a', 'metrics.jsonl'), 'utf8').trim().split('\n').map((line) => JSON.parse(line));
    const area = page.locator('.area').first(), box = await area.boundingBox();
    await page.mouse.move(box.x + box.width - 1, box.y + 40);
    const last = events.filter(({ event }) => event === 'step').at(-1);
    const shown = await page.textContent('#values');
    assert.match(shown, /^step120/);
    assert.ok(shown.includes(`each step${Number(last.loss.toPrecision(5))}`), shown);
    await photograph(page, 'report-values');
    await page.mouse.move(1, 1);
    assert.equal(await page.isVisible('#values'), false);
    await area.focus();
    await page.keyboard.press('ArrowLeft');
    assert.doesNotMatch(await page.textContent('#values'), /^step120/);
    assert.equal(await overflow(page), 0);
  }));

test('samples are shown as text, not as HTML', needs_browser, async () => {
  const run = join(folder, 'hostile');
  succeed(...train_command('hostile', '--steps', '20'));
  appendFileSync(join(run, 'metrics.jsonl'), `${JSON.stringify({ event: 'sample', step: 20, prompt: hostile, text: hostile })}\n`);
  succeed('plot', run, '-q');
  await with_page(browser, file('hostile', 'report.html'), {}, async (page) => {
    assert.match(await page.title(), /^hostile/);
    assert.equal(await page.locator('.said').last().textContent(), hostile + hostile);
    assert.equal(await page.locator('#samples script, #samples img, #samples b').count(), 0);
  });
});

// The training text is only markup, so the samples are markup too. The folder's name is the name of
// the run.
test('markup in samples and in the run name is not executed, in the dashboard and in the report', needs_browser, async () => {
  const name = '<img src=x onerror=document.title=1>', said = '<script>document.title="mine"</script><img src=x onerror=document.title=2>';
  writeFileSync(join(folder, 'hostile.txt'), `${said}\n`.repeat(1500));
  const run = await train_with_dashboard(name, '--steps', '100000', '--data', join(folder, 'hostile.txt'), '--set', 'val_every=100');
  const clean = async (page, status) => {
    assert.equal(await page.locator('section script, section img, section [onerror]').count(), 0);
    assert.equal(await page.title(), `${name} - thimble`);
    assert.equal(await page.textContent('h1'), name);
    assert.equal(await page.textContent('.status'), status);
  };
  await with_page(browser, run.url, {}, async (page) => {
    await eventually('a sample contains the markup', async () =>
      (await page.locator('.said').allTextContents()).some((text) => text.includes('<script>') && text.includes('<img')));
    await clean(page, 'training');
    run.child.kill('SIGINT');
    await page.getByText('training ended').waitFor();
    await clean(page, 'interrupted');
  });
  assert.equal(await run.ended, 130, run.said());
  await with_page(browser, file(name, 'report.html'), {}, (page) => clean(page, 'interrupted'));
  succeed('plot', join(folder, name), join(folder, 'a'), '-o', join(folder, 'hostile.html'));
  await with_page(browser, file('hostile.html'), {}, async (page) => {
    assert.equal(await page.locator('section script, section img, section [onerror]').count(), 0);
    assert.ok((await page.textContent('body')).includes(name));
  });
});

test('the report shows curves without JavaScript', needs_browser, () =>
  with_page(browser, file('a', 'report.html'), { javaScriptEnabled: false }, async (page) => {
    assert.ok(await page.locator('.curve').count() > 5);
  }));

test('plots draw several runs in one chart', needs_browser, async () => {
  const runs = [join(folder, 'a'), join(folder, 'b')];
  succeed('plot', ...runs, '-o', join(folder, 'both.html'));
  succeed('plot', ...runs, '--metric', 'loss', '--x', 'tokens', '-o', join(folder, 'loss.html'));
  await check_all_looks(file('both.html'), 'plot');
  await check_all_looks(file('loss.html'), 'plot-loss');
  await with_page(browser, file('loss.html'), {}, async (page) => {
    assert.deepEqual(await page.locator('.legend span').allTextContents(), ['a', 'b']);
    const box = await page.locator('.area').boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + 40);
    assert.match(await page.textContent('#values'), /^tokens[\d,]+a[\d.]+b[\d.]+$/);
  });
});

test('an SVG plot is well formed and renders in both themes', needs_browser, async () => {
  succeed('plot', join(folder, 'a'), join(folder, 'b'), '--metric', 'loss', '-o', join(folder, 'loss.svg'));
  for (const colorScheme of ['light', 'dark'])
    await with_page(browser, file('loss.svg'), { colorScheme, viewport: { width: 760, height: 420 } }, async (page) => {
      assert.equal(await page.evaluate(() => document.documentElement.localName), 'svg');
      assert.equal(await page.locator('.curve').count(), 4, 'two curves, two in the legend');
      await photograph(page, `plot-svg-${colorScheme}`);
    });
});

// Simulations of colour blindness as matrices on linear RGB (Machado, Oliveira and Fernandes, 2009,
// severity 1).
const eyes = {
  all: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protan: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deutan: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritan: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};
const linear = (colour) => colour.match(/\w\w/g).map((part) => parseInt(part, 16) / 255)
  .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
const times = (matrix, vector) => matrix.map((row) => row.reduce((sum, value, i) => sum + value * vector[i], 0));
function lab(rgb) {
  const xyz = times([[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.873]], rgb.map((value) => Math.min(1, Math.max(0, value))));
  const [x, y, z] = xyz.map((value) => (value > 0.008856 ? Math.cbrt(value) : 7.787 * value + 16 / 116));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

test('curve colours are distinguishable with colour blindness, in both themes', () => {
  const page = readFileSync(join(folder, 'a', 'report.html'), 'utf8');
  const colours = (name) => page.match(new RegExp(`--${name}: light-dark\\((#\\w+), (#\\w+)\\)`)).slice(1);
  for (const theme of [0, 1]) {
    const curves = [0, 1, 2, 3, 4, 5].map((i) => colours(`s${i}`)[theme]), paper = colours('raised')[theme];
    for (const colour of curves) {
      const [dark, light] = [colour, paper].map((each) => times(eyes.all, linear(each)))
        .map(([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b).sort((a, b) => a - b);
      assert.ok((light + 0.05) / (dark + 0.05) >= 3, `${colour} on ${paper}: WCAG requires 3:1 for lines`);
    }
    for (const [eye, matrix] of Object.entries(eyes)) {
      const seen = curves.map((colour) => lab(times(matrix, linear(colour))));
      seen.forEach((a, i) => seen.slice(0, i).forEach((b, j) =>
        assert.ok(Math.hypot(...a.map((value, k) => value - b[k])) > 20, `${eye}: ${curves[i]} and ${curves[j]} look alike`)));
    }
  }
});

// Starts a training run with a dashboard and returns its URL.
async function train_with_dashboard(run, ...more) {
  const command = train_command(run, '--dashboard', '0', ...more).filter((word) => word !== '-q');
  const child = spawn(binary, command, { stdio: ['ignore', 'pipe', 'pipe'] });
  children.push(child);
  const ended = new Promise((resolve) => child.once('exit', (code, signal) => resolve(code ?? signal)));
  let said = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => { said += data; });
  await eventually('an address', () => /http:\/\/127\.0\.0\.1:\d+/.test(said));
  return { url: said.match(/http:\/\/127\.0\.0\.1:\d+/)[0], child, ended, said: () => said };
}

test('the dashboard updates until the run ends', needs_browser, async () => {
  const run = await train_with_dashboard('live', '--steps', '100000', '--set', 'val_every=50');
  const tile = (page, name) => page.locator('.tiles div').filter({ has: page.getByText(name, { exact: true }) }).locator('dd').textContent();
  const step = async (page) => Number((await tile(page, 'steps')).replaceAll(',', ''));
  const started = (page) => page.locator('.said').first().waitFor({ timeout: 120_000 });
  await check_all_looks(run.url, 'dashboard', started);
  await with_page(browser, run.url, {}, async (page) => {
    await started(page);
    await page.evaluate(() => { window.same_page = true; });
    const first = await step(page);
    await eventually('more steps', async () => (await step(page)) > first);
    assert.equal(await page.textContent('.status'), 'training');
    run.child.kill('SIGINT');
    await page.getByText('training ended').waitFor();
    assert.equal(await page.textContent('.status'), 'interrupted');
    assert.equal(await page.evaluate(() => window.same_page), true, 'the page was not reloaded');
    await photograph(page, 'dashboard-ended');
  });
  assert.equal(await run.ended, 130, run.said());
  assert.match(readFileSync(join(folder, 'live', 'report.html'), 'utf8'), />interrupted</);
});

test('an occupied dashboard port is an error, and no run folder is created', async () => {
  const other = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => other.once('listening', resolve));
  const { exit_code, stderr } = thimble(...train_command('taken', '--steps', '5', '--dashboard', String(other.address().port)));
  other.close();
  assert.equal(exit_code, 1);
  assert.match(stderr, /cannot start the dashboard: cannot listen on 127\.0\.0\.1/);
  assert.ok(!readdirSync(folder).includes('taken'));
});

// Record format: tensorflow/core/lib/io/record_writer.h. Messages: tensorflow/core/util/event.proto
// and tensorflow/core/framework/summary.proto.
const event_type = protobuf.parse(`
  syntax = "proto3";
  message Event {
    double wall_time = 1; int64 step = 2;
    oneof what { string file_version = 3; bytes graph_def = 4; Summary summary = 5; SessionLog session_log = 7; }
  }
  message SessionLog { enum SessionStatus { STATUS_UNSPECIFIED = 0; START = 1; STOP = 2; CHECKPOINT = 3; } SessionStatus status = 1; }
  message Summary { message Value { string node_name = 7; string tag = 1; oneof value { float simple_value = 2; } } repeated Value value = 1; }
`, { keepCase: true }).root.lookupType('Event');

function events_of(run) {
  const names = readdirSync(join(folder, run)).filter((name) => name.startsWith('events.out.tfevents.')).sort();
  const masked = (bytes) => { const crc = crc32c.buf(bytes) >>> 0; return ((crc >>> 15 | crc << 17) + 0xa282ead8) >>> 0; };
  return names.map((name) => {
    const bytes = readFileSync(join(folder, run, name)), events = [];
    for (let at = 0; at < bytes.length;) {
      const length = Number(bytes.readBigUInt64LE(at)), data = bytes.subarray(at + 12, at + 12 + length);
      assert.equal(bytes.readUInt32LE(at + 8), masked(bytes.subarray(at, at + 8)), 'checksum of the length');
      assert.equal(bytes.readUInt32LE(at + 12 + length), masked(data), 'checksum of the record');
      events.push(event_type.toObject(event_type.decode(data), { longs: Number }));
      at += length + 16;
    }
    return events;
  });
}

test('event files contain the same values as metrics.jsonl', async () => {
  const [events, ...others] = events_of('a');
  assert.equal(others.length, 0);
  assert.equal(events[0].file_version, 'brain.Event:2');
  const metrics = readFileSync(join(folder, 'a', 'metrics.jsonl'), 'utf8').trim().split('\n').map((line) => JSON.parse(line));
  for (const [event, key, tag] of [['step', 'loss', 'loss'], ['step', 'grad_norm', 'grad_norm'], ['validation', 'val_bpb', 'val_bpb']]) {
    const expected = metrics.filter((line) => line.event === event).map((line) => [line.step, Math.fround(line[key])]);
    const written = events.flatMap(({ step = 0, summary }) => (summary?.value ?? [])
      .filter((value) => value.tag === tag).map((value) => [step, value.simple_value]));
    assert.deepEqual(written, expected, tag);
  }
});

test('a resumed run writes a second event file that begins with a START event', async () => {
  succeed(...train_command('resumed', '--steps', '40', '--stop-after', '10', '--tensorboard'));
  await new Promise((resolve) => setTimeout(resolve, 1100));  // file names contain seconds
  succeed('train', '--resume', join(folder, 'resumed'), '--tensorboard', '-q');
  const [first, second] = events_of('resumed');
  assert.equal(first.filter(({ summary }) => summary?.value?.[0].tag === 'loss').length, 10);
  assert.equal(second[1].session_log.status, 1);
  assert.equal(second[1].step, 11);
  assert.equal(second.filter(({ summary }) => summary?.value?.[0].tag === 'loss').length, 30);
});
