// Runs a thimble model in a browser, a worker or Node. It has no dependency.
//
//   import { load } from "./thimble.mjs";
//   const model = await load({ wasm: "thimble.wasm", model: "model.thimble" });
//   const { text } = await model.complete({ prompt: "Once upon a time", max_tokens: 64 });
//
// docs/guides/share-one-file.md is the reference. The functions of thimble.wasm are in src/wasm/runtime.cpp.

export class ThimbleError extends Error {
  // code: "unsupported" (no WebAssembly SIMD), "model" (damaged, or not a model), "request" (of
  // complete()), "memory", "network" or "closed". hint: what to do; may be "".
  constructor(code, message, hint = "", field = "") {
    super(message);
    this.name = "ThimbleError";
    this.code = code;
    this.hint = hint;
    if (field) this.field = field;
  }
}

const isNode = typeof process !== "undefined" && !!process.versions?.node;
const encoder = new TextEncoder(), decoder = new TextDecoder("utf-8", { ignoreBOM: true });

// A function with one v128 constant: valid only where SIMD is supported.
const simdProbe = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11]);
// A function with try and catch_all.
const exceptionProbe = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 8, 1, 6, 0, 6, 64, 25, 11, 11]);

function checkSupport() {
  if (typeof WebAssembly === "undefined")
    throw new ThimbleError("unsupported", "this browser has no WebAssembly", "use a current version of Chrome, Edge, Firefox or Safari");
  for (const [name, probe] of [["SIMD", simdProbe], ["exceptions", exceptionProbe]])
    if (!WebAssembly.validate(probe))
      throw new ThimbleError("unsupported", `this browser has no WebAssembly ${name}`,
                             "use Chrome or Edge 95, Firefox 100, Safari 16.4, Node 17 or newer");
}

async function bytesOf(source, what) {
  if (source instanceof Uint8Array) return source;
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (typeof Response !== "undefined" && source instanceof Response) {
    if (!source.ok) throw new ThimbleError("network", `${what}: the server answered ${source.status}`);
    return new Uint8Array(await source.arrayBuffer());
  }
  const text = String(source);
  if (isNode && !/^(https?|data|blob):/.test(text)) {
    const { readFile } = await import("node:fs/promises");
    try {
      return await readFile(text.startsWith("file:") ? new URL(text) : text);
    } catch (error) {
      throw new ThimbleError("network", `${what}: cannot read ${text}: ${error.message}`);
    }
  }
  try {
    return await bytesOf(await fetch(text), what);
  } catch (error) {
    if (error instanceof ThimbleError) throw error;
    throw new ThimbleError("network", `${what}: cannot fetch ${text}: ${error.message}`,
                           location?.protocol === "file:" ? "serve the page over HTTP, or use export --format html" : "");
  }
}

// ---- regular expressions

const kSpaces = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const kBlanks = "\\t \\xa0\\u1680\\u180e\\u2000-\\u200a\\u202f\\u205f\\u3000", kLineEnds = "\\n-\\r\\x85\\u2028\\u2029";
const kWord = "\\p{L}\\p{N}_";
// Escapes for sets of characters, and their complements.
const kSets = { s: kSpaces, d: "\\p{Nd}", w: kWord, h: kBlanks, v: kLineEnds };
const kCharacters = { t: "\t", n: "\n", r: "\r", f: "\f", a: "\x07", e: "\x1b" };
const kPlaces = {
  A: "(?<![^])", z: "(?![^])", Z: "(?=\\n?(?![^]))",
  b: `(?:(?<=[${kWord}])(?![${kWord}])|(?<![${kWord}])(?=[${kWord}]))`,
  B: `(?:(?<=[${kWord}])(?=[${kWord}])|(?<![${kWord}])(?![${kWord}]))`,
};
const kNamedSets = { alpha: "\\p{L}", digit: "\\p{Nd}", alnum: "\\p{L}\\p{N}", space: kSpaces, upper: "\\p{Lu}", lower: "\\p{Ll}", word: kWord };

// A pattern of tokenizer.json, read as the native program reads it (PCRE2, with Unicode classes), in
// JavaScript's syntax with the flag v. Throws for what JavaScript cannot express.
export function translatePattern(pattern) {
  const characters = Array.from(pattern);
  let at = 0, groups = 0;
  const next = (text) => text === characters.slice(at, at + text.length).join("");
  const take = (text) => next(text) && (at += text.length, true);
  const refuse = (what) => {
    throw new SyntaxError(`${what} is not supported`);
  };
  const code = (value) => `\\u{${value.toString(16)}}`;
  const literal = (character) => /[\p{L}\p{N}_ ]/u.test(character) ? character : code(character.codePointAt(0));
  // The letters that are equal to one regardless of case.
  const cases = (character) => {
    const all = new Set([character, character.toLowerCase(), character.toUpperCase()].filter((c) => Array.from(c).length === 1));
    if (all.has("s")) all.add("\u017f");
    if (all.has("k")) all.add("\u212a");
    return [...all];
  };
  const property = (negated) => {
    let name = characters[at++];
    if (name === "{") {
      const end = characters.indexOf("}", at);
      if (end < 0) refuse("\\p without a name");
      name = characters.slice(at, end).join("");
      at = end + 1;
    }
    if (name?.startsWith("^")) name = name.slice(1), negated = !negated;
    const known = name === "L&" ? "LC" : name === "Any" || /^[A-Z][a-z]?$/.test(name) ? name : `scx=${name}`;
    return `\\${negated ? "P" : "p"}{${known}}`;
  };
  const hexadecimal = () => {
    const digits = characters.slice(at).join("").match(/^(?:\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{0,2}))/);
    at += digits[0].length;
    return parseInt(digits[1] || digits[2] || "0", 16);
  };
  // What follows a backslash: {set}, the content of a class, {character} or {place}.
  const escape = () => {
    const name = characters[at++];
    if (name === undefined) refuse("a backslash at the end");
    if (name === "p" || name === "P") return { set: property(name === "P") };
    if (name === "x") return { character: String.fromCodePoint(hexadecimal()) };
    if (kSets[name]) return { set: kSets[name] };
    if (kSets[name.toLowerCase()]) return { set: `[^${kSets[name.toLowerCase()]}]` };
    if (kCharacters[name]) return { character: kCharacters[name] };
    if (kPlaces[name]) return { place: kPlaces[name] };
    if (name === "R") return { place: `(?:\\r\\n|[${kLineEnds}])` };
    if (name === "N") return { set: "[^\\n]" };
    if (/[A-Za-z0-9]/.test(name)) refuse(`\\${name}`);
    return { character: name };
  };
  const set = (ignoresCase) => {
    let out = take("^") ? "[^" : "[";
    for (let first = true; !take("]") || first; first = false) {
      if (at >= characters.length) refuse("[ without ]");
      if (first && characters[at - 1] === "]") at -= 1;
      const named = characters.slice(at).join("").match(/^\[:(\^?)([a-z]+):\]/);
      if (named) {
        const content = kNamedSets[named[2]] ?? refuse(named[0]);
        out += named[1] ? `[^${content}]` : content;
        at += named[0].length;
        continue;
      }
      const item = () => (take("\\") ? (next("b") ? (at++, { character: "\b" }) : escape()) : { character: characters[at++] });
      const from = item();
      if (from.place) refuse("\\R, or a place, in a class");
      if (from.set) {
        out += from.set;
        continue;
      }
      let to = from;
      if (next("-") && characters[at + 1] !== "]" && characters[at + 1] !== undefined) {
        at += 1;
        to = item();
        if (!to.character) refuse("a range that ends with a class");
      }
      const [low, high] = [from, to].map(({ character }) => character.codePointAt(0));
      out += low === high ? code(low) : `${code(low)}-${code(high)}`;
      if (!ignoresCase) continue;
      if (high - low > 1000) refuse("a large range regardless of case");
      for (let c = low; c <= high; ++c) for (const other of cases(String.fromCodePoint(c))) out += code(other.codePointAt(0));
    }
    return `${out}]`;
  };
  // Neither an atomic group nor a possessive quantifier gives back what it has matched. JavaScript
  // has neither, but a lookahead does the same.
  const atomic = (text) => `(?:(?=(?<g${++groups}>${text}))\\k<g${groups}>)`;
  const quantified = (atom) => {
    for (;;) {
      const found = characters.slice(at, at + 24).join("").match(/^(?:[*+?]|\{\d+(?:,\d*)?\})/);
      if (!found) return atom;
      at += found[0].length;
      atom += found[0];
      if (take("?")) atom += "?";
      else if (take("+")) atom = atomic(atom);
      if (/^[*+?]/.test(characters[at] ?? "")) atom = `(?:${atom})`;
    }
  };
  const alternatives = (ignoresCase) => {
    let out = "";
    while (at < characters.length && characters[at] !== ")") {
      if (take("|")) {
        out += "|";
        continue;
      }
      if (take("(?i)")) {
        ignoresCase = true;
        continue;
      }
      out += quantified(one(ignoresCase));
    }
    return out;
  };
  const group = (ignoresCase) => {
    const kind = characters.slice(at).join("").match(/^\?(?:(:|=|!|<=|<!|>)|([a-z]*)(?:-([a-z]+))?:|P?<\w+>)/);
    if (next("?") && !kind) refuse(`(${characters.slice(at, at + 3).join("")}`);
    if (next("*")) refuse("(*");
    if (kind) {
      at += kind[0].length;
      if (/[^i]/.test((kind[2] ?? "") + (kind[3] ?? ""))) refuse(`(${kind[0]}`);
      if (kind[2]) ignoresCase = true;
      if (kind[3]) ignoresCase = false;
    }
    const content = alternatives(ignoresCase);
    if (!take(")")) refuse("( without )");
    if (kind?.[1] === ">") return atomic(content);
    return `(?${kind?.[1] ?? ":"}${content})`;
  };
  const one = (ignoresCase) => {
    const character = characters[at++];
    if (character === "[") return set(ignoresCase);
    if (character === "(") return group(ignoresCase);
    if (character === ".") return "[^\\n]";
    if (character === "^") return kPlaces.A;
    if (character === "$") return kPlaces.Z;
    if (/[*+?]/.test(character)) refuse(`${character} without an atom`);
    const { set: content, place, character: found } = character === "\\" ? escape() : { character };
    if (content) return content.startsWith("[") || /^\\p\{[^}]*\}$/i.test(content) ? content : `[${content}]`;
    if (place) return place;
    const all = ignoresCase ? cases(found) : [found];
    return all.length === 1 ? literal(found) : `[${all.map((c) => code(c.codePointAt(0))).join("")}]`;
  };
  const out = alternatives(false);
  if (at < characters.length) refuse(") without (");
  return out;
}

function compilePattern(pattern) {
  try {
    return new RegExp(translatePattern(pattern), "gv");
  } catch (error) {
    const shown = pattern.length > 80 ? `${pattern.slice(0, 80)}...` : pattern;
    throw new ThimbleError("unsupported", `the tokenizer's regular expression "${shown}" cannot be run here: ${error.message}`,
                           "use a current version of the browser");
  }
}

// Begin and end of each match, in bytes of UTF-8.
function matchesOf(regex, text, size) {
  const bounds = [];
  let unit = 0, byte = 0;
  const bytesUntil = (end) => {
    if (size === text.length) return end;  // ASCII
    for (; unit < end; ++unit) {
      const value = text.charCodeAt(unit);
      if (value >= 0xd800 && value < 0xdc00) byte += 4, ++unit;
      else byte += value < 0x80 ? 1 : value < 0x800 ? 2 : 3;
    }
    return byte;
  };
  for (const match of text.matchAll(regex)) bounds.push(bytesUntil(match.index), bytesUntil(match.index + match[0].length));
  return Uint32Array.from(bounds);
}

// An instance of thimble.wasm and its memory.
class Runtime {
  static async start(module, { part, progress }) {
    const runtime = new Runtime();
    // A reactor: the C library asks for the clock, and for files that it then does not find.
    const badFile = 8, notSupported = 52;
    const wasi = {
      clock_time_get: (id, precision, at) => {
        const nanoseconds = BigInt(Math.round((id === 0 ? Date.now() : performance.now()) * 1e6));
        new DataView(runtime.memory.buffer).setBigUint64(at, nanoseconds, true);
        return 0;
      },
      environ_sizes_get: (count, size) => {
        const view = new DataView(runtime.memory.buffer);
        view.setUint32(count, 0, true), view.setUint32(size, 0, true);
        return 0;
      },
      environ_get: () => 0,
      fd_close: () => badFile,
      fd_read: () => badFile,
      fd_seek: () => badFile,
      fd_write: (file, vectors, count, written) => {
        const view = new DataView(runtime.memory.buffer);
        let text = "", bytes = 0;
        for (let i = 0; i < count; ++i) {
          const at = view.getUint32(vectors + 8 * i, true), size = view.getUint32(vectors + 8 * i + 4, true);
          text += decoder.decode(new Uint8Array(runtime.memory.buffer, at, size).slice());
          bytes += size;
        }
        if (text.trim()) console.error(text.trimEnd());
        view.setUint32(written, bytes, true);
        return 0;
      },
      proc_exit: (code) => {
        throw new ThimbleError("memory", `the runtime ended with code ${code}`);
      },
    };
    // The tokenizer's work that the browser does (src/wasm/browser.cpp).
    const regexes = [], forms = ["NFC", "NFD", "NFKC", "NFKD"];
    const textAt = (at, size) => decoder.decode(runtime.bytes(at, size).slice());
    const give = (bytes, count, countAt) => {
      new DataView(runtime.memory.buffer).setUint32(countAt, count, true);
      return runtime.place(bytes);
    };
    const tokenizing = {
      normalize: (form, at, size, sizeAt) => {
        const bytes = encoder.encode(textAt(at, size).normalize(forms[form]));
        return give(bytes, bytes.length, sizeAt);
      },
      compile: (at, size) => regexes.push(compilePattern(textAt(at, size))) - 1,
      release: (regex) => { regexes[regex] = null; },
      matches: (regex, at, size, countAt) => {
        const bounds = matchesOf(regexes[regex], textAt(at, size), size);
        return give(new Uint8Array(bounds.buffer), bounds.length / 2, countAt);
      },
    };
    const imports = { thimble: { part, progress, ...tokenizing }, wasi_snapshot_preview1: {}, env: {} };
    for (const { module: from, name } of WebAssembly.Module.imports(module))
      imports[from][name] ??= (from === "wasi_snapshot_preview1" && wasi[name]) ||
        (name === "emscripten_notify_memory_growth" ? () => {} : () => notSupported);
    const instance = await WebAssembly.instantiate(module, imports);
    runtime.exports = instance.exports;
    runtime.memory = instance.exports.memory;
    runtime.exports._initialize?.();
    return runtime;
  }

  bytes(at, size) {
    return new Uint8Array(this.memory.buffer, at >>> 0, size);
  }

  // Copies bytes into memory that the runtime frees.
  place(bytes) {
    const at = this.exports.malloc(Math.max(bytes.length, 1)) >>> 0;
    if (at === 0) throw new ThimbleError("memory", "out of memory: a page can use at most 4 GB", "use a smaller model");
    this.bytes(at, bytes.length).set(bytes);
    return at;
  }

  // Calls a function and returns its text. A trap (out of memory, stack overflow) is an error too.
  call(code, name, ...values) {
    let status;
    try {
      status = this.exports[name](...values);
    } catch (error) {
      if (error instanceof ThimbleError) throw error;
      throw new ThimbleError(error instanceof WebAssembly.RuntimeError ? "memory" : code,
                             `the runtime failed: ${error.message}`, "close other pages, or use a smaller model");
    }
    const text = decoder.decode(this.bytes(this.exports.thimble_text(), this.exports.thimble_text_size() >>> 0).slice());
    if (status === 0) return text;
    const { message, hint, field } = JSON.parse(text);
    throw new ThimbleError(/^(out of memory|cannot allocate )/.test(message) ? "memory" : code, message, hint, field);
  }
}

// A pause in which the page handles events. setTimeout would wait at least 4 ms.
function pause() {
  if (typeof setImmediate === "function") return new Promise((resolve) => setImmediate(resolve));
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(0);
  });
}

const kPauseMilliseconds = 12;  // complete() pauses at least every 16 ms; a step takes a few

// The body of the request to the server's route with the same meaning. Options that are not named
// here are passed on: min_p, repeat_penalty, response_format, ... thimble.wasm refuses unknown ones.
function requestBody({ onToken, signal, prompt, messages, logprobs, ...rest }, info) {
  const body = { seed: crypto.getRandomValues(new Uint32Array(1))[0] };
  for (const [name, value] of Object.entries(rest))
    if (value !== undefined && value !== null) body[name] = value;
  if (messages !== undefined) {
    if (!info.chat)
      throw new ThimbleError("request", "the model was not trained on chats", "pass `prompt` instead of `messages`", "messages");
    body.messages = messages;
    if (logprobs !== undefined) body.logprobs = true, body.top_logprobs = logprobs;
  } else {
    body.prompt = prompt ?? "";
    body.max_tokens ??= 256;
    if (logprobs !== undefined) body.logprobs = logprobs;
  }
  return body;
}

export class Model {
  #runtime;
  #busy = false;

  constructor(runtime, info) {
    this.#runtime = runtime;
    this.info = info;
  }

  get #open() {
    if (!this.#runtime) throw new ThimbleError("closed", "the model is closed");
    return this.#runtime;
  }

  async complete(request = {}) {
    const runtime = this.#open;
    if (this.#busy) throw new ThimbleError("request", "the model is already completing a text", "wait for its end, or open it twice");
    const body = encoder.encode(JSON.stringify(requestBody(request, this.info)));
    this.#busy = true;
    try {
      const { tokens_dropped } = JSON.parse(runtime.call("request", "thimble_submit", runtime.place(body), body.length));
      return await this.#run(runtime, request, tokens_dropped);
    } finally {
      this.#busy = false;
    }
  }

  async #run(runtime, { onToken, signal, logprobs }, dropped) {
    const run = { started: performance.now(), first: 0, dropped, text: "", tokens: [], prompt_tokens: 0 };
    let paused = run.started;
    const take = (event) => {
      if (event.error) throw new ThimbleError("request", event.error);
      if (event.prompt.length > 0) this.#showPrompt(event.prompt, onToken);
      if (event.tokens.length > 0 && run.first === 0) run.first = performance.now();
      run.text += event.text;
      if (event.prompt_tokens) run.prompt_tokens = event.prompt_tokens;
      event.tokens.forEach((token, i) => {
        run.tokens.push(token.id);
        // The text of several tokens that make one character comes with the last of them.
        onToken?.(tokenShown(token, i === event.tokens.length - 1 ? event.text : "", logprobs !== undefined));
      });
      if (event.tokens.length === 0 && event.text) onToken?.({ text: event.text, token: -1, bytes: [] });
      return event.finish_reason;
    };
    for (;;) {
      if (signal?.aborted) {
        JSON.parse(runtime.call("request", "thimble_cancel")).forEach(take);
        return completed(run, "abort");
      }
      for (const event of JSON.parse(runtime.call("request", "thimble_step"))) {
        const reason = take(event);
        if (reason) return completed(run, reason);
      }
      const now = performance.now();
      if (now - paused < kPauseMilliseconds) continue;
      await pause();
      paused = performance.now();
      if (this.#runtime !== runtime) throw new ThimbleError("closed", "the model was closed");
    }
  }

  // The tokens of a scored prompt (echo).
  #showPrompt(prompt, onToken) {
    const characters = new TextDecoder();
    for (const token of prompt)
      onToken?.(tokenShown(token, characters.decode(Uint8Array.from(token.bytes), { stream: true }), true));
  }

  tokenize(text) {
    const bytes = encoder.encode(String(text));
    return Int32Array.from(JSON.parse(this.#open.call("request", "thimble_tokenize", this.#open.place(bytes), bytes.length)));
  }

  detokenize(ids) {
    const bytes = new Uint8Array(Int32Array.from(ids).buffer);
    return this.#open.call("request", "thimble_detokenize", this.#open.place(bytes), bytes.length);
  }

  close() {
    this.#runtime = undefined;  // its memory is freed with the instance
  }
}

function completed({ started, first, dropped, text, tokens, prompt_tokens }, finish_reason) {
  const ended = performance.now(), begun = first || ended, seconds = (ended - begun) / 1000;
  return {
    text,
    tokens: Int32Array.from(tokens),
    finish_reason,
    usage: {
      prompt_tokens,
      completion_tokens: tokens.length,
      context_used: prompt_tokens + tokens.length,
      dropped_tokens: dropped,
    },
    timings: {
      prompt_seconds: (begun - started) / 1000,
      seconds: (ended - started) / 1000,
      tokens_per_second: tokens.length > 1 && seconds > 0 ? (tokens.length - 1) / seconds : 0,
    },
  };
}

function tokenShown(token, text, scored) {
  const shown = { text, token: token.id, bytes: token.bytes };
  if (!scored) return shown;
  shown.logprob = token.logprob;
  shown.top = token.top.map(({ id, bytes, logprob }) =>
    ({ text: decoder.decode(Uint8Array.from(bytes)), token: id, bytes, logprob }));
  return shown;
}

// ---- the parts of an HTML file

let crcTable;
function crc32(bytes) {
  crcTable ??= Uint32Array.from({ length: 256 }, (_, n) => {
    for (let k = 0; k < 8; ++k) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
    return n;
  });
  let crc = -1;
  for (let i = 0; i < bytes.length; ++i) crc = crcTable[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
  return (crc ^ -1) >>> 0;
}

// Five characters for four bytes: base 85, most significant digit first. A tenth smaller than
// base64, and ASCII, which every browser reads alike. The digits are the characters from "#" on,
// without "<" and "\\".
const digits85 = (() => {
  const values = new Uint8Array(128).fill(255);
  for (let code = 35, value = 0; value < 85; ++code) if (code !== 60 && code !== 92) values[code] = value++;
  return values;
})();

function fromBase85(text, size) {
  if (text.length !== 5 * Math.ceil(size / 4)) throw new Error(`expected ${5 * Math.ceil(size / 4)} characters, found ${text.length}`);
  const bytes = new Uint8Array(4 * Math.ceil(size / 4)), view = new DataView(bytes.buffer);
  for (let from = 0, to = 0; from < text.length; to += 4) {
    let value = 0;
    for (const end = from + 5; from < end; ++from) {
      const digit = digits85[text.charCodeAt(from)];
      if (!(digit < 85)) throw new Error(`'${text[from]}' is not a digit`);
      value = value * 85 + digit;
    }
    view.setUint32(to, value);
  }
  return bytes.subarray(0, size);
}

async function gunzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Decodes the text of an element of an HTML file. part: {stored, gzip}, the size in base 85 and
// whether that is compressed; {bytes, crc32} of the result.
export async function decode_part(text, part) {
  let bytes;
  try {
    bytes = fromBase85(text, part.stored);
    if (part.gzip) bytes = await gunzip(bytes);
  } catch (error) {
    throw new ThimbleError("damaged", `a part of this file cannot be decoded: ${error.message}`);
  }
  if (bytes.length !== part.bytes)
    throw new ThimbleError("damaged", `a part of this file should have ${part.bytes} bytes, but ${bytes.length} were found`);
  if (crc32(bytes) !== part.crc32) throw new ThimbleError("damaged", "a part of this file does not match its checksum");
  return bytes;
}

// ---- helpers: workers that decode range-coded parts of the weights

const kRangeCoded = 3, kMostHelpers = 8, kSilenceMilliseconds = 10_000;

// What a worker does with a message of load(), which posts its answers with `post`.
let helping;
export async function help({ wasm, part, stored }, post) {
  const start = async () => {
    const module = wasm instanceof WebAssembly.Module ? wasm : await WebAssembly.compile(wasm);
    return Runtime.start(module, { part: () => 0, progress: (bytes) => post({ progress: bytes }) });
  };
  try {
    const runtime = await (helping ??= start());
    runtime.call("model", "thimble_decode", part.codec, runtime.place(stored), stored.length, part.raw);
    const content = runtime.bytes(runtime.exports.thimble_decoded(), part.raw).slice();
    post({ content }, [content.buffer]);
  } catch (error) {
    post({ failed: error.message });
  }
}

// Lets helpers decode the range-coded parts, the largest first; -> their contents by index, and the
// number of helpers that worked. What no helper could decode is missing: the runtime then decodes it.
// `wasm`: its bytes, because Chromium lets no two workers of a page from file:// share a module.
async function decodedByHelpers(start, wasm, bytes, parts, onBytes) {
  const contents = new Map(), worked = new Set();
  const waiting = parts.map((part, index) => ({ ...part, index })).filter(({ codec }) => codec === kRangeCoded);
  waiting.sort((a, b) => b.raw - a.raw);
  const count = Math.min(globalThis.navigator?.hardwareConcurrency ?? 1, waiting.length, kMostHelpers);
  const one = () => new Promise((resolve) => {
    let helper, part, timer, code = wasm;
    const end = () => {
      clearTimeout(timer);
      helper?.terminate();
      resolve();
    };
    // A helper reports its progress many times a second. The timer also keeps a reference to it.
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(end, kSilenceMilliseconds);
    };
    const give = () => {
      part = waiting.shift();
      if (!part) return end();
      const stored = bytes.slice(part.offset, part.offset + part.bytes);
      helper.postMessage({ wasm: code, part, stored }, [stored.buffer]);
      code = undefined;  // once is enough
    };
    const take = ({ data }) => {
      watch();
      if (data.progress) return onBytes(data.progress);
      if (!data.content) return end();
      contents.set(part.index, data.content);
      worked.add(helper);
      give();
    };
    try {
      helper = start();
      helper.onmessage = take;
      helper.onerror = helper.onmessageerror = (event) => {
        event.preventDefault();  // it ends here, not at the page
        end();
      };
      watch();
      give();
    } catch {
      end();
    }
  });
  if (count > 1) await Promise.all(Array.from({ length: count }, one));
  return { contents, helpers: worked.size };
}

// Opens a model. wasm, model: bytes, a Response or an address (in Node also a path). onProgress
// receives {stage, fraction}. helper: a function that returns a new Worker, which calls help() with
// the data of each message; then all cores decode the weights of a range-coded model.
export async function load({ wasm, model, onProgress, helper, about = {} }) {
  checkSupport();
  const progress = (stage, fraction) => onProgress?.({ stage, fraction });
  progress("reading", 0);
  const [code, bytes] = await Promise.all([
    wasm instanceof WebAssembly.Module ? wasm : bytesOf(wasm, "the runtime"), bytesOf(model, "the model")]);
  progress("starting", 0);
  const module = code instanceof WebAssembly.Module ? code : await WebAssembly.compile(code);
  let contents = new Map(), helpers = 0, total = 0, done = 0;
  const onBytes = (count) => progress("decoding weights", Math.min((done += count) / total, 1));
  const part = (index, at) => {
    const content = contents.get(index);
    if (!content) return 0;
    runtime.bytes(at, content.length).set(content);
    contents.delete(index);
    return 1;
  };
  const runtime = await Runtime.start(module, { part, progress: onBytes });
  const at = runtime.place(bytes);
  const weights = JSON.parse(runtime.call("model", "thimble_parts", at, bytes.length)).slice(2);  // after metadata and tokenizer
  for (const { raw } of weights) total += raw;
  progress("decoding weights", 0);
  if (helper) ({ contents, helpers } = await decodedByHelpers(helper, code, bytes, weights, onBytes));
  const facts = JSON.parse(runtime.call("model", "thimble_open", at, bytes.length));
  progress("ready", 1);
  const training = facts.metadata["thimble.training"];
  const model_card = training ? JSON.parse(training) : {};
  delete facts.metadata;
  return new Model(runtime, { name: "model", bits_per_byte: model_card.val_bpb ?? null, model_card, echo: true, helpers, ...facts, ...about });
}
