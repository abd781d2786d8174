"""Wrong use, as docs/reference/c.md lists it, and the examples in the documentation of the package."""
import doctest
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock
from pathlib import Path

import thimble
from fixture import child, trained
from thimble import _library as lib

ROOT = Path(__file__).resolve().parents[2]


class BadInput(unittest.TestCase):
    def setUp(self):
        self.trained = trained()
        self.model = self.trained.model

    def fails(self, code, call, part=''):
        with self.assertRaises(thimble.Error) as caught:
            call()
        self.assertEqual(caught.exception.code, code)
        self.assertIn(part, caught.exception.message)

    def test_a_library_of_another_major_version_is_refused(self):
        if not shutil.which('cc'):
            self.skipTest('cc is not installed')
        with tempfile.TemporaryDirectory() as folder:
            source, library = os.path.join(folder, 'other.c'), os.path.join(folder, 'libthimble.so')
            Path(source).write_text('unsigned thimble_version(void) { return 9002001; }\n')
            subprocess.run(['cc', '-shared', '-fPIC', source, '-o', library], check=True)
            words, environment = child('import thimble\ntry: thimble.load("x")\nexcept thimble.Error as e: print(e.code, e)',
                                       THIMBLE_LIBRARY=library, LD_PRELOAD='')
            done = subprocess.run(words, env=environment, capture_output=True, text=True)
            self.assertIn('2 ', done.stdout)
            self.assertIn('version 9.2.1 of the interface, expected 0.x', done.stdout)
            self.assertIn('same release', done.stdout)

    def test_a_child_after_fork_gets_errors(self):
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            codes = []
            for call in (lambda: self.model.encode('a'), lambda: thimble.load(self.trained.run.path),
                         lambda: thimble.command('inspect', 'x'), lambda: self.model.session(),
                         lambda: thimble.Training(b'text')):
                try:
                    call()
                    codes.append(0)
                except thimble.Error as error:
                    codes.append(error.code)
            os.write(write, repr(codes).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            self.assertEqual(pipe.read(), repr([thimble.INVALID] * 5))
        os.waitpid(process, 0)
        self.assertEqual(self.model.decode(self.model.encode('a')), 'a')

    def test_two_threads_in_one_session(self):
        codes = []
        for _ in range(200):
            with self.model.session() as session:
                session.submit({'prompt': 'the', 'max_tokens': 25, 'ignore_eos': True})
                start = threading.Barrier(2)

                def step_all():
                    start.wait()
                    for _ in range(40):
                        try:
                            session.step()
                        except thimble.Error as error:
                            codes.append(error.code)
                threads = [threading.Thread(target=step_all) for _ in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            if codes:
                break
        self.assertEqual(set(codes), {thimble.BUSY})

    def test_a_model_with_sessions_stays_open(self):
        model = thimble.load(self.trained.run.path)
        session = model.session()
        self.fails(thimble.BUSY, model.close, '1 session')
        self.assertEqual(model.decode(model.encode('a')), 'a')
        session.close()
        session.close()
        self.fails(thimble.INVALID, session.step, 'closed')
        self.fails(thimble.INVALID, lambda: session.submit({}), 'closed')
        model.close()
        self.fails(thimble.INVALID, model.session, 'closed')

    def test_closed_and_foreign_handles(self):
        text, model = lib.Text(), thimble.load(self.trained.run.path)
        handle = type(model._handle)(model._handle.value)
        model.close()
        for pointer, part in ((handle, 'has been closed'), (None, 'NULL'), (12345, 'never was one')):
            self.fails(thimble.INVALID, lambda: lib.call('facts', pointer, lib.byref(text)), part)
            self.fails(thimble.INVALID, lambda: lib.call('step', pointer, lib.byref(text)))
            self.fails(thimble.INVALID, lambda: lib.call('train_next', pointer, lib.byref(text)))
        for name in ('close', 'stop', 'file_close'):
            self.fails(thimble.INVALID, lambda: lib.call(name, handle))
            lib.call(name, None)

    def test_text_that_is_not_utf8(self):
        ids, count, facts = (lib.c_int32 * 9)(), lib.c_size_t(), lib.ScoreFacts()
        for data in (b'\xff', b'a\xc3', b'\xed\xa0\x80'):
            self.fails(thimble.INVALID, lambda: lib.call('encode', self.model._handle, data, len(data), 0, ids, 9,
                                                         lib.byref(count)), 'UTF-8')
            self.fails(thimble.INVALID, lambda: lib.call('score_text', self.model._handle, data, len(data),
                                                         lib.Progress(), None, lib.byref(facts)), 'UTF-8')
            self.fails(thimble.INVALID, lambda: lib.call('submit', self.model._own_session()._handle, data, len(data),
                                                         lib.byref(lib.c_uint64())), 'UTF-8')
        with self.assertRaises(UnicodeEncodeError):
            self.model.encode('\ud800')

    def test_exceptions_in_callbacks_end_the_call(self):
        def fail(*_):
            raise ValueError('from the callback')
        for call in (lambda: self.model.score('the cat', on_progress=fail),
                     lambda: thimble.command('train', '--data', self.trained.data, '-o', self.trained.path('raises'),
                                             '--steps', '2', '--dim', '16', '--layers', '1', on_event=fail)):
            with self.assertRaisesRegex(ValueError, 'from the callback'):
                call()
        self.assertGreater(self.model.score('the cat').nats, 0)

    def test_a_callback_that_uses_the_same_model_is_refused(self):
        self.fails(thimble.BUSY, lambda: self.model.score('the cat', on_progress=lambda *_: self.model.generate('a')),
                   'callback')
        self.fails(thimble.BUSY, lambda: self.model.score('the cat', on_progress=lambda *_: self.model.logits('a')),
                   'callback')


def load_tests(loader, tests, pattern):
    """Adds the examples in the docstrings, which use files of the current folder."""
    before = os.getcwd()

    def enter(test):
        os.chdir(trained().folder.name)
        test.globs.update(thimble=thimble, model=trained().model, run=trained().run)

    for module in ('thimble._library', 'thimble.model', 'thimble.training'):
        tests.addTests(doctest.DocTestSuite(module, setUp=enter, tearDown=lambda _: os.chdir(before)))
    return tests


class LanguageModelHarness(unittest.TestCase):
    """examples/python/lm_eval_model.py against stand-ins for the harness's modules, which no package of Debian
    has: its requests, and the relations that their answers must satisfy."""

    def setUp(self):
        self.model = trained().model
        model, registry = types.ModuleType('lm_eval.api.model'), types.ModuleType('lm_eval.api.registry')
        model.LM = object
        registry.register_model = lambda name: lambda kind: kind
        stand_ins = {'lm_eval': types.ModuleType('lm_eval'), 'lm_eval.api': types.ModuleType('lm_eval.api'),
                     'lm_eval.api.model': model, 'lm_eval.api.registry': registry}
        scope = {'__name__': 'example'}
        with unittest.mock.patch.dict(sys.modules, stand_ins):
            exec((ROOT / 'examples/python/lm_eval_model.py').read_text(), scope)
        self.harness = scope['ThimbleLM'](trained().run.path, dtype='f32')

    @staticmethod
    def requests(*arguments):
        return [types.SimpleNamespace(args=one) for one in arguments]

    def test_continuations(self):
        ids = self.model.encode('the cat sat', special=True)
        expected = sum(float(value) for value in self.model.logprobs(ids)[-4:])
        for context, rest in (('the cat', ' sat'), ('the cat ', 'sat')):
            [(value, greedy)] = self.harness.loglikelihood(self.requests((context, rest)))
            self.assertAlmostEqual(value, expected, places=5)
        text = self.model.generate('the cat', max_tokens=4, temperature=0).text
        answers = self.harness.loglikelihood(self.requests(('the cat', text), ('the cat', 'QZ'), ('', 'the')))
        self.assertEqual([greedy for _, greedy in answers], [True, False, False])

    def test_whole_texts(self):
        short, long = 'the cat sat', 'the cat sat on the mat 3. ' * 5
        values = self.harness.loglikelihood_rolling(self.requests((short,), (long,), ('',)))
        expected = sum(float(value) for value in self.model.logprobs(self.model.encode(short, special=True)))
        self.assertAlmostEqual(values[0], expected, places=5)
        self.assertEqual(values[2], 0)
        windows = self.harness._windows(long)
        self.assertEqual(sum(count for _, count in windows), len(self.model.encode(long)))
        self.assertEqual({len(tokens) for tokens, _ in windows}, {self.model.context})

    def test_texts_until_a_stop_string(self):
        whole, cut = self.harness.generate_until(self.requests(
            ('the cat', {'until': [], 'max_gen_toks': 8}), ('the cat', {'until': ['e', 't'], 'max_gen_toks': 8})))
        self.assertEqual(whole, self.model.generate('the cat', max_tokens=8, temperature=0).text)
        self.assertTrue(whole.startswith(cut) and 't' not in cut and 'e' not in cut, (whole, cut))


if __name__ == '__main__':
    unittest.main()
