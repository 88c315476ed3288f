"""`python -m isochrome sweep FILE`: the command `isochrome-sweep` of the Python that runs."""

import sys

from isochrome import sweep


def main(argv: list[str]) -> int:
    """Runs the verb `sweep`, the only one that is in Python; the exit code is 0, or 1 if it could not run."""
    if argv[:1] == ["sweep"]:
        return sweep.main(argv[1:])
    hint = "python -m isochrome sweep --help; the other verbs are those of the program in Rust"
    print(f"python -m isochrome has one verb: sweep\n  hint: {hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
