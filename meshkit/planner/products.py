"""FLOPs of the products in a compiled program, by what XLA makes of them: dots, cuBLAS's and cuDNN's calls. No JAX.

A product of n·k by k·m numbers is 2·n·k·m FLOPs. Elementwise work is not counted: it is a matter of bandwidth.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from meshkit.hlo import Instruction

Computation = Mapping[str, Instruction]

PRODUCTS_OF_ATTENTION = {
    f"__cudnn$fmha{scores}Softmax{which}": products
    for scores in ("", "ScaleBias")  # a mask is a bias to cuDNN
    for which, products in (("", 2), ("Backward", 5))
}
"""Q·Kᵀ and P·V; backward also Q·Kᵀ again, then the gradients of V, P, Q and K (arXiv 2307.08691, section 2.3)."""

NO_PRODUCTS = re.compile(
    r"Sharding|SPMD\w*|annotate_device_placement|Move\w*|(Alloc|Pin)\w*Buffer|TopK|__cub\$\w*|\w*Barrier\w*"
)
"""Custom calls that have none: marks for the compiler, copies, sorts."""


def flops(computation: Computation, instruction: Instruction) -> float | None:
    """FLOPs of the products that one run of an instruction makes itself; None where that is not known.

    What it calls (a fusion's inside, a loop's body) is not in it: `hlo.Module.walk` goes there too.
    """
    if instruction.opcode == "dot":
        contracted = _numbers(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        return _product(computation, instruction, contracted)
    if instruction.opcode == "convolution":
        return None
    if instruction.opcode != "custom-call":
        return 0.0
    target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return _called(computation, instruction, target[1] if target else "")


def is_attention(instruction: Instruction) -> bool:
    """Whether it is a fused attention kernel."""
    return any(f'"{name}"' in instruction.attributes for name in PRODUCTS_OF_ATTENTION)


def _called(computation: Computation, instruction: Instruction, target: str) -> float | None:
    if target.startswith("__cublas$"):
        dims = _config(instruction, "gemm_backend_config")["dot_dimension_numbers"]["lhs_contracting_dimensions"]
        return _product(computation, instruction, [int(dim) for dim in dims])
    if target in PRODUCTS_OF_ATTENTION:
        config = _config(instruction, "cudnn_fmha_backend_config")
        *outer, queries, keys = (int(size) for size in config["intermediate_tensor_shape"]["dimensions"])
        head_dim = _dims(computation[instruction.operands[0]].type)[-1]
        scores = _visible(queries, keys, config["mask_type"])
        if scores is None:
            return None
        return PRODUCTS_OF_ATTENTION[target] * 2.0 * math.prod(outer) * scores * head_dim
    return 0.0 if NO_PRODUCTS.fullmatch(target) else None


def _visible(queries: int, keys: int, mask: str) -> int | None:
    """Scores that a mask leaves, of queries × keys: what a flash kernel computes, up to the edges of its blocks."""
    known: dict[str, Callable[[], int]] = {
        "NO_MASK": lambda: queries * keys,
        "PADDING": lambda: queries * keys,
        "CAUSAL": lambda: sum(min(q, keys) for q in range(1, queries + 1)),
        "PADDING_CAUSAL": lambda: sum(min(q, keys) for q in range(1, queries + 1)),
    }
    return known[mask]() if mask in known else None


def _product(computation: Computation, instruction: Instruction, contracted: list[int]) -> float:
    left = _dims(computation[instruction.operands[0]].type)
    return 2.0 * math.prod(_dims(instruction.type)) * math.prod(left[dim] for dim in contracted)


def _dims(type_: str) -> list[int]:
    """Sizes of an array type, or of a tuple's first array."""
    found = re.search(r"\w+\[([\d,]*)\]", type_)
    assert found, type_
    return [int(size) for size in found[1].split(",") if size]


def _numbers(form: str, text: str) -> list[int]:
    found = re.search(form, text)
    return [int(number) for number in found[1].split(",") if number] if found else []


def _config(instruction: Instruction, key: str) -> Any:
    """The backend's own configuration of a call."""
    _, _, text = instruction.attributes.partition("backend_config=")
    config, _ = json.JSONDecoder().raw_decode(text)
    return (json.loads(config) if isinstance(config, str) else config)[key]
