"""Tests of the package: python3 -m unittest discover python/tests, with THIMBLE_LIBRARY and PYTHONPATH set."""
import gc
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import thimble
from fixture import TINY, child, trained


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.trained = trained()
        cls.data, cls.model, cls.run_, cls.path = cls.trained.data, cls.trained.model, cls.trained.run, cls.trained.path

    def test_training_reports_steps_and_opens_the_model(self):
        seen = self.trained.steps
        self.assertEqual([step.step for step in seen], list(range(1, 13)))
        self.assertGreater(seen[0].loss, seen[-1].loss)
        self.assertEqual(seen[0].tokens, 256)
        self.assertEqual(self.run_.steps, 12)
        self.assertGreater(self.run_.bits_per_byte, 0)
        self.assertIn('12 steps', repr(self.run_))

    def test_describes_the_model(self):
        self.assertEqual(self.model.context, 32)
        self.assertFalse(self.model.is_chat)
        self.assertIn(f'{self.model.parameters:,} parameters', repr(self.model))
        self.assertIn('<table>', self.model._repr_html_())

    def test_encodes_and_decodes(self):
        ids = self.model.encode('the cat')
        self.assertEqual(self.model.decode(ids), 'the cat')
        self.assertEqual(self.model.encode(''), [])
        self.assertEqual(len(self.model.encode('the cat', special=True)), len(ids) + 1)

    def test_generation_repeats_with_a_seed(self):
        one = self.model.generate('the cat', max_tokens=12, temperature=1, seed=7)
        two = self.model.generate('the cat', max_tokens=12, temperature=1, seed=7)
        self.assertEqual(one, two)
        self.assertEqual(one.finish_reason, 'length')
        self.assertEqual(len(one.tokens), 12)
        self.assertEqual(str(one), one.text)

    def test_greedy_text_is_that_of_the_program(self):
        text = self.model.generate('the cat', max_tokens=16, temperature=0).text
        printed = json.loads(thimble.command('generate', self.run_.path, 'the cat', '--max-tokens', '16', '--temperature',
                                             '0', '--dtype', 'f32', '--json'))
        self.assertEqual(text, printed['samples'][0]['text'])

    def test_streams_the_same_text(self):
        settings = dict(max_tokens=12, temperature=0)
        self.assertEqual(''.join(self.model.stream('the cat', **settings)),
                         self.model.generate('the cat', **settings).text)

    def test_a_stream_may_be_left(self):
        for _ in self.model.stream('the', max_tokens=20, temperature=0):
            break
        gc.collect()
        self.assertEqual(len(self.model.generate('the', max_tokens=3, temperature=0).tokens), 3)

    def test_logits_and_logprobs_agree(self):
        logits, logprobs = self.model.logits('the cat'), self.model.logprobs('the cat')
        ids = self.model.encode('the cat', special=True)
        self.assertEqual((len(logits), len(logits[0])), (len(ids), self.model.vocabulary))
        self.assertEqual(len(logprobs), len(ids) - 1)
        row = [float(value) for value in logits[0]]
        expected = row[ids[1]] - math.log(sum(math.exp(value) for value in row))
        self.assertAlmostEqual(float(logprobs[0]), expected, places=4)
        self.assertEqual(list(self.model.logprobs(ids)), list(logprobs))

    def test_scores_as_eval_does(self):
        text = 'the dog sat on the mat.'
        held = self.path('held.txt')
        Path(held).write_text(text)
        printed = json.loads(thimble.command('eval', self.run_.path, '--data', held, '--json', '--dtype', 'f32'))
        self.assertAlmostEqual(self.model.score(text).bits_per_byte, printed['val_bpb'], places=9)

    def test_packs_and_exports(self):
        report = self.run_.model.pack(self.path('small.thimble'), bits=6, budget=100_000)
        self.assertTrue(report['fits'])
        with thimble.load(self.path('small.thimble')) as packed:
            self.assertEqual(packed.facts['format'], 'thimble')
        self.run_.model.export(self.path('hf'))
        self.assertTrue(os.path.exists(self.path('hf/config.json')))

    def test_errors_have_code_and_field(self):
        with self.assertRaises(thimble.Error) as caught:
            thimble.load(self.path('missing'))
        self.assertIn('missing', caught.exception.message)
        with self.assertRaises(thimble.Error) as caught:
            self.model.generate('a', temperature=-1)
        self.assertEqual(caught.exception.field, 'temperature')
        self.assertEqual(pickle.loads(pickle.dumps(caught.exception)).field, 'temperature')
        with self.assertRaises(thimble.Error):
            self.model.chat([{'role': 'user', 'content': 'hi'}])
        with self.assertRaises(thimble.Error):
            self.model.logits(['a'])
        with self.assertRaises(thimble.Error):
            thimble.command('trian')

    def test_a_closed_model_is_an_error(self):
        model = thimble.load(self.run_.path)
        model.generate('a', max_tokens=1)
        model.close()
        model.close()
        with self.assertRaises(thimble.Error):
            model.encode('a')
        self.assertIn('closed', repr(model))

    def test_an_exception_in_a_callback_ends_the_call(self):
        def fail(step):
            raise ValueError('from the callback')
        with self.assertRaisesRegex(ValueError, 'from the callback'):
            thimble.train(data=self.data, output=self.path('failed'), on_step=fail, **TINY)

    def test_a_callback_ends_training_and_it_resumes_exactly(self):
        run = thimble.train(data=self.data, output=self.path('ended'), on_step=lambda step: step.step < 5, **TINY)
        self.assertEqual(run.steps, 5)
        resumed = thimble.train(resume=run.path)
        self.assertEqual(resumed.steps, 12)
        self.assertEqual(Path(self.path('ended/last.safetensors')).read_bytes(),
                         Path(self.path('runs/cats/last.safetensors')).read_bytes())

    def test_settings_may_be_true_or_false(self):
        run = thimble.train(data=self.data, output=self.path('untied'), tie_embeddings=False, **{**TINY, 'steps': 1})
        self.assertIn('tie_embeddings = false', run.model.facts['config'])

    def test_sessions_work_in_threads(self):
        texts = []

        def generate():
            with self.model.session() as session:
                texts.append(session.complete({'prompt': 'the cat', 'max_tokens': 8, 'temperature': 0}).text)
        threads = [threading.Thread(target=generate) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(set(texts)), 1)

    def test_ctrl_c_ends_training_with_its_state_saved(self):
        program = ('import sys, thimble\n'
                   'def show(step): print(step.step, flush=True)\n'
                   'try:\n'
                   f'    thimble.train(data={self.data!r}, output={self.path("long")!r}, on_step=show, '
                   f'**{dict(TINY, steps=1_000_000)!r})\n'
                   'except KeyboardInterrupt: sys.exit(42)\n')
        with subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True) as child:
            child.stdout.readline()
            child.send_signal(signal.SIGINT)
            child.stdout.read()
            self.assertEqual(child.wait(), 42)
        self.assertTrue(os.path.exists(self.path('long/last.safetensors')))

    def test_ctrl_c_ends_score_and_long_prompts(self):
        data, folder = self.path('long.txt'), self.path('long-context')
        Path(data).write_text('the cat sat on the mat. ' * 2000)
        words, environment = child(f"""
import os, signal, sys, thimble
model = thimble.train({data!r}, output={folder!r}, layers=1, dim=16, heads=1, kv_heads=1, context=4096, batch_tokens=4096,
                      steps=1, val_fraction=0, dtype='f32').model
text = 'the cat ' * 20000
def interrupt(*_): os.kill(os.getpid(), signal.SIGINT)
ends = 0
try: model.score(text, on_progress=interrupt)
except KeyboardInterrupt: ends += 1
session = model.session()
poll = session._callbacks.wrapped(interrupt)
from thimble import _library as lib
session._poll = lib.Poll(poll)
lib.call('set_poll', session._handle, session._poll, None)
try: session.complete(dict(prompt='the cat ' * 500, max_tokens=2))
except KeyboardInterrupt: ends += 1
print(ends, model.score('the cat').tokens)
""")
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        self.assertEqual(done.stdout, '2 8\n', done.stderr)

    def test_the_package_imports_without_the_library(self):
        words, environment = child('import thimble\ntry: thimble.load("x")\nexcept thimble.Error as error: print(error.message)',
                                   THIMBLE_LIBRARY='/nowhere/libthimble.so')
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        self.assertIn('/nowhere/libthimble.so', done.stdout)

    def test_numpy_and_tqdm_are_not_imported_with_the_package(self):
        words, environment = child('import sys, thimble; print([m for m in ("numpy", "tqdm", "IPython") if m in sys.modules])')
        self.assertEqual(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout, '[]\n')


if __name__ == '__main__':
    unittest.main()
