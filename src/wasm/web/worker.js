// Runs the model of an HTML file, so that the page stays responsive. In the file, this text follows
// thimble.mjs in one script. Messages are
//
//   from the page                       to the page
//   {load: {about, texts}}              {progress: {stage, fraction}} ..., then {ready: info} or {failed}
//   {id, complete: options, abort}      {id, tokens, per_second} ..., then {id, result} or {id, error}
//   {id, abort: true}
//
//                                       {helper: port}
//
// `texts` are the texts of the file's elements by id. Completions run one after the other. On
// {helper}, the page starts another worker with the same script and posts it {port}; over the port,
// that one decodes parts of the weights (help() in thimble.mjs). A worker does not start workers
// itself: in Firefox 153, `new Worker` in a worker sometimes does not return.

const milliseconds_between_messages = 33;

let model = null, previous = Promise.resolve();
const running = new Map();  // AbortController by id

// Errors lose their class and their fields when they are posted.
const plain = (error) => ({ name: error.name, message: error.message, code: error.code, hint: error.hint });

async function load_model({ about, texts }) {
  const total = Object.values(texts).reduce((sum, text) => sum + text.length, 0);
  const parts = {};
  let done = 0;
  for (const [id, text] of Object.entries(texts)) {
    postMessage({ progress: { stage: 'reading', fraction: done / total } });
    parts[id] = await decode_part(text, about.parts[id]);
    done += text.length;
    delete texts[id];  // frees the memory
  }
  const onProgress = (progress) => postMessage({ progress });
  const { name, bits_per_byte, model_card } = about;
  const facts = { name, bits_per_byte, model_card };
  model = await load({ wasm: parts['thimble-wasm'], model: parts['thimble-model'], onProgress, about: facts, helper: start_helper });
  postMessage({ ready: model.info });
}

function start_helper() {
  const { port1, port2 } = new MessageChannel();
  postMessage({ helper: port2 }, [port2]);
  const terminate = () => port1.postMessage({ end: true });
  return Object.assign(port1, { terminate });
}

function help_over(port) {
  const post = (...answer) => port.postMessage(...answer);
  port.onmessage = ({ data }) => (data.end ? close() : help(data, post));
  port.onmessageerror = () => post({ failed: 'a message could not be read' });
}

async function run_completion(id, options, signal) {
  let tokens = [], count = 0, first = 0, posted = 0;
  const post = (now) => {
    postMessage({ id, tokens, per_second: now > first ? (1000 * (count - 1)) / (now - first) : 0 });
    tokens = [];
    posted = now;
  };
  const onToken = (token) => {
    const now = performance.now();
    if (count++ === 0) first = now;
    tokens.push(token);
    if (now - posted >= milliseconds_between_messages) post(now);
  };
  const result = await model.complete({ ...options, onToken, signal });
  if (tokens.length) post(performance.now());
  postMessage({ id, result });
}

function complete(id, options) {
  const controller = new AbortController();
  running.set(id, controller);
  previous = previous.then(() => run_completion(id, options, controller.signal))
    .catch((error) => postMessage({ id, error: plain(error) }))
    .finally(() => running.delete(id));
}

onmessage = ({ data }) => {
  if (data.port) help_over(data.port);
  if (data.load) load_model(data.load).catch((error) => postMessage({ failed: plain(error) }));
  if (data.complete) complete(data.id, data.complete);
  if (data.abort) running.get(data.id)?.abort();
};
