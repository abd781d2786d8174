"""Arrays in and out, with NumPy and without it."""
import array
import ctypes
import unittest

import thimble
from fixture import numpy, trained


class Tensor:
    """As a tensor of PyTorch: DLPack and tolist(), but no buffer protocol."""

    def __init__(self, values, device=None):
        self.values, self.device = values, device

    def __dlpack__(self, **_):
        if self.device is not None:
            raise BufferError('the tensor is on a GPU')
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)

    def tolist(self):
        return [int(value) for value in self.values]


class Arrays(unittest.TestCase):
    def setUp(self):
        self.model = trained().model
        self.ids = self.model.encode('the cat')

    def refuses(self, values, part, code=thimble.INVALID, **settings):
        with self.assertRaises(thimble.Error) as caught:
            self.model.logits(values, **settings)
        self.assertEqual(caught.exception.code, code)
        self.assertIn(part, caught.exception.message)

    def test_lists_and_buffers_are_token_ids(self):
        expected = list(self.model.logprobs(self.ids))
        for values in (tuple(self.ids), array.array('i', self.ids), array.array('q', self.ids),
                       array.array('H', self.ids), memoryview(array.array('i', [0, *self.ids]))[1:],
                       memoryview(array.array('i', [token for id in self.ids for token in (id, 7)]))[::2],
                       iter(self.ids)):
            self.assertEqual(list(self.model.logprobs(values)), expected, values)

    def test_what_is_no_list_of_token_ids_is_an_error(self):
        self.refuses(array.array('f', [1, 2]), 'integers')
        self.refuses([1.5], 'token ids')
        self.refuses(['a'], 'token ids')
        self.refuses(b'the cat', 'bytes')
        self.refuses(17, 'token ids')
        self.refuses([2**31], str(2**31))
        self.refuses([-1], '-1')
        self.refuses([], '1 to 32 tokens')
        self.refuses([1] * 33, '1 to 32 tokens')
        self.refuses([257], 'vocabulary')
        self.refuses(memoryview(bytearray(8)).cast('B', (2, 4)), '2 dimensions')

    def test_results_can_be_written_to_an_array_of_the_caller(self):
        size = len(self.ids) * self.model.vocabulary
        out = (ctypes.c_float * size)()
        self.assertIs(self.model.logits(self.ids, out=out), out)
        row = self.model.logits(self.ids)[2]
        self.assertEqual(list(out[2 * len(row):3 * len(row)]), [float(value) for value in row])
        self.refuses(self.ids, f'{size} floats', out=(ctypes.c_float * (size - 1))())
        self.refuses(self.ids, 'float32', out=array.array('d', [0] * size))
        self.refuses(self.ids, 'float32', out=memoryview(bytes(4 * size)).cast('f'))
        self.refuses(self.ids, 'float32', out=memoryview(array.array('f', [0] * 2 * size))[::2])
        self.refuses(self.ids, 'buffer', out=[0.0] * size)

    @unittest.skipIf(numpy is not None, 'this run has NumPy')
    def test_without_numpy_results_are_lists(self):
        logits, logprobs = self.model.logits(self.ids), self.model.logprobs(self.ids)
        self.assertIsInstance(logits, list)
        self.assertEqual([len(row) for row in logits], [self.model.vocabulary] * len(self.ids))
        self.assertIsInstance(logprobs, list)
        self.assertEqual(self.model.logprobs(Tensor(self.ids)), logprobs)

    @unittest.skipIf(numpy is None, 'NumPy is not installed')
    def test_arrays_of_numpy(self):
        expected = list(self.model.logprobs(self.ids))
        logits = self.model.logits(numpy.array(self.ids))
        self.assertEqual((logits.shape, logits.dtype), ((len(self.ids), self.model.vocabulary), numpy.float32))
        for kind in ('int16', 'uint16', 'int32', '>i4', 'int64', 'uint64'):
            self.assertEqual(list(self.model.logprobs(numpy.array(self.ids, dtype=kind))), expected, kind)
        self.assertEqual(list(self.model.logprobs(numpy.repeat(self.ids, 2)[::2])), expected)
        for wrong in ([1.0], [True], [[1]], [2**40], [-1]):
            self.refuses(numpy.array(wrong), 'expected')

    @unittest.skipIf(numpy is None, 'NumPy is not installed')
    def test_contiguous_arrays_are_not_copied(self):
        from thimble import _arrays
        ids = numpy.array(self.ids, dtype=numpy.int32)
        pointer, count = _arrays.token_ids(ids)
        self.assertEqual((ctypes.addressof(pointer.contents), count), (ids.ctypes.data, len(ids)))
        out = numpy.empty((len(ids), self.model.vocabulary), dtype=numpy.float32)
        self.assertIs(self.model.logits(ids, out=out), out)
        self.assertTrue((out == self.model.logits(ids)).all())
        self.refuses(ids, 'contiguous', out=out.T)

    @unittest.skipIf(numpy is None, 'NumPy is not installed')
    def test_tensors_with_dlpack(self):
        expected = list(self.model.logprobs(self.ids))
        self.assertEqual(list(self.model.logprobs(Tensor(numpy.array(self.ids)))), expected)
        self.refuses(Tensor(numpy.array([1.0])), 'integers')
        self.refuses(Tensor(numpy.array(self.ids), device='cuda'), 'memory of the CPU')


if __name__ == '__main__':
    unittest.main()
