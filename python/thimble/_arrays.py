"""Arrays of other packages as arguments, and arrays as results. NumPy is optional."""
from __future__ import annotations

import array
import ctypes
import functools
import sys
from ctypes import POINTER, c_float, c_int32
from typing import Any

from ._library import INVALID, Error

LARGEST = 2**31 - 1


@functools.lru_cache(maxsize=None)
def numpy() -> Any:
    """NumPy, or None. Imported at the first use, because that takes longer than all the rest."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def token_ids(values: Any) -> tuple[Any, int]:
    """Token ids as an array of C's int32_t and their number.

    Takes sequences of integers, arrays of integers with the buffer protocol (NumPy, array.array) and
    tensors with DLPack (PyTorch, JAX). A contiguous array of 32-bit integers is not copied.
    """
    if isinstance(values, (bytes, bytearray)):
        raise Error('expected a text or token ids, found bytes', INVALID, 'decode them first')
    if _is_numpy(values):
        return _of_numpy(values)
    if hasattr(values, '__dlpack__'):
        if numpy() is not None:
            return _of_numpy(_from_dlpack(values))
        values = values.tolist()
    try:
        view = memoryview(values)
    except TypeError:
        return _of_list(values)
    if view.ndim != 1 or _native(view.format) not in tuple('bBhHiIlLqQ'):
        raise Error(f'expected a one-dimensional array of integers, found {view.ndim} dimensions of "{view.format}"',
                    INVALID)
    if _native(view.format) == 'i' and view.c_contiguous and not view.readonly:
        return (c_int32 * len(view)).from_buffer(view), len(view)
    return _of_list(view.tolist())


def floats(count: int) -> tuple[Any, Any]:
    """A new array of floats, and a pointer to its memory."""
    if numpy() is None:
        plain = (c_float * count)()
        return plain, plain
    values = numpy().empty(count, dtype=numpy().float32)
    return values, values.ctypes.data_as(POINTER(c_float))


def floats_in(out: Any, count: int) -> Any:
    """A pointer to the memory of `out`, the caller's array for `count` floats."""
    try:
        view = memoryview(out)
    except TypeError:
        raise Error('expected an array with the buffer protocol for out, such as one of NumPy', INVALID) from None
    if _native(view.format) != 'f' or not view.c_contiguous or view.readonly:
        raise Error(f'expected a writable, contiguous array of float32 for out, found "{view.format}"', INVALID)
    if view.nbytes != 4 * count:
        raise Error(f'expected an array of {count} floats for out, found {view.nbytes // 4}', INVALID)
    return (c_float * count).from_buffer(view)


def _native(format: str) -> str:
    """The format of a buffer's items without the mark of this machine's byte order."""
    return format.lstrip('@=<' if sys.byteorder == 'little' else '@=>')


def _is_numpy(values: Any) -> bool:
    loaded = sys.modules.get('numpy')  # without it, no argument is an array of NumPy
    return loaded is not None and isinstance(values, loaded.ndarray)


def _from_dlpack(values: Any) -> Any:
    try:
        return numpy().from_dlpack(values)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise Error(f'expected a tensor of integers in the memory of the CPU: {error}', INVALID) from None


def _of_numpy(values: Any) -> tuple[Any, int]:
    np = numpy()
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise Error(f'expected a one-dimensional array of integers, found {values.ndim} dimensions of {values.dtype}',
                    INVALID)
    if values.size and (values.min() < 0 or values.max() > LARGEST):
        raise _out_of_range(int(values.min() if values.min() < 0 else values.max()))
    values = np.ascontiguousarray(values, dtype=np.int32)
    return values.ctypes.data_as(POINTER(c_int32)), len(values)


def _of_list(values: Any) -> tuple[Any, int]:
    try:
        ids = array.array('i', values)
    except OverflowError:
        raise _out_of_range(next(value for value in values if not 0 <= value <= LARGEST)) from None
    except (TypeError, ValueError):
        raise Error('expected a text or token ids', INVALID) from None
    return (c_int32 * len(ids)).from_buffer(ids), len(ids)


def _out_of_range(value: Any) -> Error:
    return Error(f'expected token ids from 0 to {LARGEST}, found {value}', INVALID)


assert ctypes.sizeof(c_int32) == array.array('i').itemsize
