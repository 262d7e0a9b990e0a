"""`meshkit eval` and `meshkit generate`: their arguments. JAX is imported when they run."""

import argparse
import json
from typing import Any

from meshkit.commands import add_command, show, stdout_kept_for_json


def add(commands: Any) -> None:
    """Add them to the parser."""
    evaluate = add_command(
        commands,
        "eval",
        _eval,
        "perplexity of a model on files, on any mesh",
        usage="%(prog)s MODEL TEXT … [--tokenizer FILE] [--json] [--KEY VALUE …]",
    )
    evaluate.epilog = "KEY: any config key, such as mesh.tensor, data.sequence, data.batch, precision, devices."
    evaluate.add_argument("model", metavar="MODEL", help="a run's folder, a checkpoint, or a published folder")
    evaluate.add_argument("text", nargs="+", metavar="TEXT", help="text files, folders or globs")
    evaluate.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json (default: the model's own)")

    generate = add_command(commands, "generate", _generate, "what a model writes after a prompt")
    generate.add_argument("model", metavar="MODEL", help="a run's folder, a checkpoint, or a published folder")
    generate.add_argument("prompt", metavar="PROMPT", help="text to go on from")
    generate.add_argument("--tokens", type=int, default=128, metavar="N", help="at most so many (default: 128)")
    generate.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0: always the likeliest (default: 0.8)"
    )
    generate.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, another text (default: 0)")
    generate.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json (default: the model's own)")
    generate.add_argument("--precision", choices=["bfloat16", "float32"], default="float32", help="(default: float32)")


def _eval(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.use.evaluate import evaluate

    with stdout_kept_for_json(options.json):
        report = evaluate(options.model, options.text, overrides, options.tokenizer)
    return show(report, options.json)


def _generate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.use.decode import generate

    with stdout_kept_for_json(options.json):
        written = generate(
            options.model,
            options.prompt,
            options.tokens,
            tokenizer=options.tokenizer,
            temperature=options.temperature,
            seed=options.seed,
            precision=options.precision,
        )
    print(json.dumps({"prompt": options.prompt, "text": written}) if options.json else options.prompt + written)
    return 0
