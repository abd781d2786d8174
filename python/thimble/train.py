"""Training, and every other command of the program."""
from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import byref, c_char_p
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from . import _library as lib
from ._library import Error
from .model import Model, _Raising, load


@dataclass(frozen=True)
class Step:
    """After each step. `loss` is in nats per token."""
    step: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Validation:
    step: int
    loss: float
    bits_per_byte: float | None
    best: bool


_FLAGS = ('checkpoint_activations', 'chat', 'force', 'skip_long', 'tensorboard')


class Run:
    """A run that has ended. `path` is its folder; `model` opens its best checkpoint."""

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

    def __repr__(self) -> str:
        return f'<thimble.Run {self.path!r}: {self.result["status"]}, {self.steps} steps>'

    def _repr_html_(self) -> str:
        report = os.path.join(self.path, 'report.html')
        return f'{self!r} <a href="{report}">report</a>'.replace('<thimble', '&lt;thimble')


def train(data: str | os.PathLike[str] | None = None, *, output: str | os.PathLike[str] | None = None,
          resume: str | os.PathLike[str] | None = None, on_step: Callable[[Step], Any] | None = None,
          on_validation: Callable[[Validation], Any] | None = None, quiet: bool = True, **settings: Any) -> Run:
    """Trains a model, like `thimble train`, and returns the run.

    Settings are the options of `thimble train`: preset="llama", steps=300, tokenizer="bpe:1024",
    lr=0.001. on_step and on_validation may return False to end the run after its state is saved.
    Ctrl-C does the same and raises Interrupted, a KeyboardInterrupt; train(resume=run) continues.
    """
    words = ['train', '--json']
    for name, value in (('--data', data), ('--resume', resume), ('--output', output)):
        if value is not None:
            words += [name, os.fspath(value)]
    # Options that are a flag alone; other settings with True and False are keys of the configuration.
    for name in [name for name, value in settings.items() if isinstance(value, bool) and name not in _FLAGS]:
        words += ['--set', f'{name}={str(settings.pop(name)).lower()}']
    words += words_of(settings)

    def show(event: Mapping[str, Any]) -> Any:
        if event['event'] == 'step' and on_step:
            return on_step(Step(event['step'], event['train_loss'], event['seconds']))
        if event['event'] == 'validation' and on_validation:
            return on_validation(Validation(event['step'], event['val_loss'], event['val_bpb'], event['best']))
        return None

    printed = command(*words, on_event=show, quiet=quiet)
    result = json.loads(printed)
    checkpoint = result['checkpoint']  # RUN/checkpoints/FILE
    return Run(os.path.dirname(os.path.dirname(checkpoint)), result)


def command(*words: str, on_event: Callable[[Mapping[str, Any]], Any] | None = None, quiet: bool = True) -> str:
    """Runs a command of the program in this process and returns what it prints:
    command("eval", "runs/book", "--json"). Lines for people go to stderr unless `quiet`."""
    encoded = [os.fsencode(word) for word in words]
    array = (c_char_p * len(encoded))(*encoded)
    output = lib.Text()
    with _Raising() as raising:
        def on_log(_: Any, line: int, size: int) -> None:
            if not quiet:
                print(ctypes.string_at(line, size).decode('utf-8', 'replace'), file=sys.stderr)

        def event(_: Any, text: int, size: int) -> Any:
            return on_event(json.loads(ctypes.string_at(text, size))) if on_event else None

        watch = lib.Watch(None, lib.LogLine(on_log), lib.Event(raising.wrapped(event)))
        status = lib.library().thimble_command(array, len(encoded), byref(watch), byref(output))
    # on_event may end a command, which then prints its result as usual.
    if status != lib.OK and not (status == lib.INTERRUPTED and raising.ended):
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


__all__ = ['Error', 'Run', 'Step', 'Validation', 'command', 'train', 'words_of']
