"""The mesh that is left: the largest, the data axis changed first, the global batch as it was."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.config import MeshShape, RunConfig, load
from meshkit.launch import elastic
from meshkit.models.presets import check_cut, sizes
from meshkit.pipeline.builders import from_config


def config(data: int, tensor: int, pipe: int, microbatches: int = 4, batch: int = 64, **pipeline: object) -> RunConfig:
    return load(
        {
            "mesh": {"data": data, "tensor": tensor, "pipe": pipe},
            "pipeline": {"microbatches": microbatches, **pipeline},
            "model": {"preset": "llama3-8b"},
            "data": {"batch": batch, "sequence": 128},
        }
    )


@pytest.mark.parametrize(
    ("before", "left", "mesh", "microbatches"),
    [
        (config(8, 2, 2), 31, (4, 2, 2), 8),  # 7, 6, 5 replicas do not split 64 samples
        (config(8, 2, 2, batch=960, microbatches=1), 31, (6, 2, 2), 2),  # 7 do not split 960; no larger microbatch
        (config(4, 2, 2), 16, (4, 2, 2), 4),
        (config(4, 2, 2), 3, (1, 2, 1), 16),  # no replica is left whole: then the stages
        (config(2, 4, 1), 3, (1, 2, 1), 8),
        (config(1, 1, 8, microbatches=8), 7, (1, 1, 7), 8),
        (config(4, 1, 2, schedule="interleaved", virtual=2), 6, (2, 1, 2), 8),
        (config(2, 1, 2, layers_per_stage=[20, 12]), 3, (1, 1, 2), 8),
    ],
)
def test_the_largest_that_is_legal(before: RunConfig, left: int, mesh: tuple[int, int, int], microbatches: int) -> None:
    after = elastic.fit(before, range(1, left + 1))
    assert after is not None
    assert (*after.mesh.sizes.values(), after.pipeline.microbatches) == (*mesh, microbatches)


def test_none_is_legal() -> None:
    assert elastic.fit(config(2, 1, 2, layers_per_stage=[20, 12]), [1]) is None
    assert elastic.fit(config(2, 1, 2), []) is None


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(1, 64))
def test_laws(data: int, tensor: int, pipe: int, left: int) -> None:
    before = config(data, tensor, pipe)
    counts = range(1, min(left, before.mesh.devices) + 1)
    after = elastic.fit(before, counts)
    assert after is not None
    assert after.mesh.devices in counts
    assert after.data.batch == before.data.batch
    assert after.microbatch_size(after.mesh.data) <= before.microbatch_size(data)
    check_cut(sizes(after.model), after.mesh, after.data.sequence)
    from_config(after.pipeline, after.mesh.pipe)
    fewer = [d for d in range(1, data + 1) if d * tensor * pipe in counts and 64 % d == 0]
    if fewer:
        assert after.mesh == MeshShape(data=max(fewer), tensor=tensor, pipe=pipe), "the data axis shrinks first"
