#!/usr/bin/env python3
"""Draws doc comments and messages at random, to be reread one by one against the glossary and the conventions.

    scripts/sample_prose.py [--count 50] [--seed N]     prints file:line and the text of each; the same seed and tree give the same sample

The sample is drawn from the doc comments of all Rust files of the crates (one for each item, whole), and from the messages that users read:
those of errors, of `eprintln!`, and of warnings and conclusions, recognized as strings that hold a sentence. Tests are left out.
"""

import argparse
import pathlib
import random
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent

DOC = re.compile(r"\s*//[/!] ?(.*)")
STRING = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
# A message has at least four words. A string without a lower-case word of three letters is a format.
WORDS_MIN = 4
# An instruction for the assembler.
INSTRUCTION = re.compile(r"[a-z0-9.]+ [^ ]+, ")


def texts(path):
    """Yields the line and the text of every doc comment and message of a file."""
    lines = path.read_text().split("\n")
    # Code that only tests compile stands at the end of a file.
    end = next((at for at, line in enumerate(lines) if line.startswith("#[cfg(test)]") and "mod" in "".join(lines[at + 1 : at + 3])), len(lines))
    at = 0
    while at < end:
        if match := DOC.match(lines[at]):
            first, words = at, []
            while at < end and (match := DOC.match(lines[at])):
                words.append(match[1])
                at += 1
            yield first + 1, "\n".join(words)
        else:
            at += 1
    code = "\n".join(re.sub(r"^\s*//.*", "", line) for line in lines[:end])
    for match in STRING.finditer(code):
        text = re.sub(r"\\\n\s*", "", match[1])
        if len(text.split()) >= WORDS_MIN and not INSTRUCTION.match(text) and re.search(r"\b[a-z]{3,}\b", text):
            yield code.count("\n", 0, match.start()) + 1, text


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=50)
    options.add_argument("--seed", type=int, default=1)
    options = options.parse_args()
    paths = [path for path in sorted(ROOT.glob("crates/*/src/**/*.rs")) if "tests" not in path.parts and path.stem not in ("tests", "fixture")]
    found = [(path.relative_to(ROOT).as_posix(), line, text) for path in paths for line, text in texts(path)]
    print(f"{options.count} of {len(found)}, seed {options.seed}")
    for path, line, text in sorted(random.Random(options.seed).sample(found, options.count)):
        print(f"\n{path}:{line}")
        print("    " + text.replace("\n", "\n    "))


if __name__ == "__main__":
    main()
