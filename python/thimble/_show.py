"""What a terminal or a notebook shows: progress bars, loss curves, tables and coloured tokens."""
from __future__ import annotations

import html
import importlib
import math
import sys
import time
from types import TracebackType
from typing import Any, Iterable, Sequence


def in_notebook() -> bool:
    ipython = sys.modules.get('IPython')
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, 'kernel')


class bar:
    """A progress bar of tqdm; shows nothing without tqdm, or where nobody looks."""

    def __init__(self, what: str, unit: str, wanted: bool | None, total: int | None = None) -> None:
        self._bar: Any = None
        if wanted is False or not (wanted or in_notebook() or (sys.stderr is not None and sys.stderr.isatty())):
            return
        try:
            tqdm = importlib.import_module('tqdm.auto')
        except ImportError:
            return
        self._bar = tqdm.tqdm(desc=what, unit=' ' + unit, total=total)

    def to(self, done: int, total: int | None = None, note: str = '') -> None:
        if self._bar is None:
            return
        if total is not None:
            self._bar.total = total
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()


class Curve:
    """Training and validation loss over the steps. A notebook shows the drawing, and redraws it."""

    def __init__(self, title: str = 'loss') -> None:
        self.title = title
        self.steps: list[tuple[int, float]] = []
        self.validations: list[tuple[int, float]] = []
        self._display: Any = None
        self._shown = 0.0

    def show(self) -> None:
        """Shows the curve below the cell that runs, and from then on redraw() updates it."""
        self._display = importlib.import_module('IPython.display').display(self, display_id=True)

    def redraw(self, every: float = 1.0) -> None:
        if self._display is not None and time.monotonic() - self._shown >= every:
            self._display.update(self)
            self._shown = time.monotonic()

    def _repr_html_(self) -> str:
        points = [point for point in self.steps + self.validations if math.isfinite(point[1])]
        if len(points) < 2:
            return f'<p>{html.escape(self.title)}: no steps yet</p>'
        last, low, high = (max(step for step, _ in points), min(loss for _, loss in points),
                           max(loss for _, loss in points))
        width, height, left, below = 560, 220, 48, 24
        across, up = (width - left - 8) / max(last, 1), (height - below - 8) / max(high - low, 1e-9)

        def place(step: int, loss: float) -> str:
            return f'{left + step * across:.1f},{8 + (high - loss) * up:.1f}'

        def line(values: list[tuple[int, float]], colour: str) -> str:
            # At most one point per pixel, so that a long run stays a small page.
            stride = max(1, len(values) // width)
            shown = [value for value in values[::stride] + values[-1:] if math.isfinite(value[1])]
            return (f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" '
                    f'points="{" ".join(place(*value) for value in shown)}"/>') if shown else ''

        def label(x: float, y: float, text: str, anchor: str) -> str:
            return f'<text x="{x}" y="{y}" font-size="11" text-anchor="{anchor}" fill="currentColor">{text}</text>'

        end = [values[-1][1] for values in (self.steps, self.validations) if values]
        names = ['train', 'validation'] if len(end) == 2 else ['train' if self.steps else 'validation']
        title = f'{self.title}: step {last}, ' + ', '.join(f'{name} {loss:.4f}' for name, loss in zip(names, end))
        return (f'<div><div>{html.escape(title)}</div><svg width="{width}" height="{height}" role="img" '
                f'aria-label="{html.escape(title)}">'
                f'<path d="M{left},8 V{height - below} H{width - 8}" fill="none" stroke="currentColor" opacity="0.4"/>'
                + line(self.steps, '#4c78a8') + line(self.validations, '#e45756')
                + label(left - 6, 14, f'{high:.3f}', 'end') + label(left - 6, height - below, f'{low:.3f}', 'end')
                + label(left, height - 8, '0', 'start') + label(width - 8, height - 8, f'{last} steps', 'end')
                + '</svg></div>')


def table(rows: Iterable[tuple[str, Any]]) -> str:
    cells = ''.join(f'<tr><th style="text-align:left">{html.escape(str(name))}</th>'
                    f'<td style="text-align:left">{html.escape(str(value))}</td></tr>' for name, value in rows)
    return f'<table>{cells}</table>'


def coloured(pieces: Sequence[str], logprobs: Sequence[float] | None) -> str:
    """Pieces of text, from red (improbable) to green (certain); without probabilities, two shades that
    alternate."""
    spans = []
    for i, piece in enumerate(pieces):
        if logprobs is None:
            style, title = f'background:rgba(128,128,128,{0.12 if i % 2 else 0.28})', f'token {i}'
        else:
            probability = math.exp(min(logprobs[i], 0.0))
            style, title = f'background:hsla({120 * probability:.0f},70%,50%,0.3)', f'probability {probability:.3f}'
        spans.append(f'<span style="{style}" title="{title}">{html.escape(piece)}</span>')
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div>'
