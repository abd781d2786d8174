"""Models: text in and out, logits, scores."""
from __future__ import annotations

import ctypes
import functools
import json
import math
import os
import sys
from ctypes import byref, c_float, c_int32, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Literal, Mapping, Sequence, Union, overload

from . import _library as lib
from ._library import Error

Tokens = Union[str, Sequence[int], Any]  # text, a sequence of ids, or an array of integers
Message = Mapping[str, str]


@dataclass(frozen=True)
class Completion:
    """A generated text. `finish_reason` is "stop" or "length"."""
    text: str
    tokens: list[int]
    finish_reason: str
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text."""
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


def load(path: str | os.PathLike[str], *, device: str = 'auto', dtype: str = 'auto',
         threads: int | None = None) -> Model:
    """Opens a run folder, checkpoint, artifact, GGUF file or Hugging Face folder."""
    return Model(path, device=device, dtype=dtype, threads=threads)


class Model:
    """An open model. Close it with close(), or use it in a `with` statement."""

    def __init__(self, path: str | os.PathLike[str], *, device: str = 'auto', dtype: str = 'auto',
                 threads: int | None = None) -> None:
        self._handle = c_void_p()
        self._session: Session | None = None
        self.path = os.fspath(path)
        options: dict[str, Any] = {'device': device, 'dtype': dtype}
        if threads is not None:
            options['threads'] = threads
        lib.call('open', os.fsencode(path), json.dumps(options).encode(), byref(self._handle))
        self.facts: dict[str, Any] = json.loads(self._text('facts'))

    # ---- its life

    def close(self) -> None:
        """Frees the model. Calls afterwards raise an Error."""
        if self._session:
            self._session.close()
            self._session = None
        if self._handle:
            lib.library().thimble_close(self._handle)
            self._handle = c_void_p()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, '_handle', None) and lib._loaded is not None:
            self.close()

    def __repr__(self) -> str:
        if not self._handle:
            return f'<thimble.Model {self.path!r}, closed>'
        facts = self.facts
        return (f'<thimble.Model {self.path!r}: {facts["architecture"]}, {facts["parameters"]:,} parameters, '
                f'context {facts["context"]}, vocabulary {facts["vocabulary"]}, {facts["dtype"]} on {facts["device"]}>')

    def _repr_html_(self) -> str:
        import html
        rows = ''.join(f'<tr><th style="text-align:left">{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>'
                       for name, value in self.facts.items() if name != 'config')
        return f'<table>{rows}</table>'

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
        of special tokens in it."""
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

    def logits(self, text: Tokens) -> Any:
        """The logits after each token: shape (tokens, vocabulary). A text begins with bos where the model's
        training texts do."""
        ids, count = self._ids(text)
        array, pointer = _floats(count * self.vocabulary)
        lib.call('logits', self._open(), ids, count, pointer, count * self.vocabulary)
        if _numpy() is not None:
            return array.reshape(count, self.vocabulary)
        return [list(array[i * self.vocabulary:(i + 1) * self.vocabulary]) for i in range(count)]

    def logprobs(self, text: Tokens) -> Any:
        """The natural log-probability of each token after the first, given those before it."""
        ids, count = self._ids(text)
        array, pointer = _floats(max(count - 1, 0))
        lib.call('logprobs', self._open(), ids, count, pointer, max(count - 1, 0))
        return array if _numpy() is not None else list(array)

    def score(self, text: str, *, on_progress: Callable[[int, int], None] | None = None) -> Score:
        """How well the model predicts a text of any length."""
        data, facts = text.encode(), lib.ScoreFacts()
        with _Raising() as raising:
            show = raising.wrapped(lambda _, done, total: on_progress and on_progress(done, total))
            status = lib.library().thimble_score_text(self._open(), data, len(data), lib.Progress(show), None,
                                                      byref(facts))
        if status != lib.OK:
            raise lib.last_error()
        return Score(facts.nats, facts.tokens, facts.bytes)

    # ---- generating

    def session(self, slots: int = 1) -> Session:
        """A session of its own, for requests that run side by side or in another thread."""
        return Session(self, slots)

    def generate(self, prompt: Tokens = '', *, max_tokens: int = 256, **settings: Any) -> Completion:
        """Continues a text. Settings are those of a completion request of the HTTP API: temperature, top_p,
        top_k, min_p, seed, stop, logprobs, and so on."""
        return self._own_session().complete(self._request(prompt, max_tokens, settings))

    def stream(self, prompt: Tokens = '', *, max_tokens: int = 256, **settings: Any) -> Iterator[str]:
        """Like generate(), but yields pieces of the text as they are generated."""
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
        force=True. Returns its report."""
        from .train import command, words_of
        return dict(json.loads(command('pack', self.path, '-o', os.fspath(path), '--json', *words_of(settings))))

    def export(self, path: str | os.PathLike[str], *, format: str | None = None, **settings: Any) -> None:
        """Exports the model, like `thimble export`. The format follows from the name: .gguf, else a Hugging
        Face folder."""
        from .train import command, words_of
        if format is None:
            format = 'gguf' if os.fspath(path).endswith('.gguf') else 'hf'
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
        numpy = sys.modules.get('numpy')  # without it, no argument is an array of NumPy
        if numpy is not None and isinstance(text, numpy.ndarray):
            if text.ndim != 1 or not numpy.issubdtype(text.dtype, numpy.integer):
                raise Error(f'expected a one-dimensional array of integers, found {text.ndim} dimensions of {text.dtype}',
                            lib.INVALID)
            array = numpy.ascontiguousarray(text, dtype=numpy.int32)
            return array.ctypes.data_as(ctypes.POINTER(c_int32)), len(array)
        ids = text.tolist() if hasattr(text, 'tolist') else list(text)
        try:
            return (c_int32 * len(ids))(*ids), len(ids)
        except TypeError:
            raise Error('expected a text or token ids', lib.INVALID) from None

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

    def close(self) -> None:
        if self._handle:
            lib.library().thimble_stop(self._handle)
            self._handle = c_void_p()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        # The model may be gone already if both die in a cycle; it frees its sessions' memory.
        if getattr(self, '_handle', None) and lib._loaded is not None and self.model._handle:
            self.close()

    def submit(self, request: Mapping[str, Any]) -> int:
        """Queues a completion request and returns its id."""
        if not self._handle:
            raise Error('the session is closed', lib.INVALID)
        data, id = json.dumps(request).encode(), c_uint64()
        lib.call('submit', self._handle, data, len(data), byref(id))
        return id.value

    def step(self) -> list[dict[str, Any]]:
        """Computes the next token of every request and returns the events; none when all are done."""
        text = lib.Text()
        lib.call('step', self._handle, byref(text))
        events: list[dict[str, Any]] = json.loads(text.bytes())
        return events

    def cancel(self, id: int) -> None:
        lib.call('cancel', self._handle, id)

    def complete(self, request: Mapping[str, Any]) -> Completion:
        """Runs a request to its end and returns the first choice."""
        text, tokens, scores, last = [], [], [], {}
        for event in self._events(request):
            if event['choice'] == 0:
                text.append(event['text'])
                tokens += event['tokens']
                scores += event.get('logprobs', [])
                last = event
        return Completion(''.join(text), tokens, last.get('finish_reason', 'cancelled'), scores, last.get('usage', {}))

    def stream(self, request: Mapping[str, Any]) -> Iterator[str]:
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


class _Raising:
    """Keeps the exception of a callback, ends the call with it, and raises it afterwards."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.ended = False  # by a result of False

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., int]:
        def called(*arguments: Any) -> int:
            try:
                self.ended = function(*arguments) is False
                return int(self.ended)
            except BaseException as error:  # also KeyboardInterrupt
                self.error = error
                return 1
        return called

    def __enter__(self) -> _Raising:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.error is not None:
            raise self.error


@functools.lru_cache(maxsize=None)
def _numpy() -> Any:
    """NumPy, or None. Imported at the first use, because that takes longer than all the rest."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _floats(count: int) -> tuple[Any, Any]:
    """An array of floats and a pointer to its memory."""
    numpy = _numpy()
    if numpy is None:
        array = (c_float * count)()
        return array, array
    values = numpy.empty(count, dtype=numpy.float32)
    return values, values.ctypes.data_as(ctypes.POINTER(c_float))
