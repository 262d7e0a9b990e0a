"""The published tables: which rows the planner covers, and under which framework's profile.

A reader turns the rows of one table, by its column names, into cases. What it leaves out, and why, is said in its
docstring. None of them knows a constant for its own table: what differs between frameworks stands in `profile.py`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from meshkit.planner.evidence.cases import Case, case, gpt, integer, llama, number, read
from meshkit.planner.hardware import GIB, GIGA
from meshkit.planner.layout import FLOAT32
from meshkit.planner.memory import RESERVE
from meshkit.planner.profile import MEGATRON_2021


def ultrascale(path: Path) -> Iterator[Case | None]:
    """ultrascale_nanotron_runs. A failed run is taken for out of memory only where the planner is not asked to tell:
    the table does not say which it was."""
    columns = {"model", "layers", "hidden", "heads", "ffn", "embeddings", "vocab", "seq", "gpus", "dp", "tp", "pp"}
    for line, row in read(path, columns | {"zero_stage", "mbs", "grad_acc", "tok_s_gpu", "peak_mem_GB"}):
        dp, tp, pp, mbs, acc = (int(row[k]) for k in ("dp", "tp", "pp", "mbs", "grad_acc"))
        if row["status_marker"] != "ok" or not row["tok_s_gpu"]:
            continue
        kv = 8 if "GQA8" in row["arch_guess"] else None
        sizes = llama(
            *(int(row[k]) for k in ("layers", "hidden", "heads", "ffn", "vocab", "seq")), kv, row["embeddings"] == "tied"
        )
        batch = dp * mbs * acc
        memory = number(row["peak_mem_GB"])
        yield case(
            path.stem, line, row["model"], sizes, "h100", (dp, tp, pp), batch, sizes.context, mbs, "nanotron",
            zero=int(row["zero_stage"]), network="efa",
            seconds=batch * sizes.context / (float(row["tok_s_gpu"]) * dp * tp * pp),
            memory=memory * GIGA if memory else None,
        )


def hagemann(path: Path) -> Iterator[Case | None]:
    """hagemann_layouts: all but rows whose kernel was not available."""
    columns = {"model", "layers", "hidden", "heads", "ffn", "seq", "vocab_inferred", "gbs_inferred", "tp", "pp"}
    for line, row in read(path, columns | {"mbs", "sequence_parallel", "recompute", "kernel", "status", "step_time_s"}):
        if "not available" in row["status"]:
            continue
        sizes = llama(*(int(row[k]) for k in ("layers", "hidden", "heads", "ffn", "vocab_inferred", "seq")))
        seconds = number(row["step_time_s"])
        yield case(
            path.stem, line, row["model"], sizes, "a100-80",
            (int(row["dp_derived"]), int(row["tp"]), int(row["pp"])),
            int(row["gbs_inferred"]), sizes.context, int(row["mbs"]), KERNELS[row["kernel"]],
            recompute="full" if row["recompute"] == "every_layer" else "none",
            sequence_parallel=row["sequence_parallel"] == "True",
            seconds=seconds, out_of_memory="OOM" in row["status"],
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
        sizes = gpt(*(int(row[k]) for k in ("layers", "hidden", "heads", "vocab", "seq")))
        yield case(
            path.stem, line, row["model"], sizes, "a100-80",
            (int(row["dp_derived"]), int(row["tp"]), int(row["pp"])), int(row["gbs"]), sizes.context, int(row["mbs"]),
            "megatron-2021", virtual=int(row["virtual_stages_derived"]), recompute="full", zero=0,
            sequence_parallel=False, seconds=float(row["implied_iter_time_s_derived"]),
        )


def bloom(path: Path) -> Iterator[Case | None]:
    """bloom_a100_topology_tuning: rows with layers and seconds an iteration or memory; heads default to hidden / 144."""
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
            path.stem, line, f"{row['size_printed']} {hidden}", gpt(layers, hidden, heads, 250_000, 2048), "a100-80",
            (int(row["dp"]), int(row["tp"]), int(row["pp"])), int(row["gbs"]), 2048, int(row["mbs"]), profile,
            recompute="full", zero=int(row["zero_stage"]), sequence_parallel=False, network="omni-path", seconds=seconds,
            memory=memory * GIB - RESERVE if memory else None, out_of_memory=row["status"] == "OOM" or None,
        )


def simumax(path: Path) -> Iterator[Case | None]:
    """simumax_b200: dense models without context or expert parallelism."""
    for line, row in read(path, {"model", "layers_reduced", "hidden", "heads", "kv_heads", "ffn", "tp", "cp", "pp"}):
        if not row["hidden"] or int(row["cp"]) > 1 or int(row["ep"]) > 1:
            continue
        sizes = llama(
            *(int(row[k]) for k in ("layers_reduced", "hidden", "heads", "ffn", "vocab", "seq", "kv_heads"))
        )
        first, last = (float(row[f"alloc_{which}_stage_GiB"]) * GIB for which in ("first", "last"))
        yield case(
            path.stem, line, row["model"], sizes, "b200", (int(row["dp"]), int(row["tp"]), int(row["pp"])),
            int(row["gbs_derived"]), sizes.context, int(row["mbs"]), "megatron", seconds=float(row["real_ms"]) / 1e3,
            memory=float(row["real_alloc_GiB"]) * GIB, stages=(first, last),
        )


def dgxc(path: Path) -> Iterator[Case | None]:
    """nvidia_dgxc_recipes_step_times: NeMo/Megatron in BF16 without context parallelism."""
    for line, row in read(path, {"model", "framework", "system", "precision", "seq", "gbs", "mbs", "tp", "pp", "vp"}):
        plain = row["framework"] == "NeMo/Megatron" and row["precision"] == "BF16" and row["cp"] in ("", "1")
        if not plain or row["model"] not in NVIDIA:
            continue
        data, tensor, pipe = int(row["dp"]), int(row["tp"]), int(row["pp"])
        if int(row["gpus"]) != data * tensor * pipe:
            continue
        yield case(
            path.stem, line, row["model"], NVIDIA[row["model"]](int(row["layers"]), int(row["seq"])),
            row["system"].lower(), (data, tensor, pipe), int(row["gbs"]), int(row["seq"]), int(row["mbs"]), "nemo",
            virtual=integer(row["vp"]) or 1, seconds=float(row["step_time_s"]),
        )


def _nemotron15(layers: int, sequence: int) -> object:
    # Nemotron-4 15B (arXiv 2402.16819): squared ReLU, no gate, grouped queries, untied 256k vocabulary.
    return None


NVIDIA: dict[str, Callable] = {
    "GPT3-175B": lambda layers, sequence: gpt(layers, 12288, 96, 51200, sequence),
    "Llama3.1-8B": lambda layers, sequence: llama(layers, 4096, 32, 14336, 128256, sequence, 8),
    "Llama3.1-70B": lambda layers, sequence: llama(layers, 8192, 64, 28672, 128256, sequence, 8),
    "Llama3.1-405B": lambda layers, sequence: llama(layers, 16384, 128, 53248, 128256, sequence, 8),
}


TABLES: dict[str, Callable[[Path], Iterator[Case | None]]] = {
    "ultrascale_nanotron_runs": ultrascale,
    "hagemann_layouts": hagemann,
    "megatron_sc21_table1": sc21,
    "bloom_a100_topology_tuning": bloom,
    "simumax_b200": simumax,
    "nvidia_dgxc_recipes_step_times": dgxc,
}
