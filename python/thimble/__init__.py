"""Train, measure, pack and run small language models: thimble from Python.

    import thimble

    model = thimble.load("chat.thimble")
    print(model.generate("Once upon a time", max_tokens=80, seed=1).text)
    for piece in model.chat([{"role": "user", "content": "Hello"}], stream=True):
        print(piece, end="")
    model.logits("The cat")                      # shape (tokens, vocabulary)
    model.score("some text").bits_per_byte

    run = thimble.train(data="book.txt", preset="llama", steps=300, on_step=lambda s: print(s.loss))
    run.model.pack("book.thimble", bits=6)
    run.model.export("book.gguf")

The package needs nothing but Python and libthimble.so, which it looks for beside itself, in the
folder of the `thimble` program and where the system finds libraries. THIMBLE_LIBRARY names another
file. With NumPy installed, arrays of numbers are NumPy arrays; without it, they are lists.
"""
from ._library import BUSY, DIVERGED, FAILED, INTERRUPTED, INVALID, TOO_SMALL, Error, Interrupted, library_version
from .model import Completion, Model, Score, Session, load
from .training import Run, Saved, Step, Training, Validation, command, train

__version__ = '0.1.0'
__all__ = ['BUSY', 'Completion', 'DIVERGED', 'Error', 'FAILED', 'INTERRUPTED', 'INVALID', 'Interrupted', 'Model', 'Run',
           'Saved', 'Score', 'Session', 'Step', 'TOO_SMALL', 'Training', 'Validation', 'command', 'library_version',
           'load', 'train']
