"""Dictionaries that functions return."""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray


class Batch(TypedDict):
    """Cores of a generator: arrays of sets x tasks, highest priority first, and the numbers of the sets."""

    wcet_ns: NDArray[np.uint64]
    period_ns: NDArray[np.uint64]
    deadline_ns: NDArray[np.uint64]
    partitions: NDArray[np.uint64]
    index: NDArray[np.uint64]
    failed: list[tuple[int, str]]


class Response(TypedDict):
    """A bound and the parts it consists of."""

    name: str
    cpu: int
    response_ns: int | None
    deadline_ns: int
    own_ns: int
    interference_ns: int
    omega_ns: int
    gamma_ns: int
    blocking_ns: int
    interrupts_ns: int
    withheld_ns: int
    jitter_ns: int
