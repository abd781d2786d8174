"""Training step by step and on data in memory; what notebooks and terminals show."""
import gc
import json
import os
import subprocess
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

import thimble
from fixture import TEXT, TINY, child, trained
from thimble import _show


class StepWise(unittest.TestCase):
    def setUp(self):
        self.trained = trained()
        self.path = self.trained.path

    def begin(self, name, **settings):
        return thimble.Training(self.trained.data, output=self.path(name), **{**TINY, **settings})

    def bytes_of(self, name):
        return Path(self.path(name), 'last.safetensors').read_bytes()

    def test_the_run_is_that_of_train(self):
        with self.begin('steps') as training:
            self.assertIn('in progress', repr(training))
            events = list(training)
        self.assertEqual([event.step for event in events if isinstance(event, thimble.Step)], list(range(1, 13)))
        self.assertEqual([event.step for event in events if isinstance(event, thimble.Validation)], [0, 6, 12])
        self.assertEqual([event.step for event in events if isinstance(event, thimble.Saved)], [6, 12])
        self.assertEqual(self.bytes_of('steps'), self.bytes_of('runs/cats'))
        self.assertEqual(training.run.steps, 12)
        self.assertIs(training.stop(), training.run)
        self.assertEqual(list(training), [])
        with self.assertRaises(thimble.Error):
            training.save()

    def test_a_saved_and_stopped_run_resumes_exactly(self):
        with self.begin('stopped') as training:
            for event in training:
                if event == thimble.Saved(3):
                    break
                if isinstance(event, thimble.Step) and event.step == 3:
                    training.save()
                    self.assertTrue(list(Path(self.path('stopped/checkpoints')).glob('step-*3.safetensors')))
            self.assertEqual(training.stop().steps, 3)
        self.assertEqual(thimble.train(resume=self.path('stopped')).steps, 12)
        self.assertEqual(self.bytes_of('stopped'), self.bytes_of('runs/cats'))

    def test_models_can_be_used_between_steps_but_commands_wait_for_the_end(self):
        with self.begin('between') as training:
            next(training)
            self.assertGreater(self.trained.model.score('the cat').nats, 0)
            self.assertEqual(len(self.trained.model.generate('the', max_tokens=3).tokens), 3)
            for call in (lambda: thimble.command('inspect', self.trained.run.path), lambda: self.begin('second')):
                with self.assertRaises(thimble.Error) as caught:
                    call()
                self.assertEqual(caught.exception.code, thimble.BUSY)
            training.stop()
        self.assertIn('{', thimble.command('inspect', self.trained.run.path, '--json'))

    def test_a_run_that_cannot_start_fails_at_once(self):
        for settings in (dict(layers='many'), dict(preset='missing'), dict(no_such_option=1)):
            with self.assertRaises(thimble.Error) as caught:
                self.begin('wrong', **settings)
            self.assertEqual(caught.exception.code, thimble.INVALID, settings)
        with self.assertRaises(thimble.Error) as caught:
            thimble.Training(self.path('missing.txt'), output=self.path('wrong'))
        self.assertIn('missing.txt', caught.exception.message)

    def test_a_run_that_is_dropped_ends(self):
        training = self.begin('dropped', steps=1_000_000)
        next(training)
        del training
        gc.collect()
        self.assertTrue(os.path.exists(self.path('dropped/last.safetensors')))

    def test_a_run_that_is_in_progress_at_the_end_of_the_program_is_saved(self):
        words, environment = child(f'import thimble\nt = thimble.Training({self.trained.data!r}, '
                                   f'output={self.path("exit")!r}, **{dict(TINY, steps=10**6)!r})\nnext(t)\nprint(next(t))')
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(os.path.exists(self.path('exit/last.safetensors')))

    def test_settings_as_toml_and_as_json(self):
        toml = '\n'.join(f'{name} = {json.dumps(value)}' for name, value in TINY.items())
        for name, config in (('toml', toml), ('json', TINY)):
            self.assertEqual(thimble.train(self.trained.data, output=self.path(name), config=config).steps, 12)
        self.assertEqual(self.bytes_of('toml'), self.bytes_of('json'))
        with_preset = {'preset': 'quick', **TINY}
        thimble.train(self.trained.data, output=self.path('preset'), config=with_preset)
        self.assertEqual(self.bytes_of('preset'), self.bytes_of('runs/cats'))
        for wrong in ('layers = ', '{"layers": 1', {'no_such_key': 1}, '[1]'):
            with self.assertRaises(thimble.Error) as caught:
                thimble.train(self.trained.data, output=self.path('wrong'), config=wrong)

    def test_data_in_memory(self):
        self.assertEqual(thimble.train(TEXT.encode(), output=self.path('bytes'), **TINY).steps, 12)
        self.assertEqual(self.bytes_of('bytes'), self.bytes_of('runs/cats'))
        texts = thimble.train(TEXT.splitlines(), output=self.path('texts'), **{**TINY, 'steps': 2})
        self.assertFalse(texts.model.is_chat)
        chats = [[{'role': 'user', 'content': f'say {i}'}, {'role': 'assistant', 'content': f'{i}'}] for i in range(99)]
        run = thimble.train(chats, output=self.path('chats'), **{**TINY, 'steps': 2})
        self.assertTrue(run.model.is_chat)
        answer = run.model.chat([{'role': 'user', 'content': 'say 1'}], max_tokens=3)
        self.assertEqual(''.join(run.model.chat([{'role': 'user', 'content': 'say 1'}], max_tokens=3, seed=1, stream=True)),
                         run.model.chat([{'role': 'user', 'content': 'say 1'}], max_tokens=3, seed=1).text)
        self.assertLessEqual(len(answer.tokens), 3)
        for wrong in ([1, 2], [{'a': 1}, 'text']):
            with self.assertRaises(thimble.Error):
                thimble.train(wrong, output=self.path('wrong'), **TINY)

    def test_models_in_memory(self):
        content = Path(self.trained.run.path, 'best.safetensors').read_bytes()
        with thimble.load(content, dtype='f32') as model:
            self.assertEqual(model.generate('the cat', max_tokens=8, temperature=0).text,
                             self.trained.model.generate('the cat', max_tokens=8, temperature=0).text)
            model.pack(self.path('from-memory.thimble'), bits=6)
            path = model.path
        self.assertFalse(os.path.exists(path))
        packed = Path(self.path('from-memory.thimble')).read_bytes()
        self.assertEqual(thimble.load(packed).facts['format'], 'thimble')
        for wrong in (b'', content[:1000], b'GGUF' + bytes(20), packed[:-1]):
            with self.assertRaises(thimble.Error):
                thimble.load(wrong)

    def test_tensorboard_does_not_replace_on_step(self):
        seen = []
        thimble.train(self.trained.data, output=self.path('board'), tensorboard=True, on_step=seen.append, **TINY)
        self.assertEqual(len(seen), 12)


class Display:
    """As IPython's display handle."""

    def __init__(self):
        self.pages = []

    def display(self, thing, display_id):
        self.pages.append(thing._repr_html_())
        return self

    def update(self, thing):
        self.pages.append(thing._repr_html_())


class Shown(unittest.TestCase):
    def setUp(self):
        self.trained = trained()

    def test_a_run_shows_its_facts_and_its_curve(self):
        page = self.trained.run._repr_html_()
        self.assertIn('<svg', page)
        self.assertIn('completed', page)
        self.assertEqual(len(self.trained.run.curve().steps), 12)
        self.assertEqual([step for step, _ in self.trained.run.curve().validations], [0, 6, 12])

    def test_a_notebook_draws_the_losses_while_training(self):
        display = Display()
        notebook = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=1))
        with mock.patch.dict(sys.modules, {'IPython': notebook, 'IPython.display': display}):
            thimble.train(self.trained.data, output=self.trained.path('shown'), **TINY)
            self.assertIn('no steps yet', display.pages[0])
            self.assertGreaterEqual(len(display.pages), 2)
            self.assertIn('step 12, train', display.pages[-1])
            self.assertEqual(display.pages[-1].count('<polyline'), 2)
            before = len(display.pages)
            thimble.train(self.trained.data, output=self.trained.path('hidden'), progress=False, **TINY)
            self.assertEqual(len(display.pages), before)

    def test_a_terminal_shows_tqdm(self):
        bars = []

        class Bar:
            def __init__(self, **settings):
                self.settings, self.n, self.total, self.closed = settings, 0, settings['total'], False
                bars.append(self)

            def update(self, count):
                self.n += count

            def set_postfix_str(self, text, refresh):
                self.note = text

            def close(self):
                self.closed = True
        with mock.patch.dict(sys.modules, {'tqdm': types.ModuleType('tqdm'), 'tqdm.auto': types.SimpleNamespace(tqdm=Bar)}):
            thimble.train(self.trained.data, output=self.trained.path('bar'), progress=True, **TINY)
            self.trained.model.score(TEXT, progress=True)
            self.assertEqual([(bar.n, bar.total, bar.closed) for bar in bars][0], (12, 12, True))
            self.assertEqual((bars[1].n, bars[1].closed), (bars[1].total, True))
            self.assertIn('loss', bars[0].note)
        with mock.patch.dict(sys.modules, {'tqdm': None, 'tqdm.auto': None}):
            self.trained.model.score('the cat', progress=True)
        self.assertEqual(len(bars), 2)

    def test_completions_show_their_tokens_in_colours(self):
        answer = self.trained.model.generate('the cat', max_tokens=5, temperature=1, seed=3, logprobs=1)
        self.assertEqual(''.join(answer.pieces), answer.text)
        page = answer._repr_html_()
        self.assertEqual((page.count('<span'), page.count('probability')), (5, 5))
        self.assertIn('token 1', self.trained.model.generate('the', max_tokens=2)._repr_html_())
        self.assertIn('&lt;b&gt;', _show.coloured(['<b>'], None))


if __name__ == '__main__':
    unittest.main()
