"""Task sets at random."""

import isochrome
import numpy as np
import pytest


def worst(vectors, total, caps):
    """p-value of the worst of all tests, if they were independent."""
    values = isochrome.uniformity(vectors, total=total, caps=caps)
    return 1 - (1 - min(values)) ** len(values)


@pytest.mark.parametrize(
    ("fields", "caps"),
    [
        ({"utilizations": "uunifast", "utilization": 0.9}, [0.9] * 6),
        ({"utilizations": "dirichlet", "utilization": 0.9}, [0.9] * 6),
        ({"utilizations": "uunifast-discard", "utilization": 2.5}, [1.0] * 6),
        ({"utilizations": "capped", "utilization": 2.5}, [1.0] * 6),
        ({"utilizations": "capped", "utilization": 1.0, "caps": [0.9, 0.1, 0.4, 0.3, 0.2, 0.6]}, [0.9, 0.1, 0.4, 0.3, 0.2, 0.6]),
    ],
)
def test_utilizations_are_uniform(fields, caps):
    vectors = isochrome.Generator(tasks=6, **fields).utilizations(seed=11, count=10_000)
    assert np.allclose(vectors.sum(axis=1), fields["utilization"])
    assert worst(vectors, fields["utilization"], caps) > 1e-3


def test_a_flat_dirichlet_vector_of_numpy_passes_and_scaled_uniform_numbers_do_not():
    random = np.random.default_rng(5)
    assert worst(random.dirichlet(np.ones(6), 10_000) * 0.9, 0.9, [0.9] * 6) > 1e-3
    numbers = random.random((10_000, 6))
    assert worst(numbers / numbers.sum(axis=1, keepdims=True) * 0.9, 0.9, [0.9] * 6) < 1e-9


def test_a_set_is_the_same_in_every_batch_it_is_drawn_in():
    generator = isochrome.Generator()
    whole, part = generator.batch(seed=2, count=50), generator.batch(seed=2, first=20, count=10)
    assert part["index"].tolist() == list(range(20, 30))
    for name in ("wcet_ns", "period_ns", "deadline_ns", "partitions"):
        assert np.array_equal(whole[name][20:30], part[name])
    other = generator.batch(seed=3, first=20, count=10)
    assert not np.array_equal(other["period_ns"], part["period_ns"])


def test_profiles_give_their_shape():
    generator = isochrome.Generator(tasks=1, utilization=0.5, profiles_ns=[np.array([400, 200, 100])], partitions=4)
    assert generator.to_dict()["classes"] is not None
    curve = generator.task_set(seed=1, index=0).wcet_ns()[0]
    assert np.allclose(curve / curve[-1], [4, 2, 1, 1], rtol=1e-6)


def test_sets_that_cannot_be_made_are_named_and_the_others_are_there():
    # One in 1.4 million vectors of two has no element above 0.5: of a million tries about half find one.
    generator = isochrome.Generator(tasks=2, utilization=0.9999993, utilizations="uunifast-discard", caps=[0.5])
    batch = generator.batch(seed=1, count=8)
    failed = [index for index, _ in batch["failed"]]
    assert 0 < len(failed) < 8
    assert sorted([*failed, *batch["index"].tolist()]) == list(range(8))
    assert "capped" in batch["failed"][0][1]


def test_an_interval_is_that_of_wilson():
    low, high = isochrome.proportion_interval(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
