"""Training, and every other command of the program."""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import sys
import weakref
from ctypes import byref, c_char_p, c_void_p
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

from . import _library as lib
from . import _show as show
from ._library import Error
from .model import Model, load

# A path, the bytes of a text, texts, or chats.
Data = Union[str, 'os.PathLike[str]', bytes, Sequence[Any]]


@dataclass(frozen=True)
class Step:
    """A step of training. `loss` is in nats per token; `seconds` and `tokens` are of this step."""
    step: int
    loss: float
    seconds: float
    tokens: int = 0
    grad_norm: float = 0.0
    lr_multiplier: float = 1.0


@dataclass(frozen=True)
class Validation:
    """A validation. `best`: the loss is the lowest so far."""
    step: int
    loss: float
    bits_per_byte: float | None
    best: bool


@dataclass(frozen=True)
class Saved:
    """A checkpoint of this step was written."""
    step: int


class Run:
    """A run that has ended. `path` is its folder; `model` opens its best checkpoint.

    >>> run.steps, run.bits_per_byte > 0
    (12, True)
    >>> run.model.is_chat
    False
    """

    def __init__(self, path: str, result: Mapping[str, Any]) -> None:
        self.path = path
        self.result = dict(result)
        self._model: Model | None = None

    @property
    def model(self) -> Model:
        if self._model is None:
            self._model = load(self.path)
        return self._model

    @property
    def steps(self) -> int:
        return int(self.result['steps'])

    @property
    def validation_loss(self) -> float | None:
        """The lowest, in nats per token."""
        return self.result.get('best_val_loss')

    @property
    def bits_per_byte(self) -> float | None:
        """Of the last validation."""
        return self.result.get('val_bpb')

    def curve(self) -> show.Curve:
        """The losses of all steps and validations, from metrics.jsonl. A notebook draws them."""
        curve = show.Curve(os.path.basename(self.path))
        with open(os.path.join(self.path, 'metrics.jsonl'), encoding='utf-8') as file:
            for line in file:
                event = json.loads(line)
                if event.get('event') == 'step':
                    curve.steps.append((event['step'], event['loss']))
                elif event.get('event') == 'validation':
                    curve.validations.append((event['step'], event['val_loss']))
        return curve

    def __repr__(self) -> str:
        return f'<thimble.Run {self.path!r}: {self.result["status"]}, {self.steps} steps>'

    def _repr_html_(self) -> str:
        facts = [('run', self.path), ('status', self.result['status']), ('steps', self.steps)]
        if self.bits_per_byte is not None:
            facts.append(('bits per byte', f'{self.bits_per_byte:.4f}'))
        return show.table(facts) + self.curve()._repr_html_()


class Training:
    """A run, step by step. Iterating computes the next step; the events are Step, Validation and Saved.

    >>> with thimble.Training("cats.txt", output="runs/steps", layers=1, dim=32, heads=2, context=32,
    ...                       batch_tokens=256, steps=100) as training:
    ...     for event in training:
    ...         if event == thimble.Saved(3) or event.step == 5:
    ...             break
    ...         if isinstance(event, thimble.Step) and event.step == 3:
    ...             training.save()
    ...     run = training.stop()
    >>> run.steps
    3

    Ctrl-C ends the run after its state is saved and raises Interrupted, a KeyboardInterrupt.

    `data` is a path, the bytes of a text, a list of texts, or a list of chats, which are lists of messages.
    `config` is a TOML text or a mapping with the keys of the configuration reference. Other settings are
    the options of `thimble train`: preset="llama", steps=300, tokenizer="bpe:1024", lr=0.001.
    """

    def __init__(self, data: Data | None = None, *, output: str | os.PathLike[str] | None = None,
                 resume: str | os.PathLike[str] | None = None, config: str | Mapping[str, Any] | None = None,
                 quiet: bool = True, **settings: Any) -> None:
        self._handle = c_void_p()
        self._result: Run | None = None
        self._files: list[lib.MemoryFile] = []
        words: list[str] = []
        for name, value in (('--data', data), ('--val-data', settings.pop('val_data', None))):
            if value is not None:
                words += [name, self._path_of(value)]
        for name, path in (('--resume', resume), ('--output', output)):
            if path is not None:
                words += [name, os.fspath(path)]
        words += _train_words(settings)
        text = b'' if config is None else (config if isinstance(config, str) else json.dumps(dict(config))).encode()
        self._callbacks = lib.Callbacks()
        self._watch = lib.Watch(None, lib.LogLine(_log_to_stderr(quiet)), ctypes.cast(0, lib.Event))
        encoded = [os.fsencode(word) for word in words]
        status = lib.library().thimble_train_begin((c_char_p * len(encoded))(*encoded), len(encoded), text, len(text),
                                                   byref(self._watch), byref(self._handle))
        if status != lib.OK:
            self._close_files()
            raise lib.last_error()
        _open_trainings.add(self)

    def __iter__(self) -> Iterator[Step | Validation | Saved]:
        return self

    def __next__(self) -> Step | Validation | Saved:
        if not self._handle:
            raise StopIteration
        text = lib.Text()
        lib.call('train_next', self._handle, byref(text))
        if not text.size:
            self.stop()
            raise StopIteration
        event = json.loads(text.bytes())
        if event['event'] == 'step':
            return Step(event['step'], event['train_loss'], event['seconds'], event['tokens'], event['grad_norm'],
                        event['lr_multiplier'])
        if event['event'] == 'validation':
            return Validation(event['step'], event['val_loss'], event['val_bpb'], event['best'])
        return Saved(event['step'])

    def save(self) -> None:
        """Writes a checkpoint of the steps made so far."""
        if not self._handle:
            raise Error('the run has ended, and its state is saved', lib.INVALID)
        lib.call('train_save', self._handle)

    def stop(self) -> Run:
        """Ends the run after its state is saved; train(resume=run.path) continues it."""
        if self._result is None:
            if not self._handle:
                raise Error('the run has failed', lib.INVALID)
            handle, self._handle = self._handle, c_void_p()
            text = lib.Text()
            try:
                lib.call('train_end', handle, byref(text))
                self._result = _run_of(text.bytes())
            finally:
                _open_trainings.discard(self)
                self._close_files()
        return self._result

    @property
    def run(self) -> Run:
        """The run, after its end."""
        if self._result is None:
            raise Error('the run has not ended', lib.INVALID, 'call stop()')
        return self._result

    def close(self) -> None:
        """Like stop(), also after an error."""
        if self._handle:
            with contextlib.suppress(Error, lib.Interrupted):
                self.stop()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, '_handle', None) and lib._loaded is not None:
            self.close()

    def __repr__(self) -> str:
        return f'<thimble.Training, ended: {self._result!r}>' if self._result else '<thimble.Training, in progress>'

    def _path_of(self, data: Data) -> str:
        if isinstance(data, (str, os.PathLike)):
            return os.fspath(data)
        name, content = _content_of(data)
        self._files.append(lib.MemoryFile(name, content))
        return self._files[-1].path

    def _close_files(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()


# Their threads must end before the interpreter does.
_open_trainings: weakref.WeakSet[Training] = weakref.WeakSet()


@atexit.register
def _close_trainings() -> None:
    for training in list(_open_trainings):
        training.close()


def train(data: Data | None = None, *, output: str | os.PathLike[str] | None = None,
          resume: str | os.PathLike[str] | None = None, config: str | Mapping[str, Any] | None = None,
          on_step: Callable[[Step], Any] | None = None, on_validation: Callable[[Validation], Any] | None = None,
          quiet: bool = True, progress: bool | None = None, **settings: Any) -> Run:
    """Trains a model, like `thimble train`, and returns the run.

    >>> run = thimble.train("cats.txt", output="runs/short", config={"layers": 1, "dim": 32, "heads": 2,
    ...                     "context": 32, "batch_tokens": 256}, steps=5, on_step=lambda step: step.step < 3)
    >>> run.steps
    3

    Arguments are those of Training. on_step and on_validation may return False to end the run after its
    state is saved. Ctrl-C does the same and raises Interrupted, a KeyboardInterrupt; train(resume=run.path)
    continues. A notebook draws the losses while the run goes on, a terminal shows a bar with tqdm if that is
    installed; `progress` turns both on or off.
    """
    total = settings.get('steps')
    curve = show.Curve() if progress is not False and show.in_notebook() else None
    with Training(data, output=output, resume=resume, config=config, quiet=quiet, **settings) as training, \
            show.bar('train', 'steps', False if curve else progress, total if isinstance(total, int) else None) as bar:
        if curve:
            curve.show()
        for event in training:
            goes_on: Any = None
            if isinstance(event, Step):
                bar.to(event.step, note=f'loss {event.loss:.4f}')
                if curve:
                    curve.steps.append((event.step, event.loss))
                    curve.redraw()
                goes_on = on_step(event) if on_step else None
            elif isinstance(event, Validation):
                if curve:
                    curve.validations.append((event.step, event.loss))
                goes_on = on_validation(event) if on_validation else None
            if goes_on is False:
                break
        if curve:
            curve.redraw(every=0)
        return training.stop()


def command(*words: str, on_event: Callable[[Mapping[str, Any]], Any] | None = None, quiet: bool = True) -> str:
    """Runs a command of the program in this process and returns what it prints. Lines for people go to
    stderr unless `quiet`. on_event receives the events of training and may return False to end it.

    >>> import json
    >>> json.loads(thimble.command("inspect", "runs/cats", "--json"))["format"]
    'safetensors'
    """
    encoded = [os.fsencode(word) for word in words]
    array = (c_char_p * len(encoded))(*encoded)
    output = lib.Text()
    with lib.Callbacks() as callbacks:
        def event(_: Any, text: int, size: int) -> Any:
            return on_event(json.loads(ctypes.string_at(text, size))) if on_event else None

        watch = lib.Watch(None, lib.LogLine(_log_to_stderr(quiet)), lib.Event(callbacks.wrapped(event)))
        status = lib.library().thimble_command(array, len(encoded), byref(watch), byref(output))
    # on_event may end a command, which then prints its result as usual.
    if status != lib.OK and not (status == lib.INTERRUPTED and callbacks.ended):
        raise lib.last_error()
    return output.bytes().decode('utf-8', 'replace')


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """Settings as the options of a command: {"batch_tokens": 4096, "force": True} -> --batch-tokens 4096 --force."""
    words = []
    for name, value in settings.items():
        option = '--' + name.replace('_', '-')
        if value is True:
            words.append(option)
        elif isinstance(value, (list, tuple)):
            for one in value:
                words += [option, str(one)]
        elif value is not None and value is not False:
            words += [option, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return words


# Options of train that are a flag alone; other settings with True and False are keys of the configuration.
_FLAGS = ('checkpoint_activations', 'chat', 'force', 'skip_long', 'tensorboard')


def _train_words(settings: Mapping[str, Any]) -> list[str]:
    words, others = [], {}
    for name, value in settings.items():
        if isinstance(value, bool) and name not in _FLAGS:
            words += ['--set', f'{name}={str(value).lower()}']
        else:
            others[name] = value
    return words + words_of(others)


def _content_of(data: Any) -> tuple[str, bytes]:
    """Data in memory as a file: its name, whose end tells the format, and its bytes."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        content = bytes(data)
        return 'data.jsonl' if content.lstrip()[:1] in (b'{', b'[') else 'data.txt', content
    records = list(data)
    if all(isinstance(record, str) for record in records):
        records = [{'text': record} for record in records]
    elif all(isinstance(record, (list, tuple)) for record in records):
        records = [[dict(message) for message in chat] for chat in records]
    else:
        raise Error('expected a path, the bytes of a text, texts, or chats as training data', lib.INVALID)
    return 'data.jsonl', ''.join(json.dumps(record) + '\n' for record in records).encode()


def _run_of(printed: bytes) -> Run:
    result = json.loads(printed)
    # CHECKPOINT is RUN/checkpoints/FILE.
    return Run(os.path.dirname(os.path.dirname(result['checkpoint'])), result)


def _log_to_stderr(quiet: bool) -> Callable[[Any, int, int], None]:
    def log(_: Any, line: int, size: int) -> None:
        if not quiet:
            print(ctypes.string_at(line, size).decode('utf-8', 'replace'), file=sys.stderr)
    return log
