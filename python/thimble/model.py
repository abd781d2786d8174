"""Models: text in and out, logits, scores."""
from __future__ import annotations

import contextlib
import json
import math
import os
from ctypes import byref, c_int32, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Literal, Mapping, Sequence, Union, overload

from . import _arrays as arrays
from . import _library as lib
from . import _show as show
from ._library import Error

Tokens = Union[str, Sequence[int], Any]  # text, a sequence of ids, or an array of integers
Message = Mapping[str, str]


@dataclass(frozen=True)
class Completion:
    """A generated text. `finish_reason` is "stop" or "length".

    `logprobs` has an entry for each token if the request asks for them. A notebook shows the tokens in
    colours, by probability where that is known.

    >>> answer = model.generate("the cat", max_tokens=4, temperature=0, logprobs=1)
    >>> len(answer.tokens), len(answer.logprobs), answer.finish_reason
    (4, 4, 'length')
    """
    text: str
    tokens: list[int]
    finish_reason: str
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict, compare=False)
    pieces: list[str] = field(default_factory=list, compare=False, repr=False)  # of the text, about one per token

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        known = len(self.logprobs) == len(self.pieces)
        return show.coloured(self.pieces, [entry['logprob'] for entry in self.logprobs] if known else None)


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text.

    >>> score = model.score("the cat sat on the mat 3.")
    >>> score.bytes, 0 < score.bits_per_byte < 8
    (25, True)
    """
    nats: float
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes if self.bytes else 0.0

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens if self.tokens else 0.0


def load(source: str | os.PathLike[str] | bytes, *, device: str = 'auto', dtype: str = 'auto',
         threads: int | None = None) -> Model:
    """Opens a run folder, checkpoint, artifact, GGUF file or Hugging Face folder, or the bytes of a file.

    >>> with thimble.load("runs/cats") as model:
    ...     model.context
    32
    >>> with open("runs/cats/last.safetensors", "rb") as file:
    ...     thimble.load(file.read()).context
    32
    """
    return Model(source, device=device, dtype=dtype, threads=threads)


class Model:
    """An open model. Close it with close(), or use it in a `with` statement."""

    def __init__(self, source: str | os.PathLike[str] | bytes, *, device: str = 'auto', dtype: str = 'auto',
                 threads: int | None = None) -> None:
        self._handle = c_void_p()
        self._session: Session | None = None
        options: dict[str, Any] = {'device': device, 'dtype': dtype}
        if threads is not None:
            options['threads'] = threads
        words = json.dumps(options).encode()
        if isinstance(source, (bytes, bytearray, memoryview)):
            data = bytes(source)
            lib.call('open_bytes', data, len(data), words, byref(self._handle))
        else:
            lib.call('open', os.fsencode(source), words, byref(self._handle))
        self.facts: dict[str, Any] = json.loads(self._text('facts'))
        # Of a model from bytes, a path that exists while the model is open.
        self.path = self.facts['path'] if isinstance(source, (bytes, bytearray, memoryview)) else os.fspath(source)

    # ---- its life

    def close(self) -> None:
        """Frees the model. Calls afterwards raise an Error."""
        if self._session:
            self._session.close()
            self._session = None
        if self._handle:
            lib.call('close', self._handle)
            self._handle = c_void_p()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, '_handle', None) and lib._loaded is not None:
            with contextlib.suppress(Error):  # a session in the same cycle of references is still open
                self.close()

    def __repr__(self) -> str:
        if not self._handle:
            return f'<thimble.Model {self.path!r}, closed>'
        facts = self.facts
        return (f'<thimble.Model {self.path!r}: {facts["architecture"]}, {facts["parameters"]:,} parameters, '
                f'context {facts["context"]}, vocabulary {facts["vocabulary"]}, {facts["dtype"]} on {facts["device"]}>')

    def _repr_html_(self) -> str:
        return show.table((name, value) for name, value in self.facts.items() if name != 'config')

    @property
    def context(self) -> int:
        return int(self.facts['context'])

    @property
    def vocabulary(self) -> int:
        return int(self.facts['vocabulary'])

    @property
    def parameters(self) -> int:
        return int(self.facts['parameters'])

    @property
    def is_chat(self) -> bool:
        return bool(self.facts['chat'])

    # ---- tokens

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The token ids of a text. `special` adds the marks around a text (usually bos) and reads the names
        of special tokens in it.

        >>> model.decode(model.encode("the cat"))
        'the cat'
        """
        data = text.encode()
        capacity = len(data) + 8
        while True:
            ids, count = (c_int32 * capacity)(), c_size_t()
            status = lib.library().thimble_encode(self._open(), data, len(data), int(special), ids, capacity,
                                                  byref(count))
            if status == lib.OK:
                return ids[:count.value]
            if status != lib.TOO_SMALL:
                raise lib.last_error()
            capacity = count.value

    def decode(self, tokens: Tokens, *, special: bool = False) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
        ids, count = self._ids(tokens)
        return self._text('decode', ids, count, int(special)).decode('utf-8', 'replace')

    # ---- numbers

    def logits(self, text: Tokens, *, out: Any = None) -> Any:
        """The logits after each token: shape (tokens, vocabulary). A text begins with bos where the model's
        training texts do. `out` is an array of float32 to write to.

        >>> logits = model.logits([256, 116, 104])
        >>> len(logits), len(logits[0]) == model.vocabulary
        (3, True)
        """
        ids, count = self._ids(text)
        size = count * self.vocabulary
        array, pointer = (out, arrays.floats_in(out, size)) if out is not None else arrays.floats(size)
        lib.call('logits', self._open(), ids, count, pointer, size)
        if out is not None:
            return out
        if arrays.numpy() is not None:
            return array.reshape(count, self.vocabulary)
        return [list(array[i * self.vocabulary:(i + 1) * self.vocabulary]) for i in range(count)]

    def logprobs(self, text: Tokens, *, out: Any = None) -> Any:
        """The natural log-probability of each token after the first, given those before it.

        >>> all(value < 0 for value in model.logprobs("the cat"))
        True
        """
        ids, count = self._ids(text)
        size = max(count - 1, 0)
        array, pointer = (out, arrays.floats_in(out, size)) if out is not None else arrays.floats(size)
        lib.call('logprobs', self._open(), ids, count, pointer, size)
        return array if out is not None or arrays.numpy() is not None else list(array)

    def score(self, text: str, *, on_progress: Callable[[int, int], Any] | None = None,
              progress: bool | None = None) -> Score:
        """How well the model predicts a text of any length. on_progress(done, total) counts tokens and may
        return False to end the call. `progress` shows a bar with tqdm; None: if tqdm is installed and the
        output is a terminal or a notebook."""
        data, facts = text.encode(), lib.ScoreFacts()
        with show.bar('score', 'tokens', progress) as bar, lib.Callbacks() as callbacks:
            def on_scored(_: Any, done: int, total: int) -> Any:
                bar.to(done, total)
                return on_progress(done, total) if on_progress else None
            function = lib.Progress(callbacks.wrapped(on_scored))
            status = lib.library().thimble_score_text(self._open(), data, len(data), function, None, byref(facts))
        if status != lib.OK:
            raise lib.last_error()
        return Score(facts.nats, facts.tokens, facts.bytes)

    # ---- generating

    def session(self, slots: int = 1) -> Session:
        """A session of its own, for requests that run side by side or in another thread.

        >>> with model.session(slots=2) as session:
        ...     for prompt in ("the cat", "the mat"):
        ...         id = session.submit({"prompt": prompt, "max_tokens": 4, "temperature": 0})
        ...     texts = {1: "", 2: ""}
        ...     while events := session.step():
        ...         for event in events:
        ...             texts[event["request"]] += event["text"]
        >>> [len(text) for text in texts.values()]
        [4, 4]
        """
        return Session(self, slots)

    def generate(self, prompt: Tokens = '', *, max_tokens: int = 256, **settings: Any) -> Completion:
        """Continues a text. Settings are those of a completion request of the HTTP API: temperature, top_p,
        top_k, min_p, seed, stop, logprobs, and so on; also what constrains the answer: grammar,
        guided_regex, response_format.

        >>> model.generate("the cat", max_tokens=8, temperature=0, guided_regex="[0-9]{3}").text.isdigit()
        True
        """
        return self._own_session().complete(self._request(prompt, max_tokens, settings))

    def stream(self, prompt: Tokens = '', *, max_tokens: int = 256, **settings: Any) -> Iterator[str]:
        """Like generate(), but yields pieces of the text as they are generated.

        >>> pieces = list(model.stream("the cat", max_tokens=4, temperature=0))
        >>> "".join(pieces) == model.generate("the cat", max_tokens=4, temperature=0).text
        True
        """
        return self._own_session().stream(self._request(prompt, max_tokens, settings))

    @overload
    def chat(self, messages: Iterable[Message], *, stream: Literal[False] = ..., **settings: Any) -> Completion: ...
    @overload
    def chat(self, messages: Iterable[Message], *, stream: Literal[True], **settings: Any) -> Iterator[str]: ...
    def chat(self, messages: Iterable[Message], *, stream: bool = False,
             **settings: Any) -> Completion | Iterator[str]:
        """Answers a conversation, a list of {"role": ..., "content": ...}."""
        request = {'messages': [dict(message) for message in messages], **settings}
        return self._own_session().stream(request) if stream else self._own_session().complete(request)

    # ---- files

    def pack(self, path: str | os.PathLike[str], **settings: Any) -> dict[str, Any]:
        """Packs the model into a small file, like `thimble pack`: bits=6, budget=16_000_000, data="book.txt",
        force=True. Returns its report.

        >>> report = model.pack("cats.thimble", bits=6, force=True)
        >>> thimble.load("cats.thimble").facts["format"]
        'thimble'
        """
        from .training import command, words_of
        return dict(json.loads(command('pack', self.path, '-o', os.fspath(path), '--json', *words_of(settings))))

    def export(self, path: str | os.PathLike[str], *, format: str | None = None, **settings: Any) -> None:
        """Exports the model, like `thimble export`. The format follows from the name: .gguf, .html (a page
        that runs the model in a browser), else a Hugging Face folder.

        >>> model.export("cats-hf", force=True)
        >>> thimble.load("cats-hf").facts["format"]
        'huggingface'
        """
        from .training import command, words_of
        if format is None:
            ending = os.path.splitext(os.fspath(path))[1]
            format = ending[1:] if ending in ('.gguf', '.html') else 'hf'
        command('export', self.path, '--format', format, '-o', os.fspath(path), *words_of(settings))

    # ---- inside

    def _open(self) -> c_void_p:
        if not self._handle:
            raise Error('the model is closed', lib.INVALID)
        return self._handle

    def _own_session(self) -> Session:
        self._open()
        if self._session is None:
            self._session = Session(self, 1)
        return self._session

    def _text(self, function: str, *arguments: Any) -> bytes:
        text = lib.Text()
        lib.call(function, self._open(), *arguments, byref(text))
        return text.bytes()

    def _ids(self, text: Tokens) -> tuple[Any, int]:
        if isinstance(text, str):
            text = self.encode(text, special=True)
        return arrays.token_ids(text)

    def _request(self, prompt: Tokens, max_tokens: int, settings: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(prompt, str):
            ids, count = self._ids(prompt)
            prompt = ids[:count]
        return {'prompt': prompt, 'max_tokens': max_tokens, **settings}


class Session:
    """Requests of one model that are computed together. Not for two threads at the same time."""

    def __init__(self, model: Model, slots: int = 1) -> None:
        self._handle = c_void_p()
        self.model = model
        lib.call('start', model._open(), slots, byref(self._handle))
        # A long prompt returns to Python between its parts, which notices Ctrl-C.
        self._callbacks = lib.Callbacks()
        self._poll = lib.Poll(self._callbacks.wrapped(lambda _: None))
        lib.call('set_poll', self._handle, self._poll, None)

    def close(self) -> None:
        """Ends the session's requests."""
        if self._handle:
            lib.call('stop', self._handle)
            self._handle = c_void_p()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, '_handle', None) and lib._loaded is not None:
            with contextlib.suppress(Error):
                self.close()

    def submit(self, request: Mapping[str, Any]) -> int:
        """Queues a completion request and returns its id."""
        data, id = json.dumps(request).encode(), c_uint64()
        lib.call('submit', self._open(), data, len(data), byref(id))
        return id.value

    def step(self) -> list[dict[str, Any]]:
        """Computes the next token of every request and returns the events; none when all are done."""
        text = lib.Text()
        if lib.library().thimble_step(self._open(), byref(text)) != lib.OK:
            self._callbacks.raise_error()
            raise lib.last_error()
        events: list[dict[str, Any]] = json.loads(text.bytes())
        return events

    def cancel(self, id: int) -> None:
        """Ends a request. Unknown and finished requests are ignored."""
        lib.call('cancel', self._open(), id)

    def complete(self, request: Mapping[str, Any]) -> Completion:
        """Runs a request to its end and returns the first choice."""
        pieces: list[str] = []
        tokens: list[int] = []
        scores: list[dict[str, Any]] = []
        last: dict[str, Any] = {}
        for event in self._events(request):
            if event['choice'] == 0:
                if event['tokens']:
                    pieces.append(event['text'])
                elif event['text']:  # held back until the end
                    pieces[-1:] = [''.join(pieces[-1:]) + event['text']]
                tokens += event['tokens']
                scores += event.get('logprobs', [])
                last = event
        return Completion(''.join(pieces), tokens, last.get('finish_reason', 'cancelled'), scores,
                          last.get('usage', {}), pieces)

    def stream(self, request: Mapping[str, Any]) -> Iterator[str]:
        """Runs a request and yields the text of its first choice in pieces."""
        for event in self._events(request):
            if event['choice'] == 0 and event['text']:
                yield event['text']

    def _events(self, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        id = self.submit(request)
        done = False
        try:
            while not done:
                events = self.step()
                done = not events
                for event in events:
                    if event['request'] != id:
                        continue
                    if 'error' in event:
                        raise Error(event['error'])
                    yield event
        finally:
            if not done and self._handle:
                self.cancel(id)

    def _open(self) -> c_void_p:
        if not self._handle:
            raise Error('the session is closed', lib.INVALID)
        return self._handle
