"""The functions of libthimble.so (include/thimble.h) and the exceptions they become."""
from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Iterator

OK, FAILED, INVALID, DIVERGED, BUSY, TOO_SMALL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
MAJOR = 0  # of the interface that this package uses


class Error(Exception):
    """A failed call. `code` is a status of thimble.h, `hint` says what to do, `field` names a wrong setting.

    >>> try:
    ...     model.generate("the cat", temperature=-1)
    ... except thimble.Error as error:
    ...     print(error.code == thimble.INVALID, error.field)
    True temperature
    """

    def __init__(self, message: str, code: int = FAILED, hint: str = '', field: str = '') -> None:
        super().__init__(f'{message} ({hint})' if hint else message)
        self.message, self.code, self.hint, self.field = message, code, hint, field

    def __reduce__(self) -> tuple[Any, ...]:
        return Error, (self.message, self.code, self.hint, self.field)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a command. Training has saved its state, and resume=RUN continues it."""


class Text(ctypes.Structure):
    _fields_ = [('data', c_void_p), ('size', c_size_t)]

    def bytes(self) -> bytes:
        return ctypes.string_at(self.data, self.size) if self.data else b''


class _ErrorFacts(ctypes.Structure):
    _fields_ = [('status', c_int), ('message', c_char_p), ('hint', c_char_p), ('field', c_char_p)]


class ScoreFacts(ctypes.Structure):
    _fields_ = [('nats', c_double), ('tokens', c_uint64), ('bytes', c_uint64)]


Progress = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)
LogLine = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)
Event = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
Poll = ctypes.CFUNCTYPE(c_int, c_void_p)


class Watch(ctypes.Structure):
    _fields_ = [('user', c_void_p), ('log', LogLine), ('event', Event)]


# Every function returns a status, except those in _PLAIN.
_FUNCTIONS: dict[str, list[Any]] = {
    'open': [c_char_p, c_char_p, POINTER(c_void_p)],
    'open_bytes': [c_char_p, c_size_t, c_char_p, POINTER(c_void_p)],
    'close': [c_void_p],
    'facts': [c_void_p, POINTER(Text)],
    'encode': [c_void_p, c_char_p, c_size_t, c_int, POINTER(c_int32), c_size_t, POINTER(c_size_t)],
    'decode': [c_void_p, POINTER(c_int32), c_size_t, c_int, POINTER(Text)],
    'logits': [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_float), c_size_t],
    'logprobs': [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_float), c_size_t],
    'score_text': [c_void_p, c_char_p, c_size_t, Progress, c_void_p, POINTER(ScoreFacts)],
    'start': [c_void_p, c_uint32, POINTER(c_void_p)],
    'submit': [c_void_p, c_char_p, c_size_t, POINTER(c_uint64)],
    'stop': [c_void_p],
    'step': [c_void_p, POINTER(Text)],
    'run': [c_void_p, Event, c_void_p],
    'cancel': [c_void_p, c_uint64],
    'set_poll': [c_void_p, Poll, c_void_p],
    'command': [POINTER(c_char_p), c_size_t, POINTER(Watch), POINTER(Text)],
    'file_open': [c_char_p, c_char_p, c_size_t, POINTER(c_void_p), POINTER(Text)],
    'file_close': [c_void_p],
    'train_begin': [POINTER(c_char_p), c_size_t, c_char_p, c_size_t, POINTER(Watch), POINTER(c_void_p)],
    'train_next': [c_void_p, POINTER(Text)],
    'train_save': [c_void_p],
    'train_end': [c_void_p, POINTER(Text)],
}
_PLAIN: dict[str, tuple[Any, list[Any]]] = {
    'last_error': (POINTER(_ErrorFacts), []),
    'version': (c_uint32, []),
    'interrupt': (None, []),
}


def _candidates() -> Iterator[str]:
    named = os.environ.get('THIMBLE_LIBRARY')
    if named:
        yield named
        return
    name = 'libthimble.so.0'
    yield str(Path(__file__).resolve().parent / name)
    program = shutil.which('thimble')
    if program:
        folder = Path(program).resolve().parent
        yield str(folder / name)
        yield str(folder.parent / 'lib' / name)
    found = ctypes.util.find_library('thimble')
    if found:
        yield found


def _load() -> ctypes.CDLL:
    # Idle OpenMP threads otherwise spin for milliseconds. libgomp reads this when it is loaded.
    if 'OMP_WAIT_POLICY' not in os.environ:
        os.environ.setdefault('GOMP_SPINCOUNT', '1000')
    for path in _candidates():
        if os.path.sep in path and not os.path.exists(path):
            if os.environ.get('THIMBLE_LIBRARY'):
                raise Error(f'THIMBLE_LIBRARY names {path}, which does not exist', INVALID)
            continue
        try:
            library = ctypes.CDLL(path)
            version = library.thimble_version
        except (OSError, AttributeError) as error:
            raise Error(f'{path} is not a library of thimble: {error}', FAILED) from None
        version.restype, version.argtypes = c_uint32, []
        if version() // 1_000_000 != MAJOR:
            raise Error(f'{path} has version {version_text(version())} of the interface, expected {MAJOR}.x', INVALID,
                        'install the package and the library of the same release')
        for name, (result, arguments) in _PLAIN.items():
            function = getattr(library, 'thimble_' + name)
            function.restype, function.argtypes = result, arguments
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, 'thimble_' + name)
            function.restype, function.argtypes = c_int, arguments
        return library
    raise Error('libthimble.so.0 was not found', FAILED,
                'install thimble, or set THIMBLE_LIBRARY to the path of the library')


_loaded: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The library, loaded at the first use, so that importing the package is fast and never fails."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


def version_text(number: int) -> str:
    return f'{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}'


def library_version() -> str:
    """The version of the loaded library.

    >>> thimble.library_version().count(".")
    2
    """
    return version_text(library().thimble_version())


def call(name: str, *arguments: Any) -> None:
    """Calls thimble_NAME and raises an Error if it fails."""
    if getattr(library(), 'thimble_' + name)(*arguments) != OK:
        raise last_error()


def last_error() -> BaseException:
    error = library().thimble_last_error().contents
    text = [(part or b'').decode('utf-8', 'replace') for part in (error.message, error.hint, error.field)]
    if error.status == INTERRUPTED:
        return Interrupted()
    return Error(text[0], error.status, text[1], text[2])


class MemoryFile:
    """Bytes that have a path while this object is open."""

    def __init__(self, name: str, data: bytes) -> None:
        self._handle = c_void_p()
        path = Text()
        call('file_open', name.encode(), data, len(data), byref(self._handle), byref(path))
        self.path = os.fsdecode(path.bytes())

    def close(self) -> None:
        if self._handle:
            handle, self._handle = self._handle, c_void_p()
            call('file_close', handle)

    def __del__(self) -> None:
        if _loaded is not None and getattr(self, '_handle', None):
            self.close()


class Callbacks:
    """Functions for C. The first exception of one of them ends the call, and is raised after it.

    Calls return to Python between their parts, even where no callback was asked for: only then does Python
    notice Ctrl-C.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.ended = False  # by a result of False

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., int]:
        def called(*arguments: Any) -> int:
            try:
                self.ended = function(*arguments) is False
                return int(self.ended)
            except BaseException as error:  # also KeyboardInterrupt
                self.error = self.error or error
                return 1
        return called

    def raise_error(self) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def __enter__(self) -> Callbacks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.raise_error()
