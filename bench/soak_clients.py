"""Clients of a soak test: they ask, stream, disconnect, stall, send bad requests and watch a
dashboard.

Each client is a thread that repeats one action at a steady pace until told to end. Outcomes are
counted; anything that should not happen is recorded as a sentence.
"""
import collections
import http.client
import json
import socket
import threading
import time

QUESTIONS = ['Tilda has eight pears. Will has one pear. Who has fewer pears?', 'Who are you?', 'What colour is the boat?',
             'Once there was a cat. What was there?']
TIMEOUT = 60  # seconds per action; the machine may be busy

# Requests that must be refused, and the expected status.
BAD = [('POST', '/v1/chat/completions', b'{"messages":', 400), ('POST', '/v1/completions', b'{"prompt":"a","unknown":1}', 400),
       ('GET', '/v1/chat/completions', None, 405), ('GET', '/nothing', None, 404), ('GET', '/../../etc/passwd', None, 404),
       ('GET', '/%2e%2e/%2e%2e/etc/passwd', None, 404), ('POST', '/v1/completions', b'{"prompt":"a","max_tokens":-1}', 400),
       ('POST', '/tokenize', b'[' * 100000, 400)]


class Tally:
    """The outcomes of all clients; thread-safe."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.problems = []
        self.answers = {}

    def count(self, what, number=1):
        with self.lock:
            self.counts[what] += number

    def problem(self, sentence):
        with self.lock:
            self.counts['problems'] += 1
            if len(self.problems) < 20:
                self.problems.append(sentence)

    def same_answer(self, question, text):
        """Checks that a greedy answer never changes."""
        with self.lock:
            first = self.answers.setdefault(question, text)
        if first != text:
            self.problem(f'{question!r} was answered {first!r} first and {text!r} later')

    def __getitem__(self, what):
        with self.lock:
            return self.counts[what]


class Clients:
    """Repeats actions until end(). An action that fails is recorded as a problem."""

    def __init__(self, port, tally):
        self.port, self.tally = port, tally
        self.ending = threading.Event()
        self.threads = []

    def start(self, action, pause):
        """Calls `action(self, turn)` with `pause` seconds between calls."""
        def repeat():
            turn = 0
            while not self.ending.wait(pause):
                try:
                    action(self, turn)
                except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as error:
                    if not self.ending.is_set():
                        self.tally.problem(f'{action.__name__}: {type(error).__name__}: {error}')
                turn += 1
        self.threads.append(threading.Thread(target=repeat, daemon=True))
        self.threads[-1].start()

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join(TIMEOUT)

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=TIMEOUT)
        connection.request(method, path, body)
        return connection, connection.getresponse()


def chat_body(turn, **more):
    return json.dumps({'messages': [{'role': 'user', 'content': QUESTIONS[turn % len(QUESTIONS)]}], 'temperature': 0,
                       'max_tokens': 48, **more})


def ask(clients, turn):
    connection, answer = clients.request('POST', '/v1/chat/completions', chat_body(turn))
    body = json.loads(answer.read())
    connection.close()
    clients.tally.count('answers')
    clients.tally.count('tokens', body['usage']['completion_tokens'])
    clients.tally.same_answer(QUESTIONS[turn % len(QUESTIONS)], body['choices'][0]['message']['content'])


def stream(clients, turn):
    connection, answer = clients.request('POST', '/v1/chat/completions',
                                     chat_body(turn, stream=True, stream_options={'include_usage': True}))
    events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith('data: ')]
    connection.close()
    if events[-1] != '[DONE]':
        raise ValueError(f'a stream ended with {events[-1]!r}')
    chunks = [json.loads(event) for event in events[:-1]]
    text = ''.join(choice['delta'].get('content') or '' for chunk in chunks for choice in chunk['choices'])
    clients.tally.count('answers')
    clients.tally.count('tokens', next(chunk['usage'] for chunk in reversed(chunks) if chunk.get('usage'))['completion_tokens'])
    clients.tally.same_answer(QUESTIONS[turn % len(QUESTIONS)], text)


def disconnect(clients, turn):
    """Disconnects before the answer begins or after its first piece."""
    connection, body = socket.create_connection(('127.0.0.1', clients.port), TIMEOUT), chat_body(turn, stream=True).encode()
    connection.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
    if turn % 2:
        connection.recv(256)
    connection.close()
    clients.tally.count('dropped')


def send_bad_request(clients, turn):
    method, path, body, expected = BAD[turn % len(BAD)]
    connection, answer = clients.request(method, path, body)
    text = answer.read()
    connection.close()
    clients.tally.count('bad requests')
    if answer.status != expected or b'root:' in text:
        clients.tally.problem(f'{method} {path} was answered {answer.status}, expected {expected}')


def stall(clients, turn):
    """Sends half a request, waits and disconnects."""
    connection = socket.create_connection(('127.0.0.1', clients.port), TIMEOUT)
    connection.sendall([b'POST /v1/comp', b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{', b'\x16\x03\x01\x02'][turn % 3])
    time.sleep(2)
    connection.close()
    clients.tally.count('stalled')


def load_page(clients, turn):
    connection, answer = clients.request('GET', '/')
    page = answer.read()
    connection.close()
    if answer.status != 200 or b'</html>' not in page:
        raise ValueError(f'the page was answered {answer.status}, {len(page)} bytes')
    clients.tally.count('pages')


def watch_events(clients, turn):
    """Reads the events of a dashboard for half a minute, like a browser tab that is closed
    again."""
    connection, answer = clients.request('GET', '/events')
    until = time.monotonic() + 30
    while time.monotonic() < until and not clients.ending.is_set():
        line = answer.readline()
        if not line:
            break
        clients.tally.count('events', line.startswith(b'data: '))
    connection.close()


def ignore_events(clients, turn):
    """Requests events and reads none of them."""
    connection = socket.create_connection(('127.0.0.1', clients.port), TIMEOUT)
    connection.sendall(b'GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n')
    clients.ending.wait(20)
    connection.close()
