"""The command `isochrome sweep`."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import CancelledError
from pathlib import Path

from isochrome._isochrome import IsochromeError, __version__


def arguments() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(
        prog="isochrome", description="Experiments of isochrome's Python package; the other verbs are the command of the Rust package."
    )
    parser.add_argument("--version", action="version", version=f"isochrome {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True)
    sweep = verbs.add_parser("sweep", help="works off an experiment file, or what is left of it")
    sweep.add_argument("experiment", type=Path, help="the experiment, TOML")
    sweep.add_argument("-o", "--output", type=Path, help="folder of the results; beside the experiment without")
    where = sweep.add_mutually_exclusive_group()
    where.add_argument("--scheduler", help="address of a Dask scheduler, such as tcp://host:8786; on this machine without")
    where.add_argument("--workers", type=int, help="processes on this machine; one per CPU without")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the command; the exit code is 0, or 1 if it could not run."""
    options = arguments().parse_args(argv)
    try:
        from isochrome.experiment import Experiment
        from isochrome.sweep import run

        folder = options.output or options.experiment.with_suffix("")
        run(Experiment.from_file(options.experiment), folder, scheduler=options.scheduler, workers=options.workers)
    except KeyboardInterrupt:
        print("stopped; what is done is kept: run the same command to go on", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"{error}\n  hint: pip install 'isochrome[sweep]'", file=sys.stderr)
        return 1
    except (IsochromeError, ConnectionError, TimeoutError, OSError, CancelledError) as error:
        print(f"{error}\nwhat is done is kept: run the same command to go on", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
