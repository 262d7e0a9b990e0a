"""Python's own sentences on the page in both of its languages: why a choice is refused, what a placement costs.

An error is raised once, in English, where its rule is. Here each such sentence has its Chinese: the English is taken
apart by its own wording, and its numbers are put into the other. tests/view/test_words.py holds that no sentence that
can reach the page is missing.
"""

import dataclasses
import functools
import re


@dataclasses.dataclass(frozen=True)
class Text:
    """The same in English and in Chinese. The field's terms, and keys of the config, stay as they are in both."""

    en: str = ""
    zh: str = ""


Clause = tuple[str, str]
"""English, Chinese; {blanks} stand for what is taken over."""

SENTENCES: tuple[tuple[Clause, ...], ...] = (
    # server.py, setting.py
    (("{path}: there are / and /api/<part>", "{path}：只有 / 和 /api/<part>"),),
    (("{name} = {value}: no such control; did you mean {near}?", "{name} = {value}：没有此控制；是否想用 {near}？"),),
    (("{name} = {value}: no such control; known: {known}", "{name} = {value}：没有此控制；可用：{known}"),),
    (("{name} = {value}: it is a whole number up to {most}", "{name} = {value}：须为不超过 {most} 的整数"),),
    (("{name} = {value}: it is said twice", "{name} = {value}：重复给出"),),
    (
        (
            "microbatches = {n}: this page draws {most} forwards at most, and these are {all}",
            "microbatches = {n}：本页最多画 {most} 个前向，而这里有 {all} 个",
        ),
    ),
    (("{name} = {value}: no such {kind}; known: {known}", "{name} = {value}：没有此项；可选：{known}"),),
    (("{name} = {value}: it is one of {known}", "{name} = {value}：只能是 {known} 之一"),),
    (
        (
            "layers = {value}: it is balanced, or layers of each stage, as 3,2,2,1",
            "layers = {value}：须为 balanced，或每个 stage 的层数，如 3,2,2,1",
        ),
    ),
    (("{name} = 0: it is at least 1", "{name} = 0：至少为 1"),),
    (
        (
            "the mesh takes {n} devices: this page draws {most} at most",
            "mesh 需要 {n} 台设备：本页最多画 {most} 台",
        ),
    ),
    # world.py
    (("the mesh takes {n} devices and the cluster has {most}", "mesh 需要 {n} 台设备，而集群只有 {most} 台"),),
    (
        (
            "{n} devices do not fill nodes of {size}: take {low} or {high} devices",
            "{n} 台设备填不满每节点 {size} 台的节点：可取 {low} 或 {high} 台",
        ),
    ),
    # planner/estimate.py: workload
    (
        (
            "precision = {value}: no peak rate of {kind} is published for it that the planner could take: set "
            "precision to {known}, or describe the device in a cluster's file, with the rate as device.float32",
            "precision = {value}：{kind} 没有公布此精度的峰值，planner 无从估算：precision 可取 {known}，"
            "或在集群文件中描述该设备，用 device.float32 给出峰值",
        ),
    ),
    # models/presets.py: check_cut
    (
        (
            "data.sequence = {n} exceeds model.context = {most}: lower the one or raise the other",
            "data.sequence = {n} 超过 model.context = {most}：减小前者或增大后者",
        ),
    ),
    (
        (
            "{key} = {n} does not split into mesh.tensor = {parts} equal parts: set mesh.tensor to one of {fits}",
            "{key} = {n} 不能均分成 mesh.tensor = {parts} 份：mesh.tensor 可取 {fits}",
        ),
        ("; or {same} to {near}", "；或把 {same} 改为 {near}"),
    ),
    # pipeline/placement.py: place
    (
        (
            "model.layers = {n} are too few for mesh.pipe = {stages} stages",
            "model.layers = {n} 层少于 mesh.pipe = {stages} 个 stage",
        ),
        (" × pipeline.virtual = {chunks} chunks", " × pipeline.virtual = {chunks} 个 chunk"),
        (": set ", "：可将 "),
        ("mesh.pipe to {fits} or less, or ", "mesh.pipe 设为 {fits} 以下，或 "),
        ("mesh.pipe to 1, or ", "mesh.pipe 设为 1，或 "),
        ("pipeline.virtual to {most} or less, or ", "pipeline.virtual 设为 {most} 以下，或 "),
        ("pipeline.virtual to 2, or ", "pipeline.virtual 设为 2，或 "),
        (
            "pipeline.virtual to 1 and pipeline.schedule to '1f1b', or ",
            "pipeline.virtual 设为 1 并将 pipeline.schedule 设为 '1f1b'，或 ",
        ),
        ("model.layers to {least} or more", "model.layers 设为 {least} 以上"),
    ),
    (
        (
            "pipeline.layers_per_stage = {list}: it takes {n} numbers (mesh.pipe = {stages}",
            "pipeline.layers_per_stage = {list}：需要 {n} 个数（mesh.pipe = {stages}",
        ),
        (" × pipeline.virtual = {chunks}", " × pipeline.virtual = {chunks}"),
        (
            "), each at least 1, that add up to model.layers = {layers}; for example {even}",
            "），每个至少为 1，总和为 model.layers = {layers}；例如 {even}",
        ),
    ),
    # config.py: microbatch_size
    (
        (
            "data.batch = {n} does not split into mesh.data = {replicas} replicas × pipeline.microbatches = {m} "
            "microbatches of equal size: set data.batch to {near}",
            "data.batch = {n} 不能均分到 mesh.data = {replicas} 个副本 × pipeline.microbatches = {m} 个 microbatch："
            "data.batch 可取 {near}",
        ),
        (", or pipeline.microbatches to {fits}", "，或 pipeline.microbatches 取 {fits}"),
    ),
    # pipeline/builders.py
    (
        (
            "pipeline.microbatches = {m} is not a multiple of mesh.pipe = {stages}, as the interleaved schedule needs: "
            "set pipeline.microbatches to {fits}",
            "interleaved 调度要求 pipeline.microbatches = {m} 是 mesh.pipe = {stages} 的倍数：可取 {fits}",
        ),
    ),
    (
        (
            "pipeline.virtual = {chunks} needs pipeline.schedule = 'interleaved'; '{name}' has one chunk a stage",
            "pipeline.virtual = {chunks} 需要 pipeline.schedule = 'interleaved'；'{name}' 每个 stage 只有一个 chunk",
        ),
    ),
    (
        (
            "pipeline.overlap = true does not go with the interleaved schedule: choose 1f1b, or false",
            "pipeline.overlap = true 不能与 interleaved 调度同用：改用 1f1b，或设为 false",
        ),
    ),
    *(
        (
            (
                f"{{file}} has {{n}} {what} and {key} = {{asked}}: set {key} to {{n_too}}",
                f"{{file}} 有 {{n}} {zh}，而 {key} = {{asked}}：{key} 应设为 {{n_too}}",
            ),
        )
        for what, zh, key in (
            ("stages", "个 stage", "mesh.pipe"),
            ("microbatches", "个 microbatch", "pipeline.microbatches"),
            ("chunks a stage", "个 chunk（每 stage）", "pipeline.virtual"),
            ("ticks a hop ('# hop')", "个 tick 的传递（'# hop'）", "pipeline.overlap"),
        )
    ),
    # mesh.py: placement_warning
    (
        (
            "{n} of {all} tensor groups (mesh.tensor = {size}) have members on more than one node ({of} devices a "
            "node): their all-reduces, several a layer, cross the network between nodes instead of NVLink. Set "
            "mesh.tensor to {fit} or a divisor of it.",
            "{all} 个 tensor 组（mesh.tensor = {size}）中有 {n} 个跨节点（每节点 {of} 台设备）：它们每层数次的 "
            "all-reduce 走节点间网络而不是 NVLink。把 mesh.tensor 设为 {fit} 或它的约数。",
        ),
    ),
    # planner/explain.py
    (
        (
            "{how}; hidden behind work: {share}",
            "{how}；被计算掩盖：{share}",
        ),
    ),
    (("layers balanced", "各 stage 层数均分"),),
    (("{m} microbatches of {b}", "{m} 个 microbatch，每个 {b} 个样本"),),
    (("{name}'s table; ideal {share} of a pipeline", "{name} 的时间表；理想流水线为 {share}"),),
    # planner/hardware.py: where figures come from
    (("{where}; network: one 400 Gb/s NIC a GPU", "{where}；网络：每 GPU 一块 400 Gb/s 网卡"),),
    (("{where}; network: {other}", "{where}；网络：{other}"),),
    (("{where}; its rate is float16's", "{where}；速率按 float16"),),
    (("NVIDIA Ada whitepaper; no NVLink", "NVIDIA Ada 白皮书；无 NVLink"),),
    (("{where}; {n} links of {rate} GB/s", "{where}；{n} 条链路，每条 {rate} GB/s"),),
    (("the user's file", "用户的文件"),),
    # planner/search.py
    (
        (
            "{model} has no legal mesh of {n} devices: data must divide the batch of {batch} ({data}), tensor the "
            "heads ({heads}, {kv} of keys and values), pipe is at most the layers ({layers}): change the number of "
            "devices or the batch",
            "{model} 在 {n} 台设备上没有合法的 mesh：data 须整除 batch {batch}（{data}），tensor 须整除头数（{heads}，"
            "键值头 {kv}），pipe 不超过层数（{layers}）：改变设备数或 batch",
        ),
    ),
)
"""Each a first clause and such as may follow it."""


def said(english: str) -> Text:
    """A sentence of Python's as a Text. Without a Chinese one it stays English in both, which no test lets pass."""
    for sentence in SENTENCES:
        found = _pattern(sentence).fullmatch(english)
        if found:
            blanks = {name: text for name, text in found.groupdict().items() if text is not None}
            told = (chinese for k, (_, chinese) in enumerate(sentence) if f"clause{k}" in blanks)
            return Text(english, "".join(told).format(**{n: _chinese_list(t) for n, t in blanks.items()}))
    return Text(english, english)


def _chinese_list(text: str) -> str:
    return text.replace(" or ", " 或 ").replace(", ", "、")


@functools.cache
def _pattern(sentence: tuple[Clause, ...]) -> re.Pattern[str]:
    """What the English of a sentence looks like: its first clause, then any of the others in order."""
    whole = ""
    for k, (english, _) in enumerate(sentence):
        parts = re.split(r"\{(\w+)\}", english)
        clause = "".join(re.escape(part) if n % 2 == 0 else f"(?P<{part}>[^;]+?)" for n, part in enumerate(parts))
        whole += f"(?P<clause{k}>{clause})" + ("?" if k else "")
    return re.compile(whole)
