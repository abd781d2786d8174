"""Shared code of the benches that compare with a peer: paths, repetitions, the rows that they
print.

A bench is a script that measures some rows and prints them as a table, or as JSON (--json) for
bench/all to collect. Ours and the peer are repeated in turns, so a busy minute slows both. Medians
are compared, and the spread is printed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import List, Optional

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 900  # of one command; on an idle machine none takes as long


class Skipped(Exception):
    """The reason why a row or its peer cannot be measured here."""


@dataclass
class Row:
    work: str
    unit: str
    ours: List[float] = field(default_factory=list)  # every repetition
    peer: List[float] = field(default_factory=list)
    ceiling: List[float] = field(default_factory=list)
    peer_name: str = ''
    ceiling_name: str = ''
    against: str = 'peer'  # what `must` and `goal` refer to: peer | ceiling | limit (a bound on our own figure)
    must: Optional[float] = None
    goal: Optional[float] = None
    must_fraction: Optional[float] = None  # a second target: the fraction of the ceiling
    goal_fraction: Optional[float] = None
    less_is_better: bool = False
    skipped: str = ''  # why there is no figure
    note: str = ''

    def ratio(self):
        return self._over(self.peer)

    def fraction(self):
        return self._over(self.ceiling)

    def _over(self, others):
        if not self.ours or not others:
            return None
        ours, other = statistics.median(self.ours), statistics.median(others)
        return other / ours if self.less_is_better else ours / other

    def verdict(self):
        """The target that was reached: '', 'no', 'must' or 'goal'; the lower one if the row has two
        targets."""
        sign = -1 if self.against == 'limit' else 1
        if self.against == 'limit':
            value = -statistics.median(self.ours) if self.ours else None
        else:
            value = self.ratio() if self.against == 'peer' else self.fraction()
        targets = [(value, self.must, self.goal, sign), (self.fraction(), self.must_fraction, self.goal_fraction, 1)]
        targets = [one for one in targets if one[1] is not None or one[2] is not None]
        if not targets or any(one[0] is None for one in targets):
            return ''

        def misses(index):
            return any(one[index] is not None and one[0] < one[index] * one[3] for one in targets)

        return 'no' if misses(1) else 'must' if misses(2) else 'goal'

    def as_json(self):
        """The row as --json prints it, with derived values."""
        return {**asdict(self), 'ratio': self.ratio(), 'fraction': self.fraction()}

    @classmethod
    def from_json(cls, json):
        return cls(**{key: value for key, value in json.items() if key not in ('ratio', 'fraction')})


def number(x):
    if x >= 1000:
        return f'{x:,.0f}'
    return f'{x:.3g}' if x < 10 else f'{x:.1f}' if x < 100 else f'{x:.0f}'


def spread(samples):
    if not samples:
        return ''
    text = number(statistics.median(samples))
    return text if len(samples) == 1 else f'{text} ({number(min(samples))}-{number(max(samples))})'


HEADER = ['work', 'ours', 'peer', 'ceiling', 'ratio', 'fraction', 'must', 'goal', 'reached']


def cells(row):
    def target(value, fraction):
        words = []
        if value is not None:
            words.append({'peer': f'{value:g}x', 'ceiling': f'{value:g}', 'limit': f'{value:g} {row.unit}'}[row.against])
        if fraction is not None:
            words.append(f'{fraction:g} of the ceiling')
        return ', '.join(words)

    targets = [target(row.must, row.must_fraction), target(row.goal, row.goal_fraction)]
    if row.skipped and not row.ours:
        return [row.work, 'skipped: ' + row.skipped, '', '', '', '', *targets, '']
    ratio, fraction = row.ratio(), row.fraction()
    peer = f'{spread(row.peer)}, {row.peer_name}' if row.peer else ('skipped: ' + row.skipped if row.skipped else '')
    ceiling = f'{spread(row.ceiling)}, {row.ceiling_name}' if row.ceiling else ''
    return [row.work, f'{spread(row.ours)} {row.unit}', peer, ceiling, f'{ratio:.2f}x' if ratio else '',
            f'{fraction:.2f}' if fraction else '', *targets, row.verdict()]


def aligned(table):
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table)


def as_text(rows):
    return aligned([HEADER] + [cells(row) for row in rows])


def as_markdown(rows):
    lines = ['| ' + ' | '.join(HEADER) + ' |', '|' + '---|' * len(HEADER)]
    lines += ['| ' + ' | '.join(cell.replace('|', '/') for cell in cells(row)) + ' |' for row in rows]
    return '\n'.join(lines)


def parser_of(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--bin', type=Path, default=ROOT / 'build/release/bin', help="folder of thimble's programs")
    parser.add_argument('--threads', type=int, default=len(os.sched_getaffinity(0)), help='threads of ours and of the peers')
    parser.add_argument('--repeats', type=int, default=3, help='repetitions of ours and of the peer, in turns')
    parser.add_argument('--quick', action='store_true', help='tiny sizes, to test that it runs')
    parser.add_argument('--json', action='store_true', help='print {rows, versions} for bench/all')
    return parser


def program(args, name):
    path = args.bin / name
    if not path.exists():
        raise Skipped(f'{name} is not built: cmake --build build/release --target {name}')
    return str(path)


def run(command, env=None, cwd=None):
    """stdout of a command. If it fails, Skipped has the relevant line of stderr."""
    try:
        done = subprocess.run([str(word) for word in command], env={**os.environ, **(env or {})}, cwd=cwd, timeout=TIMEOUT_SECONDS,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    except subprocess.TimeoutExpired:
        raise Skipped(f'{Path(str(command[0])).name} took more than {TIMEOUT_SECONDS} seconds')
    if done.returncode != 0:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()] or ['no message']
        first = next((line for line in lines if 'error' in line.lower()), lines[-1])
        raise Skipped(f'{Path(str(command[0])).name} ended with exit code {done.returncode}: {first}')
    return done.stdout


def run_json(command, env=None, cwd=None):
    out = run(command, env, cwd)
    return json.loads(out[out.index('{'):])


def thimble(args, *words):
    """The JSON object that a thimble command prints."""
    return run_json([program(args, 'thimble'), *words, '--json', '--quiet'])


LEVELS = ['scalar', 'avx2', 'avx512', 'avx512_bf16', 'amx']  # of THIMBLE_CPU


def cpu_level(args):
    """The CPU level that our kernels run at, and whether THIMBLE_CPU lowers it."""
    cpu = run_json([program(args, 'thimble'), 'doctor', '--json'])['cpu']
    if 'level' in cpu:
        return cpu['level']['effective'], cpu['level']['effective'] != cpu['level']['detected']
    features = cpu['features']
    level = next((level for level, feature in (('amx', 'amx_bf16'), ('avx512_bf16', 'avx512_bf16'), ('avx512', 'avx512f'),
                                               ('avx2', 'avx2')) if features[feature]), 'scalar')
    return level, bool(os.environ.get('THIMBLE_CPU'))


def progress(text):
    print(text, file=sys.stderr, flush=True)


def finish(args, rows, versions):
    if args.quick:  # targets do not apply to tiny sizes
        for row in rows:
            row.must = row.goal = row.must_fraction = row.goal_fraction = None
    if args.json:
        print(json.dumps({'rows': [row.as_json() for row in rows], 'versions': versions}))
    else:
        print(as_text(rows))
        for row in rows:
            if row.note:
                print(f'{row.work}: {row.note}')
        for name, version in versions.items():
            print(f'{name} {version}')
