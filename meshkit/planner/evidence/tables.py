"""The published tables: which rows the planner covers, and under which framework's profile.

A reader turns the rows of one table, by its column names, into cases. What it leaves out, and why, is said in its
docstring. None of them knows a constant for its own table: what differs between frameworks stands in `profile.py`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from meshkit.models.presets import Sizes
from meshkit.planner.evidence import compiled
from meshkit.planner.evidence.cases import Case, Row, case, gpt, integer, integers, llama, number, read
from meshkit.planner.hardware import CATALOGUE, GIB, GIGA
from meshkit.planner.layout import FLOAT32
from meshkit.planner.memory import RESERVE
from meshkit.planner.profile import MEGATRON_2021


def ultrascale(path: Path) -> Iterator[Case | None]:
    """ultrascale_nanotron_runs. A failed run is taken for out of memory only where the planner is not asked to tell:
    the table does not say which it was."""
    columns = {"model", "layers", "hidden", "heads", "ffn", "embeddings", "vocab", "seq", "gpus", "dp", "tp", "pp"}
    for line, row in read(path, columns | {"zero_stage", "mbs", "grad_acc", "tok_s_gpu", "peak_mem_GB"}):
        dp, tp, pp, mbs, acc = integers(row, "dp", "tp", "pp", "mbs", "grad_acc")
        if row["status_marker"] != "ok" or not row["tok_s_gpu"]:
            continue
        kv = 8 if "GQA8" in row["arch_guess"] else None
        shape = integers(row, "layers", "hidden", "heads", "ffn", "vocab", "seq")
        sizes = llama(shape, kv, row["embeddings"] == "tied")
        batch = dp * mbs * acc
        memory = number(row["peak_mem_GB"])
        yield case(
            path.stem,
            line,
            row["model"],
            sizes,
            "h100",
            (dp, tp, pp),
            batch,
            sizes.context,
            mbs,
            "nanotron",
            zero=int(row["zero_stage"]),
            network="efa",
            seconds=batch * sizes.context / (float(row["tok_s_gpu"]) * dp * tp * pp),
            memory=memory * GIGA if memory else None,
        )


def hagemann(path: Path) -> Iterator[Case | None]:
    """hagemann_layouts: all but rows whose kernel was not available."""
    columns = {"model", "layers", "hidden", "heads", "ffn", "seq", "vocab_inferred", "gbs_inferred", "tp", "pp"}
    for line, row in read(path, columns | {"mbs", "sequence_parallel", "recompute", "kernel", "status", "step_time_s"}):
        if "not available" in row["status"]:
            continue
        sizes = llama(integers(row, "layers", "hidden", "heads", "ffn", "vocab_inferred", "seq"))
        seconds = number(row["step_time_s"])
        yield case(
            path.stem,
            line,
            row["model"],
            sizes,
            "a100-80",
            (int(row["dp_derived"]), int(row["tp"]), int(row["pp"])),
            int(row["gbs_inferred"]),
            sizes.context,
            int(row["mbs"]),
            KERNELS[row["kernel"]],
            recompute="full" if row["recompute"] == "every_layer" else "none",
            sequence_parallel=row["sequence_parallel"] == "True",
            seconds=seconds,
            out_of_memory="OOM" in row["status"],
        )


KERNELS = {
    "torch": "aleph-alpha-torch",
    "fused": "aleph-alpha-fused",
    "flash_attentionv1.0.8": "aleph-alpha-flash1",
    "flash_attention": "aleph-alpha-flash1",
    "flash_attention2": "aleph-alpha",
    "flash_attention2 + RMS kernel": "aleph-alpha-rms",
}
"""Hagemann's kernels -> profile."""


def sc21(path: Path) -> Iterator[Case | None]:
    """megatron_sc21_table1: all rows; step times as the table derives them from hardware FLOPs."""
    for line, row in read(path, {"layers", "hidden", "heads", "seq", "vocab", "gpus", "tp", "pp", "mbs", "gbs"}):
        sizes = gpt(integers(row, "layers", "hidden", "heads", "vocab", "seq"))
        yield case(
            path.stem,
            line,
            row["model"],
            sizes,
            "a100-80",
            (int(row["dp_derived"]), int(row["tp"]), int(row["pp"])),
            int(row["gbs"]),
            sizes.context,
            int(row["mbs"]),
            "megatron-2021",
            virtual=int(row["virtual_stages_derived"]),
            recompute="full",
            zero=0,
            sequence_parallel=False,
            seconds=float(row["implied_iter_time_s_derived"]),
        )


def bloom(path: Path) -> Iterator[Case | None]:
    """bloom_a100_topology_tuning: rows with layers; heads default to hidden / 144.

    Memory is nvidia-smi's, so the reserve is taken off.
    """
    for line, row in read(path, {"hidden", "layers", "heads", "seq", "dp", "tp", "pp", "mbs", "gbs", "sec_per_it"}):
        layers, hidden, seconds = integer(row["layers"]), integer(row["hidden"]), number(row["sec_per_it"])
        if not layers or not hidden or "swapped" in row["remark"] or "printed gpus" in row["remark"]:
            continue
        heads = integer(row["heads"]) or hidden // 144
        memory = number(row["mem_GB"])
        profile = MEGATRON_2021
        if "fp32 grad accumulation" in row["precision"]:
            profile = dataclasses.replace(profile, gradient_memory=profile.gradient_memory + FLOAT32)
        yield case(
            path.stem,
            line,
            f"{row['size_printed']} {hidden}",
            gpt((layers, hidden, heads, 250_000, 2048)),
            "a100-80",
            (int(row["dp"]), int(row["tp"]), int(row["pp"])),
            int(row["gbs"]),
            2048,
            int(row["mbs"]),
            profile,
            recompute="full",
            zero=int(row["zero_stage"]),
            sequence_parallel=False,
            network="omni-path",
            seconds=seconds,
            memory=memory * GIB - RESERVE if memory else None,
            out_of_memory=row["status"] == "OOM" or None,
        )


def simumax(path: Path) -> Iterator[Case | None]:
    """simumax_b200: dense models without context or expert parallelism."""
    for line, row in read(path, {"model", "layers_reduced", "hidden", "heads", "kv_heads", "ffn", "tp", "cp", "pp"}):
        if not row["hidden"] or int(row["cp"]) > 1 or int(row["ep"]) > 1:
            continue
        shape = integers(row, "layers_reduced", "hidden", "heads", "ffn", "vocab", "seq")
        sizes = llama(shape, int(row["kv_heads"]))
        first, last = (float(row[f"alloc_{which}_stage_GiB"]) * GIB for which in ("first", "last"))
        yield case(
            path.stem,
            line,
            row["model"],
            sizes,
            "b200",
            (int(row["dp"]), int(row["tp"]), int(row["pp"])),
            int(row["gbs_derived"]),
            sizes.context,
            int(row["mbs"]),
            "megatron",
            seconds=float(row["real_ms"]) / 1e3,
            memory=float(row["real_alloc_GiB"]) * GIB,
            stages=(first, last),
        )


def dgxc(path: Path) -> Iterator[Case | None]:
    """nvidia_dgxc_recipes_step_times: NeMo/Megatron without context parallelism, where it says how it interleaves."""
    for line, row in read(path, {"model", "framework", "system", "precision", "layers", "dp", "step_time_s", *RECIPE}):
        if row["framework"] == "NeMo/Megatron" and row["system"].lower() in CATALOGUE:
            yield _recipe(
                path, line, row, row["model"], row["system"], integer(row["layers"]), float(row["step_time_s"])
            )


def nemo(path: Path) -> Iterator[Case | None]:
    """nemo_2407_h100_fp8: pretraining without context parallelism."""
    for line, row in read(path, {"task", "system", "implied_step_time_s_derived", *RECIPE}):
        if row["task"] == "pretrain":
            seconds = float(row["implied_step_time_s_derived"])
            yield _recipe(path, line, row, row["model"], "h100", None, seconds)


def bridge(path: Path) -> Iterator[Case | None]:
    """megatron_bridge_perf_summary: dense pretraining in FP8 without FSDP or context parallelism, on GPUs of the
    catalogue."""
    for line, row in read(path, {"task", "kind", "system", "fsdp", "implied_step_time_s_derived", *RECIPE}):
        system, seconds = row["system"].removeprefix("DGX-"), number(row["implied_step_time_s_derived"])
        plain = row["task"] == "Pre-Training" and row["kind"] == "dense" and row["fsdp"] in ("", "0")
        if plain and seconds and system.lower() in CATALOGUE and row["precision"] != "NVFP4":
            yield _recipe(path, line, row, row["model"], system, None, seconds)


RECIPE = {"model", "gpus", "gbs", "mbs", "seq", "tp", "pp", "cp", "vp", "precision"}
"""Columns of NVIDIA's tables."""


def _recipe(
    path: Path, line: int, row: Row, model: str, system: str, layers: int | None, seconds: float
) -> Case | None:
    known = NVIDIA.get(model.upper().replace("_", "-"))
    shape = [integer(row[key]) for key in ("gpus", "gbs", "mbs", "seq", "tp", "pp")]
    stages_known = row["pp"] == "1" or integer(row["vp"]) is not None
    if known is None or None in shape or row["cp"] not in ("", "1") or not stages_known or not row["precision"]:
        return None
    gpus, batch, microbatch, sequence, tensor, pipe = (int(value or 0) for value in shape)
    sizes = dataclasses.replace(known, layers=layers or known.layers, context=sequence)
    return case(
        path.stem,
        line,
        f"{model} {row['precision']}",
        sizes,
        system.lower(),
        (gpus // (tensor * pipe), tensor, pipe),
        batch,
        sequence,
        microbatch,
        "nemo",
        virtual=integer(row["vp"]) or 1,
        precision="float8" if "FP8" in row["precision"] else "bfloat16",
        seconds=seconds,
    )


def _squared_relu(layers: int, width: int, heads: int, kv_heads: int) -> Sizes:
    """Nemotron-4 (arXiv 2402.16819): no gate, four widths, an untied vocabulary of 256,000."""
    plain = gpt((layers, width, heads, 256_000, 4096), tied=False)
    return dataclasses.replace(plain, kv_heads=kv_heads, dropout=0.0)


NVIDIA: dict[str, Sizes] = {
    "GPT3-20B": gpt((44, 6144, 48, 51200, 2048)),
    "GPT3-175B": gpt((96, 12288, 96, 51200, 2048)),
    "LLAMA2-13B": llama((40, 5120, 40, 13824, 32000, 4096)),
    "LLAMA3-8B": llama((32, 4096, 32, 14336, 128256, 8192), 8),
    "LLAMA3-70B": llama((80, 8192, 64, 28672, 128256, 8192), 8),
    "LLAMA3.1-8B": llama((32, 4096, 32, 14336, 128256, 8192), 8),
    "LLAMA3.1-70B": llama((80, 8192, 64, 28672, 128256, 8192), 8),
    "LLAMA3.1-405B": llama((126, 16384, 128, 53248, 128256, 8192), 8),
    "NEMOTRON4-15B": _squared_relu(32, 6144, 48, 8),
    "NEMOTRON4-340B": _squared_relu(96, 18432, 96, 8),
}
"""Models of NVIDIA's tables, which give no sizes."""

TABLES: dict[str, Callable[[Path], Iterator[Case | None]]] = {
    "ultrascale_nanotron_runs": ultrascale,
    "hagemann_layouts": hagemann,
    "megatron_sc21_table1": sc21,
    "bloom_a100_topology_tuning": bloom,
    "simumax_b200": simumax,
    "nvidia_dgxc_recipes_step_times": dgxc,
    "nemo_2407_h100_fp8": nemo,
    "megatron_bridge_perf_summary": bridge,
    compiled.TABLE.stem: compiled.compiled,
}
