"""`meshkit view`: from a config, a run's folder or nothing to the page."""

import argparse
import contextlib
import json
import sys
import warnings
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshkit.config import RunConfig, load
from meshkit.errors import MeshkitError
from meshkit.mesh import resolve as resolve_mesh
from meshkit.models.presets import sizes
from meshkit.pipeline import builders
from meshkit.pipeline.costs import WIDENING, uncounted
from meshkit.planner.layout import Job, beyond
from meshkit.planner.search import search
from meshkit.view import export
from meshkit.view.page_file import Boot, Preset
from meshkit.view.performance import of_layout
from meshkit.view.server import HOST, server
from meshkit.view.setting import LESSONS, PRESETS_OF_THE_PAGE, Setting, resolve
from meshkit.view.world import BALANCED, OWN_MODEL, World, named

CONFIG_FILE = "config.toml"
TIMELINE = Path("profile") / "timeline.json"
"""Of a run's folder; the timeline is there after `meshkit train --profile`."""


def run(options: argparse.Namespace, overrides: Mapping[str, Any]) -> int:
    """The command, with its options as `cli.py` reads them."""
    world, boot = prepare(options.source, options.cluster, overrides)
    if options.export is not None:
        export.check(options.export)
        print("computing the layouts that the file will hold, half a minute or so", file=sys.stderr)
        size = export.write(world, boot, options.export)
        _say(options.json, f"{options.export}: {size / 2**20:.1f} MiB", file=str(options.export), bytes=size)
        return 0
    serving = server(world, boot, options.port)
    address = f"http://{HOST}:{serving.server_port}/"
    _say(options.json, f"{address} (Ctrl-C ends it)", address=address)
    if not options.no_browser:
        webbrowser.open(address)
    with serving, contextlib.suppress(KeyboardInterrupt):  # its end, not a failure
        serving.serve_forever()
    return 0


def _say(as_json: bool, text: str, **result: Any) -> None:
    print(json.dumps(result) if as_json else text, flush=True)


def prepare(source: str | None, cluster: str, overrides: Mapping[str, Any] | None = None) -> tuple[World, Boot]:
    """What there is to choose from, and the first setting: a config's or a run's, else Llama-3-70B on 64 GPUs.

    cluster: a kind of devices, how many of it, or a cluster's file (see `named`). overrides: keys over the config's.
    Raises MeshkitError for a source that is neither, and for a config whose layout cannot be drawn.
    """
    own, measured = None, None
    kind, devices, clusters = named(cluster)
    if source is None:
        if overrides:
            key = next(iter(overrides))
            raise MeshkitError(f"--{key} is a key of a config: give one before it, as meshkit view run.toml --{key} …")
        world = World.of(clusters=clusters)
        first = Setting(cluster=kind)
        if devices is not None and (clusters or devices != first.mesh.devices):
            first = planned(world, kind, devices)
    else:
        path = Path(source)
        if path.is_dir():
            measured, path = _timeline(path), path / CONFIG_FILE
        config = load(path, overrides)
        _check(config)
        first = own = of_config(config, kind, devices)
        world = World.of(sizes(config.model), clusters, [own.schedule], [own.layers])
    resolve(world, first)
    presets = ({OWN_MODEL: own} if own else {}) | PRESETS_OF_THE_PAGE
    by_name = [Preset(name, setting.query) for name, setting in presets.items()]
    lessons = {name: setting.query for name, setting in LESSONS.items()}
    return world, Boot(first.query, by_name, lessons, measured)


SHOWN = ("llama3-70b", "llama3-8b", "llama3-1b", "tiny")
"""What is put onto a cluster for which no config is given: the largest that fits."""


def planned(world: World, kind: str, devices: int) -> Setting:
    """The planner's best layout of a model on all of a cluster's devices."""
    on = world.clusters[kind].take(devices)
    for model in SHOWN:
        sizes = world.models[model]
        start = Setting(model, kind, sequence=min(Setting.sequence, sizes.context))
        with contextlib.suppress(MeshkitError):  # no legal mesh of so many devices
            best = search(Job(model, sizes, start.batch, start.sequence, start.precision), on).best
            if best:
                return of_layout(start, best[0])
    raise MeshkitError(f"{on}: no layout of {', '.join(SHOWN)} fits it: give a config")


def of_config(config: RunConfig, cluster: str, devices: int | None = None) -> Setting:
    """The setting of a run, on as many devices if its mesh leaves that open.

    Raises MeshkitError when nothing says how many, or for a schedule that is none.
    """
    mesh, pipeline = config.mesh, config.pipeline
    if -1 in mesh.sizes.values() and (known := devices or config.devices) is not None:
        mesh = resolve_mesh(mesh, known)
    elif config.devices is not None:
        mesh = resolve_mesh(mesh, config.devices)
    if -1 in mesh.sizes.values():
        raise MeshkitError(
            f"mesh {mesh}: the view needs to know how many devices: set mesh.data, devices, or --cluster 64x{cluster}"
        )
    builders.from_config(pipeline, mesh.pipe)
    return Setting(
        OWN_MODEL,
        cluster,
        mesh.data,
        mesh.tensor,
        mesh.pipe,
        pipeline.schedule,
        pipeline.virtual,
        pipeline.microbatches,
        config.recompute,
        config.zero,
        config.data.batch,
        config.data.sequence,
        config.precision,
        str(pipeline.overlap).lower(),
        BALANCED if pipeline.layers_per_stage is None else ",".join(map(str, pipeline.layers_per_stage)),
    )


def _check(config: RunConfig) -> None:
    """Warns of what will not be shown. Raises MeshkitError when the model is one that the planner cannot count."""
    model = sizes(config.model)
    what = uncounted(model)
    if what is not None:
        raise MeshkitError(f"{what}: the view counts the work of {', '.join(WIDENING)}, not of other models")
    for key in beyond(config, model):
        warnings.warn(f"{key}: the view shows the layout without it", stacklevel=2)


def _timeline(folder: Path) -> dict[str, Any] | None:
    """What `meshkit train --profile` recorded in a run's folder, None without."""
    path = folder / TIMELINE
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise MeshkitError(f"{path}: cannot be read as a timeline: {error}") from None
