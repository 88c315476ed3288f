"""Dictionaries that functions return."""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray


class Batch(TypedDict):
    """Cores of a generator, one row for each set that could be made.

    `wcet_ns`, `period_ns`, `deadline_ns`: sets x tasks, highest priority first, in ns. `partitions`: of the same shape, bit masks of the
    partitions of each task. `index`: one number for each set. `failed`: the numbers of the other sets, each with the reason.
    """

    wcet_ns: NDArray[np.uint64]
    period_ns: NDArray[np.uint64]
    deadline_ns: NDArray[np.uint64]
    partitions: NDArray[np.uint64]
    index: NDArray[np.uint64]
    failed: list[tuple[int, str]]


class Response(TypedDict):
    """A bound on the response time of a task, and the parts it consists of, all in ns.

    `response_ns` is None if the bound exceeds the deadline. `omega_ns` is the warm-up delay, `gamma_ns` the preemption delay
    through the cache. [Kim2013]
    """

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
