// The backend of the page in an HTML file: the model in the same file, in a worker.
//
// It also offers window.thimble (docs/guides/share-one-file.md): `ready`, a promise of `info`;
// `complete(options)`, the function of thimble.mjs; and `info`.

// The description of the model; null if it is damaged.
function read_about() {
  try {
    const found = JSON.parse(by_id('thimble-about').textContent);
    const numbers = [found.parameters, found.bytes, found.context, found.bits_per_byte ?? 0];
    return found.name && found.parts && numbers.every(Number.isFinite) ? found : null;
  } catch {
    return null;
  }
}

const about = read_about();
const stays_here = 'Everything stays on this computer.';

const backend = {
  context: about?.context ?? 0,
  // In some browsers all files share one storage.
  storage: `thimble.${about?.parts['thimble-model']?.digest}`,
  welcome: `The model runs in this page. ${stays_here}`,
  hint: 'The same seed and settings give the same text again.',
};

const get_file_again = 'Copy or download the file again.';

// A sentence for each reason why a model cannot be loaded.
function sentence({ name, code, message = '', hint }) {
  if (name === 'RangeError' || code === 'memory' || /out of memory|could not allocate|allocation failed/i.test(message))
    return `There is not enough memory to unpack the model (${bytes_text(about.bytes)}). Close other tabs, then reload this page.`;
  const text = [message, hint].filter(Boolean).join('; ');
  const closed = /[.!?]$/.test(text) ? text : `${text}.`;
  return code === 'damaged' ? `This file is damaged: ${closed} ${get_file_again}` : closed;
}

// ---- the worker

// A module of one function with `try`, `catch_all` and `i8x16.popcnt`: valid only with exceptions and SIMD.
const probe = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0,
  10, 14, 1, 12, 0, 6, 64, 25, 11, 65, 0, 253, 15, 253, 98, 11]);

// Returns why the model cannot run here, or nothing.
function obstacle() {
  if (!about) return `This file is damaged: the description of its model cannot be read. ${get_file_again}`;
  if (!by_id('thimble-end')) return `This file is incomplete: its end is missing. ${get_file_again}`;
  if (typeof WebAssembly !== 'object' || !WebAssembly.validate(probe))
    return 'This browser cannot run the model: it lacks WebAssembly with SIMD and exceptions. ' +
      'Use Chrome or Edge 95, Firefox 100, Safari 16.4, or newer.';
  return '';
}

const helpers = [];  // keeps references to them
let worker = null, requests = 0, broken = '';  // broken: why the worker cannot be used any more
const running = new Map();  // by id: what to call with tokens, the result or an error

// Takes the text of an element out of the document, which frees its memory.
function take_text(id) {
  const element = by_id(id), text = element?.textContent ?? '';
  element?.remove();
  return text;
}

function start() {
  const problem = obstacle();
  if (problem) return Promise.reject(new Error(problem));
  // A classic script: from file://, Chromium refuses workers that are modules.
  const source = take_text('thimble-worker').replace(/^export (default )?/gm, '');
  const texts = Object.fromEntries(Object.keys(about.parts).map((id) => [id, take_text(id)]));
  const url = URL.createObjectURL(new Blob([source], { type: 'text/javascript' }));
  worker = new Worker(url);
  return new Promise((resolve, reject) => {
    const fail = (error) => {
      broken = sentence(error);
      reject(new Error(broken));
      for (const request of running.values()) request.reject(new Error(broken));
      running.clear();
      show_notice(broken);
    };
    worker.onerror = (event) => fail({ message: `The program of the model stopped: ${event.message ?? 'no reason given'}` });
    worker.onmessage = ({ data }) => {
      if (data.progress) show_progress(data.progress);
      else if (data.helper) start_helper(url, data.helper);
      else if (data.ready) resolve(data.ready);
      else if (data.failed) fail(data.failed);
      else receive_answer(data);
    };
    worker.postMessage({ load: { about, texts } });
  });
}

// Another worker, which helps the first one over the port (worker.js).
function start_helper(url, port) {
  const helper = new Worker(url);
  helper.onerror = (event) => event.preventDefault();  // the first worker then works alone
  helper.postMessage({ port }, [port]);
  helpers.push(helper);
}

function receive_answer({ id, tokens, per_second, result, error }) {
  const request = running.get(id);
  if (tokens) return request?.on_tokens(tokens, per_second);
  running.delete(id);
  if (error) request?.reject(Object.assign(new Error(error.message), error));
  else request?.resolve(result);
}

async function run(options, on_tokens, signal) {
  await ready;
  if (broken) throw new Error(broken);
  const id = ++requests;
  return new Promise((resolve, reject) => {
    worker.postMessage({ id, complete: options, abort: signal?.aborted });
    running.set(id, { resolve, reject, on_tokens });
    signal?.addEventListener('abort', () => worker.postMessage({ id, abort: true }), { once: true });
  });
}

const ready = Promise.resolve().then(start);
ready.catch(() => {});  // reported by connect()

window.thimble = {
  ready, info: null,
  complete: ({ onToken, signal, ...options }) => run(options, (tokens) => tokens.forEach((token) => onToken?.(token)), signal),
};

// ---- the page

function show_progress({ stage, fraction }) {
  const bar = by_id('progress-bar'), text = by_id('progress-text'), shown = `Unpacking the model: ${stage}`;
  if (!bar) return;
  if (text.textContent !== shown) text.textContent = shown;  // is announced
  bar.firstChild.style.width = `${100 * fraction}%`;
  bar.ariaValueNow = Math.round(100 * fraction);
}

function progress_view() {
  const bar = make('div', { id: 'progress-bar', className: 'meter' }, make('div'));
  Object.assign(bar, { role: 'progressbar', ariaLabel: 'Unpacking the model', ariaValueNow: 0 });
  const view = make('div', { id: 'progress', role: 'status' }, make('span', { id: 'progress-text', textContent: 'Unpacking the model' }), bar);
  by_id('notice').after(view);
  return view;
}

const default_settings = {
  temperature: 0.8, top_k: 0, top_p: 1, min_p: 0, repeat_penalty: 1, presence_penalty: 0, frequency_penalty: 0,
};

async function connect() {
  by_id('notice').hidden = true;
  show_defaults(default_settings);
  if (about) show_about();
  by_id('score').hidden = true;
  const progress = progress_view();
  try {
    const info = window.thimble.info = await ready;
    backend.context = info.context;
    show_context(load(sessionStorage, 'used', 0));
    by_id('score').hidden = !info.echo;
    announce('The model is ready');
  } catch (error) {
    show_notice(error.message);
    for (const id of ['message', 'send', 'continue', 'score']) by_id(id).disabled = true;
  }
  progress.remove();
}

// The text of a token whose bytes are part of a character, as the server writes it.
function shown_text({ text, bytes }) {
  if (!bytes) return text;
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
  } catch {
    return `bytes:${Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`).join('')}`;
  }
}

const characters = (text) => [...text].length;

function logprobs_of(tokens, offset) {
  const offsets = tokens.map(({ text }) => [offset, offset += characters(text)][0]);
  const top_of = ({ top }) => Object.fromEntries((top ?? []).map((other) => [shown_text(other), other.logprob]));
  return {
    tokens: tokens.map(shown_text), token_logprobs: tokens.map(({ logprob }) => logprob ?? null),
    text_offset: offsets, top_logprobs: tokens.map(top_of),
  };
}

// The events of the server's API. Requests that are made while the model is unpacked wait for it.
async function* stream(path, { stream_options, ...body }, signal) {
  const events = [], chat = path === 'v1/chat/completions', seed = crypto.getRandomValues(new Uint32Array(1))[0];
  let offset = 0, wake = () => {}, outcome = null;
  const on_tokens = (tokens, per_second) => {
    const text = tokens.map((token) => token.text).join('');
    const choice = chat ? { delta: { content: text } } : { text, logprobs: logprobs_of(tokens, offset) };
    offset += characters(text);
    events.push({ choices: [choice], tokens: tokens.length, timings: { predicted_per_second: per_second || undefined } });
    wake();
  };
  run({ ...default_settings, seed, ...body }, on_tokens, signal)
    .then((result) => { outcome = { result }; }, (error) => { outcome = { error }; }).then(() => wake());
  while (events.length || !outcome) {
    if (events.length) yield events.shift();
    else await new Promise((resolve) => { wake = resolve; });
  }
  if (outcome.error) throw outcome.error;
  if (outcome.result.finish_reason === 'abort') throw new DOMException('stopped', 'AbortError');
  yield last_event(outcome.result);
}

function last_event({ finish_reason, usage, timings }) {
  return {
    choices: [{ delta: {}, text: '', finish_reason }],
    usage: { completion_tokens: usage.completion_tokens, total_tokens: usage.context_used },
    tokens_dropped: usage.dropped_tokens, timings: { predicted_per_second: timings.tokens_per_second || undefined },
  };
}

// ---- what the model is

const whole = (number) => number.toLocaleString('en');

function bytes_text(bytes) {
  const [unit, name] = bytes < 1e6 ? [1e3, 'kB'] : bytes < 1e9 ? [1e6, 'MB'] : [1e9, 'GB'];
  return `${(bytes / unit).toPrecision(3)} ${name}`;
}

const facts_line = () => joined([`${whole(about.parameters)} parameters`, bytes_text(about.bytes),
  about.bits_per_byte != null && `${Number(about.bits_per_byte.toPrecision(3))} bits per byte`]);

function show_about() {
  by_id('model').textContent = about.name;
  document.title = `${about.name} · thimble`;
  const dialog = about_dialog();
  const open = button('About', 'About this model', () => dialog.showModal());
  document.body.append(make('footer', {}, make('span', { textContent: `${facts_line()} · ${stays_here}` }), ' ', open), dialog);
  if (!about.chat) refuse_chat();
}

// Rows for the values of an object: nested names are joined.
function rows(values, prefix = '') {
  return Object.entries(values ?? {}).flatMap(([name, value]) => {
    const title = `${prefix}${name.replaceAll('_', ' ')}`;
    if (value && typeof value === 'object' && !Array.isArray(value)) return rows(value, `${title}: `);
    const text = plain_text(value);
    return text ? [make('dt', { textContent: title }), make('dd', { textContent: text })] : [];
  });
}

function plain_text(value) {
  if (typeof value === 'number') return value.toLocaleString('en', { maximumSignificantDigits: 6 });
  return Array.isArray(value) ? value.map(plain_text).join(', ') : String(value ?? '');
}

function licence_view({ name, text }) {
  return make('details', {}, make('summary', { textContent: name }), make('pre', { textContent: text, tabIndex: 0 }));
}

function about_dialog() {
  const { parameters, bytes, context, dtype, bits_per_byte, version } = about;
  const facts = { parameters, size: `${whole(bytes)} bytes`, bits_per_byte: bits_per_byte ?? 'not measured',
    context: `${whole(context)} tokens`, computed_in: dtype, made_with: version && `thimble ${version}` };
  const close = button('Close', 'Close the description of the model', () => dialog.close());
  close.classList.add('plain');
  const licences = (about.licences ?? []).map(licence_view);
  const title = make('h2', { id: 'about-title', textContent: about.name });
  const privacy = `This page contains the model and the program that runs it. ${stays_here} ` +
    "The file's Content-Security-Policy forbids requests to any address.";
  const dialog = make('dialog', { id: 'about', closedBy: 'any' }, make('div', { className: 'top' }, title, close),
    make('p', { textContent: privacy }), make('dl', {}, ...rows(facts), ...rows(about.model_card)));
  if (licences.length) dialog.append(make('h3', { textContent: 'Licences of what is inside' }), ...licences);
  dialog.setAttribute('aria-labelledby', 'about-title');
  return dialog;
}
