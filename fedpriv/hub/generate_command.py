"""`fedpriv generate`: what a run's model writes, and how near that is to what people wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.errors import ConfigError


def generate(
    run: Annotated[Path, typer.Argument(help="Run directory, or the folder of its adapter.")],
    prompt: Annotated[list[str] | None, typer.Argument(help="What to go on from.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="File of prompts: a .txt with one a line, or records in the job's format."
        ),
    ] = None,
    score: Annotated[
        Path | None,
        typer.Option(
            help="File of prompts with what people wrote: BLEU and ROUGE of what the model writes."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first prompts only.")] = None,
    base: Annotated[
        bool, typer.Option("--base", help="Let the base model write, without the adapter.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Where the base model is now, if the run had it elsewhere.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=100, help="0 takes the likeliest token each time.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn at a temperature.")] = 0,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="BLEU without regard to case.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Let the model of a run write after prompts. That costs no privacy.

    Prompts and scores stay on this machine, and are as confidential as the file they are from.
    """
    if sum(map(bool, (prompt, prompts, score))) != 1:
        expected = "expected one of three: prompts that are typed, --prompts or --score"
        raise ConfigError(expected, key="prompts")
    from fedpriv.hub.prompts import Prompt, read_pairs, read_prompts
    from fedpriv.hub.text_scores import check_installed, text_scores

    if score is not None:
        check_installed()
    from fedpriv.hub.writer import Writer

    writer = Writer(run, model)
    if score is not None:
        given = read_pairs(score, writer.columns, "--score")
    elif prompts is not None:
        given = read_prompts(prompts, writer.columns, "--prompts")
    else:
        given = [Prompt(text) for text in prompt or ()]
    given = given[:limit]
    made = writer.write([one.text for one in given], base=base, temperature=temperature, seed=seed)
    scores = None
    if score is not None:
        scores = text_scores(made, [one.references for one in given], lowercase=lowercase)
    if as_json:
        found = {
            "job_id": writer.job,
            "private": writer.private,
            "model": "base" if base else "federated",
            "scores": None if scores is None else scores.as_dict(),
            "answers": [
                {"prompt": one.text, "text": text}
                | ({"references": one.references} if score else {})
                for one, text in zip(given, made, strict=True)
            ],
        }
        print(json.dumps(found, indent=2))
        return
    if writer.private is False:
        print("NOT PRIVATE, for public data only.", file=sys.stderr)
    if scores is None:
        print("\n\n".join(made))
        return
    print(
        f"{len(given)} prompts, {sum(len(one.references) for one in given)} references\n"
        f"BLEU     {scores.bleu:6.2f}   {scores.signature}\n"
        f"ROUGE-1  {100 * scores.rouge.rouge_1:6.2f}\n"
        f"ROUGE-2  {100 * scores.rouge.rouge_2:6.2f}\n"
        f"ROUGE-L  {100 * scores.rouge.rouge_l:6.2f}"
    )
