from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, final

import numpy as np
from isochrome.types import Batch, Response
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "CacheSim",
    "Comparison",
    "Generator",
    "IsochromeError",
    "Machine",
    "Palette",
    "Plan",
    "TaskSet",
    "__version__",
    "beside_kim2013",
    "compare",
    "evidence",
    "figures_14_to_16",
    "miss_curve",
    "plan",
    "plan_batch",
    "plan_document",
    "proportion_interval",
    "response_times",
    "response_times_batch",
    "schemas",
    "uniformity",
]

__version__: str

class IsochromeError(ValueError): ...

@final
class Machine:
    @staticmethod
    def named(name: str) -> Machine: ...
    @staticmethod
    def names() -> list[str]: ...
    @staticmethod
    def from_json(text: str) -> Machine: ...
    @staticmethod
    def from_file(path: str | PathLike[str]) -> Machine: ...
    @property
    def name(self) -> str: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def fingerprint(self) -> str | None: ...
    def colors(self) -> list[tuple[str, int]]: ...
    def to_dict(self) -> dict[str, Any]: ...

@final
class Palette:
    @staticmethod
    def infer(samples: Mapping[str, Any] | str | PathLike[str]) -> Palette: ...
    @staticmethod
    def from_file(path: str | PathLike[str]) -> Palette: ...
    @property
    def colors(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def doubts(self) -> list[str]: ...
    def inference(self) -> dict[str, Any] | None: ...
    def color_of(self, frames: ArrayLike) -> NDArray[np.int32]: ...

@final
class CacheSim:
    def __new__(cls, machine: Machine) -> CacheSim: ...
    @staticmethod
    def of_levels(levels: Sequence[str], *, pycachesim: bool = False) -> CacheSim: ...
    def run(self, addresses: ArrayLike, *, writes: NDArray[np.bool_] | None = None, access_bytes: int = 1) -> None: ...
    def counts(self) -> dict[str, Any]: ...

def miss_curve(
    addresses: ArrayLike,
    *,
    cache_bytes: int,
    ways: int,
    line_bytes: int = 64,
    page_bytes: int = 4096,
    access_bytes: int = 1,
) -> tuple[NDArray[np.uint64], tuple[NDArray[np.uint32], NDArray[np.uint64]]]: ...
@final
class TaskSet:
    def __new__(
        cls,
        fields: Mapping[str, Any],
        *,
        cores: int | None = None,
        partitions: int | None = None,
        memory_mib: int | None = None,
        refill_ns: int | None = None,
    ) -> TaskSet: ...
    @staticmethod
    def from_text(
        text: str,
        *,
        cores: int | None = None,
        partitions: int | None = None,
        memory_mib: int | None = None,
        refill_ns: int | None = None,
    ) -> TaskSet: ...
    @staticmethod
    def from_file(
        path: str | PathLike[str],
        *,
        cores: int | None = None,
        partitions: int | None = None,
        memory_mib: int | None = None,
        refill_ns: int | None = None,
    ) -> TaskSet: ...
    @staticmethod
    def from_arrays(
        wcet_ns: ArrayLike,
        period_ns: ArrayLike,
        *,
        task_memory_mib: ArrayLike,
        cores: int,
        partitions: int,
        memory_mib: int,
        refill_ns: int,
        deadline_ns: ArrayLike | None = None,
    ) -> TaskSet: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def platform(self) -> dict[str, int]: ...
    def copied(self, copies: int) -> TaskSet: ...
    def wcet_ns(self) -> NDArray[np.uint64]: ...
    def period_ns(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Plan:
    @property
    def schedulable(self) -> bool: ...
    @property
    def partitions_used(self) -> int: ...
    @property
    def utilization(self) -> float: ...
    @property
    def gap(self) -> float | None: ...
    def to_dict(self) -> dict[str, Any]: ...
    def to_svg(self, *, partitions: int) -> str: ...
    def _repr_html_(self) -> str: ...

@final
class Comparison:
    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> Comparison: ...
    def to_dict(self) -> dict[str, Any]: ...

@final
class Generator:
    def __new__(cls, **fields: Any) -> Generator: ...
    def to_dict(self) -> dict[str, Any]: ...
    def task_set(self, *, seed: int, index: int) -> TaskSet: ...
    def utilizations(self, *, seed: int, count: int, first: int = 0) -> NDArray[np.float64]: ...
    def batch(self, *, seed: int, count: int, first: int = 0) -> Batch: ...

def response_times(
    task_set: TaskSet, allocation: Plan | Mapping[str, Any], *, analysis: str = "kim2013"
) -> list[Response]: ...
def response_times_batch(
    wcet_ns: ArrayLike,
    period_ns: ArrayLike,
    *,
    deadline_ns: ArrayLike | None = None,
    partitions: ArrayLike | None = None,
    useful: ArrayLike | None = None,
    refill_ns: int = 0,
    switch_ns: int = 0,
    release_interrupt_ns: int = 0,
    preemption_ns: int = 0,
    analysis: str = "kim2013",
    threads: int = 1,
) -> NDArray[np.int64]: ...
def plan(
    task_set: TaskSet,
    *,
    method: str = "optimal",
    objective: str = "partitions",
    then: Sequence[str] = ...,
    analysis: str = "kim2013",
    time_limit_s: float | None = None,
    checks_limit: int | None = None,
) -> Plan: ...
def plan_batch(
    generator: Generator,
    *,
    seed: int,
    count: int,
    method: str,
    first: int = 0,
    objective: str = "partitions",
    analysis: str = "kim2013",
    checks_limit: int | None = None,
) -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.uint32], NDArray[np.float64], list[tuple[int, str]]]: ...
def compare(
    task_set: TaskSet,
    *,
    analysis: str = "kim2013",
    time_limit_s: float | None = None,
    checks_limit: int | None = None,
) -> Comparison: ...
def beside_kim2013(comparisons: Sequence[Comparison]) -> list[list[str]]: ...
def figures_14_to_16(comparisons: Sequence[Comparison]) -> str: ...
def uniformity(vectors: Sequence[Sequence[float]] | NDArray[np.float64], *, total: float, caps: Sequence[float]) -> list[float]: ...
def proportion_interval(successes: int, n: int) -> tuple[float, float]: ...
def evidence(text: str) -> dict[str, Any]: ...
def plan_document(text: str) -> dict[str, Any]: ...
def schemas() -> dict[str, str]: ...
