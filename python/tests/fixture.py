"""What the tests share: a small model, trained once per process."""
import atexit
import functools
import os
import sys
import tempfile
from pathlib import Path

# The tests run twice: as on a machine with NumPy and as on one without.
if os.environ.get('THIMBLE_TEST_WITHOUT_NUMPY'):
    sys.modules['numpy'] = None
try:
    import numpy
except ImportError:
    numpy = None

import thimble  # noqa: E402

TINY = dict(layers=1, dim=32, heads=2, kv_heads=1, context=32, steps=12, val_every=6, batch_tokens=256, dtype='f32')
TEXT = ''.join(f'the cat sat on the mat {i % 7}.\n' for i in range(400))


class Trained:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        atexit.register(self.folder.cleanup)
        self.data = self.path('cats.txt')
        Path(self.data).write_text(TEXT)
        self.steps = []
        self.run = thimble.train(data=self.data, output=self.path('runs/cats'), on_step=self.steps.append, **TINY)
        self.model = thimble.load(self.run.path, device='cpu', dtype='f32')

    def path(self, name):
        return os.path.join(self.folder.name, name)


@functools.lru_cache(maxsize=None)
def trained():
    return Trained()


def child(program, **environment):
    """A Python program of its own: (command line, environment) for subprocess."""
    return [sys.executable, '-c', program], {**os.environ, **environment}
