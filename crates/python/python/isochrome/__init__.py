"""isochrome: caches, real-time tasks and what they do to each other, with numpy in and out.

Times are nanoseconds, sizes bytes or MiB, as names say. A value that cannot be used raises an IsochromeError with the field and a
hint. Long functions run without the interpreter's lock, and planning ends on Ctrl-C.
"""

from isochrome._isochrome import (
    CacheSim,
    Comparison,
    Generator,
    IsochromeError,
    Machine,
    Palette,
    Plan,
    TaskSet,
    __version__,
    beside_kim2013,
    compare,
    figures_14_to_16,
    miss_curve,
    plan,
    plan_batch,
    proportion_interval,
    response_times,
    response_times_batch,
    uniformity,
)
from isochrome.evidence import Evidence, read_evidence
from isochrome.server import place

__all__ = [
    "CacheSim",
    "Comparison",
    "Evidence",
    "Generator",
    "IsochromeError",
    "Machine",
    "Palette",
    "Plan",
    "TaskSet",
    "__version__",
    "beside_kim2013",
    "compare",
    "figures_14_to_16",
    "miss_curve",
    "place",
    "plan",
    "plan_batch",
    "proportion_interval",
    "read_evidence",
    "response_times",
    "response_times_batch",
    "uniformity",
]
