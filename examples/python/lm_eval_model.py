"""A model of thimble in EleutherAI's lm-evaluation-harness.

    python3 lm_eval_model.py --model thimble --model_args path=chat.thimble --tasks blimp

Arguments are those of `lm_eval`. The class answers the three kinds of requests of the harness: the
log-likelihood of a continuation, that of a whole text, and text generated until a stop string.
"""
from __future__ import annotations

from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

import thimble


@register_model('thimble')
class ThimbleLM(LM):
    def __init__(self, path: str, device: str = 'auto', dtype: str = 'auto', **_: Any) -> None:
        super().__init__()
        self.model = thimble.load(path, device=device, dtype=dtype)
        # Text is scored after bos where the model was trained with it, else after eos.
        self.prefix = self.model.encode('', special=True) or [self.model.facts['eos']]

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [self._continuation(*request.args) for request in requests]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [sum(self._window(tokens, count)[0] for tokens, count in self._windows(request.args[0]))
                for request in requests]

    def generate_until(self, requests: list[Any]) -> list[str]:
        return [self._generate(*request.args) for request in requests]

    def _continuation(self, context: str, continuation: str) -> tuple[float, bool]:
        # Spaces belong to the continuation, as in the harness's own models.
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        whole = self.model.encode(context + continuation)
        count = len(whole) - len(self.model.encode(context))
        return self._window((self.prefix + whole)[-self.model.context:], count)

    def _windows(self, text: str) -> list[tuple[list[int], int]]:
        """Windows of at most the context: tokens, and how many of the last ones to score. Each token is
        scored once; the last window is as long as the others."""
        tokens, size = self.prefix + self.model.encode(text), self.model.context
        scored, windows = len(self.prefix), []
        while scored < len(tokens):
            end = min(len(tokens), scored + size - 1)
            windows.append((tokens[max(0, end - size):end], end - scored))
            scored = end
        return windows

    def _window(self, tokens: list[int], count: int) -> tuple[float, bool]:
        """The log-likelihood of the last `count` tokens, and whether greedy decoding gives them."""
        if count == 0:
            return 0.0, True
        count = min(count, len(tokens) - 1)
        logprobs = self.model.logprobs(tokens)[-count:]
        rows = self.model.logits(tokens)[-count - 1:-1]
        greedy = all(row[token] == max(row) for row, token in zip(rows, tokens[-count:]))
        return float(sum(logprobs)), greedy

    def _generate(self, context: str, settings: dict[str, Any]) -> str:
        until = settings.get('until', [])
        most = min(settings.get('max_gen_toks', 256), self.model.context - 1)
        prompt = (self.prefix + self.model.encode(context))[-(self.model.context - most):]
        return self.model.generate(prompt, max_tokens=most, stop=[until] if isinstance(until, str) else until,
                                   temperature=settings.get('temperature', 0) if settings.get('do_sample') else 0).text


if __name__ == '__main__':
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()
