"""Products by group: as a loop over groups says, whatever their lengths, in work that the rows alone give."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshkit import hlo
from meshkit.models.grouped import LEAST_ROWS, MOST_ROWS, grouped_product, rows_of_a_block
from meshkit.planner.products import flops

IN, OUT = 5, 3
LENGTHS = [[8, 8, 8], [0, 0, 0], [24, 0, 0], [0, 1, 22], [7, 9, 0], [3, 0, 17], [16, 1, 7]]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("R", [1, 8, 16])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_value_and_gradients_are_those_of_a_loop_over_groups(lengths: list[int], R: int) -> None:
    random = np.random.default_rng(0)
    x, w, dy = (random.standard_normal(shape) for shape in ((24 + R, IN), (3, IN, OUT), (24 + R, OUT)))
    x[sum(lengths) :] = np.nan  # nobody's rows: their content never matters
    dy[sum(lengths) :] = np.nan
    product = lambda x, w: grouped_product(x, w, jnp.array(lengths, jnp.int32), R)
    y, pullback = jax.vjp(product, jnp.array(x), jnp.array(w))
    dx, dw = pullback(jnp.array(dy))
    ends = np.cumsum(lengths)
    own = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    expected = [np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)]
    for g, rows in enumerate(own):
        expected[0][rows], expected[1][rows], expected[2][g] = x[rows] @ w[g], dy[rows] @ w[g].T, x[rows].T @ dy[rows]
    for actual, wanted in zip((y, dx, dw), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, atol=1e-14)


def test_many_blocks_of_narrow_rows_are_added_up_wide() -> None:
    N, R = 4096, 8
    x_NI, dy_NO = jnp.ones((N + R, 1), jnp.bfloat16), jnp.ones((N + R, 1), jnp.bfloat16)
    product = lambda w: grouped_product(x_NI, w, jnp.array([N], jnp.int32), R)
    (dw,) = jax.vjp(product, jnp.ones((1, 1, 1), jnp.bfloat16))[1](dy_NO)
    assert dw.dtype == jnp.bfloat16
    assert float(dw[0, 0, 0]) == N  # in bfloat16 a sum of eights stands still at 2048


@pytest.mark.parametrize(
    ("rows", "groups", "R"),
    [(1, 8, LEAST_ROWS), (8192, 8, MOST_ROWS), (300, 4, 64), (256, 4, 64), (10**6, 2, MOST_ROWS)],
)
def test_a_block_is_at_most_an_even_share(rows: int, groups: int, R: int) -> None:
    assert rows_of_a_block(rows, groups) == R


def test_no_row_meets_another_groups_matrix() -> None:
    """Each product of the compiled program, forward and backward, is one block's."""
    N, e, R = 64, 4, 16

    def both(x: Any, w: Any, lengths: Any) -> Any:
        y, pullback = jax.vjp(lambda x, w: grouped_product(x, w, lengths, R), x, w)
        return pullback(y)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((N + R, IN), (e, IN, OUT))]
    compiled = jax.jit(both).lower(*shapes, jax.ShapeDtypeStruct((e,), jnp.int32)).compile()
    done = [flops(computation, i) for computation, i, _ in hlo.read(compiled.as_text()).walk()]
    assert [each for each in done if each] == [2 * R * IN * OUT] * 3
