// The backend of the page of `thimble serve`: the server that sent it.

const backend = {
  context: 0, storage: 'thimble',
  welcome: 'Messages are sent to this server only. The history stays in this browser.',
  hint: "Only changed values are sent. The others are the server's defaults.",
};
let api_key = load(sessionStorage, 'key', '');

class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function server_error(response) {
  const body = await response.json().catch(() => ({}));
  const wait = response.headers.get('Retry-After');
  const message = body.error?.message ?? `the server answered ${response.status} ${response.statusText}`;
  return new ServerError(response.status, wait ? `${message} (try again in ${wait} s)` : message);
}

async function request(path, body, signal) {
  const headers = { 'Content-Type': 'application/json' };
  if (api_key) headers.Authorization = `Bearer ${api_key}`;
  const options = body ? { method: 'POST', body: JSON.stringify(body) } : {};
  const response = await fetch(path, { ...options, headers, signal }).catch((error) => {
    throw error.name === 'AbortError' ? error : new Error('the server cannot be reached');
  });
  if (response.ok) return response;
  const error = await server_error(response);
  if (error.status === 401) ask_for_key(error.message);
  throw error;
}

// Yields the parsed "data: " events of a stream. Throws if the stream ends before [DONE].
async function* stream(path, body, signal) {
  const response = await request(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error('the connection closed before the answer was complete');
    const lines = (waiting + value).split(/\r?\n/);
    waiting = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data:')) continue;
      const data = line.slice(5).trim();
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(event.error.code, event.error.message);
      yield event;
    }
  }
}

function ask_for_key(message) {
  show_notice(message, { key: true });
  by_id('key').focus();
}

async function connect() {
  by_id('notice').hidden = true;
  by_id('model').textContent = 'loading';
  try {
    const models = await (await request('v1/models')).json();
    const props = await (await request('props')).json();
    by_id('model').textContent = models.data[0].id;
    document.title = `${models.data[0].id} · thimble`;
    backend.context = props.default_generation_settings.n_ctx;
    show_defaults(props.default_generation_settings.params ?? {});
    show_context(load(sessionStorage, 'used', 0));
    if (!props.chat_template) refuse_chat();
  } catch (error) {
    by_id('model').textContent = '';
    if (error.status !== 401) show_notice(error.message, { reconnect: true });
  }
}

by_id('key-form').onsubmit = (event) => {
  event.preventDefault();
  api_key = by_id('key').value.trim();
  save(sessionStorage, 'key', api_key);
  by_id('key').value = '';
  by_id('message').focus();
  connect();
};
by_id('reconnect').onclick = connect;
