#!/usr/bin/env python3
"""Checks that a folder of programs and libraries runs on every system that thimble supports, and
collects the licences of the libraries in it.

    packaging/portable.py FOLDER                  check; prints what is wrong and exits with 1
    packaging/portable.py FOLDER --licences OUT   also write the licence texts to the folder OUT

Supported are Ubuntu 22.04, RHEL 9, Debian 12 and everything newer: glibc 2.34 and the libstdc++ of
g++ 11. Every library that such a system may lack must be in the folder.
"""
from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

# The highest symbol versions that may be needed.
NEWEST = {'GLIBC': (2, 34), 'GLIBCXX': (3, 4, 29), 'CXXABI': (1, 3, 13), 'GCC': (7, 0, 0)}
# Every supported system has these.
PROVIDED = re.compile(r'(libc|libm|libmvec|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so\.\d+$')
COMMON_LICENCES = Path('/usr/share/common-licenses')


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f'error: {" ".join(words)}: {done.stderr.strip()}')
    return done.stdout


def binaries(folder: Path) -> list[Path]:
    """The programs and libraries in the folder."""
    found = []
    for path in sorted(folder.rglob('*')):
        if path.is_file():
            with path.open('rb') as file:
                if file.read(4) == b'\x7fELF':
                    found.append(path)
    return found


def needed_by(binary: Path) -> list[str]:
    return re.findall(r'\(NEEDED\).*\[(.+)\]', run('readelf', '-dW', str(binary)))


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split('.'))


def symbols_with(binary: Path, wanted: str) -> list[str]:
    lines = run('objdump', '-TC', str(binary)).splitlines()
    return [line.split(')', 1)[-1].strip() for line in lines if f'({wanted})' in line or f' {wanted} ' in line]


def problems(folder: Path) -> list[str]:
    """What is wrong, a line each."""
    found: list[str] = []
    files = binaries(folder)
    names = {path.name for path in files}
    if not files:
        found.append(f'{folder} contains no program and no library')
    for path in files:
        for library in needed_by(path):
            if library not in names and not PROVIDED.match(library):
                found.append(f'{path.name} needs {library}, which is not in the folder')
        needs = run('readelf', '-VW', str(path)).partition('Version needs section')[2]
        for name, number in sorted(set(re.findall(r'Name: (\w+)_([\d.]+)', needs))):
            if name in NEWEST and version(number) > NEWEST[name]:
                symbols = ', '.join(symbols_with(path, f'{name}_{number}')) or 'a symbol'
                found.append(f'{path.name} needs {name}_{number} for {symbols}; '
                             f'the highest allowed is {".".join(map(str, NEWEST[name]))}')
    return found


def licences(files: list[Path]) -> dict[str, bytes]:
    """The licence texts of libraries from Debian packages: {"PACKAGE/copyright": text}, and the texts
    that these refer to."""
    texts: dict[str, bytes] = {}
    for path in files:
        owners = {line.split(':')[0] for line in run('dpkg-query', '-S', f'*/{path.name}').splitlines()}
        text = b''
        for owner in sorted(owners):
            file = Path('/usr/share/doc') / owner / 'copyright'
            if file.is_file():
                text = texts[f'{owner}/copyright'] = file.read_bytes()
        if not text:
            raise SystemExit(f'error: no licence found for {path.name}, of {", ".join(sorted(owners))}')
    for text in list(texts.values()):
        for name in re.findall(rb'/usr/share/common-licenses/([\w.+-]*\w)', text):
            file = COMMON_LICENCES / name.decode()
            if file.is_file():
                texts[f'common-licenses/{name.decode()}'] = file.read_bytes()
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('folder', type=Path)
    parser.add_argument('--licences', type=Path, metavar='OUT')
    arguments = parser.parse_args()
    found = problems(arguments.folder)
    for line in found:
        print(f'error: {line}', file=sys.stderr)
    if arguments.licences:
        # Those of thimble itself have the project's licence.
        others = [path for path in binaries(arguments.folder) if 'thimble' not in path.name]
        for name, text in licences(others).items():
            file = arguments.licences / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
