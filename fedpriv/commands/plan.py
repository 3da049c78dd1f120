"""`fedpriv plan`: its options, its curve, and words on what the figures mean."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedpriv.errors import AccountingError, ConfigError
from fedpriv.files import finite_json

if TYPE_CHECKING:
    from fedpriv.config.job import JobConfig
    from fedpriv.privacy.accounting.planning import Planned

WIDEST_BAR = 40
SLOTS = 4  # of a look by default, as in `fedpriv.config.looks`
_NAMES = {
    "epsilon": "ε",
    "delta": "δ",
    "sample_rate": "sample rate",
    "steps": "steps",
    "noise_multiplier": "noise multiplier",
}


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Federation file, whose ε, δ, sample rate and steps are taken where no option says"
            " otherwise, with its looks and its secure sum."
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε that the plan may cost at most.")] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="δ of every ε.", show_default="1e-5"),
    ] = None,
    sample_rate: Annotated[
        float | None, typer.Option(help="Chance of a unit to be in a step.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Private steps: the rounds, where sync is 1.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise over the clip norm.")
    ] = None,
    batch: Annotated[
        float | None, typer.Option(help="Expected batch; with --size, instead of --sample-rate.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Declared number of units.")] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="ε that a site's people have for life, by the rule rdp. Shows how much of it the"
            " job, and choosing its settings, take."
        ),
    ] = None,
    methods: Annotated[
        bool,
        typer.Option(
            "--methods",
            help="Also say what denoising and PE-SGD can do at this noise; needs a FILE.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Ask prv-accountant, too; exits with 1 where ε is not within its bounds.",
        ),
    ] = False,
    records: Annotated[
        list[int] | None,
        typer.Option(
            help="Also give ε for a person with so many records; may be repeated.",
            min=1,
            max=100,
            show_default="2, 3, 5",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Find the one of ε, sample rate, steps and noise that is left out, and what it all costs.

    With all of them, check whether the plan keeps to ε.
    """
    from fedpriv.config.load import load_job
    from fedpriv.defaults import rows_for
    from fedpriv.privacy.accounting.planning import DEFAULT_RECORDS, solve_with_looks
    from fedpriv.privacy.accounting.shares import alone
    from fedpriv.privacy.ledger.choosing import price_choosing

    job = None if file is None else load_job(file)
    looks = None if job is None else job.evaluation.sites
    if job is not None:  # the file says what no option says
        privacy = job.privacy
        epsilon = _granted(job) if epsilon is None else epsilon
        delta = privacy.delta if delta is None else delta
        sample_rate = privacy.sample_rate if sample_rate is None and batch is None else sample_rate
        steps = job.steps + privacy.spare_slots if steps is None else steps
    colluding = None if job is None else job.max_colluding  # in a secure sum
    try:
        planned, costs = solve_with_looks(
            0 if looks is None else looks.steps,
            epsilon=epsilon,
            delta=delta,
            sample_rate=sample_rate,
            steps=steps,
            noise_multiplier=noise_multiplier,
            batch=batch,
            size=size,
        )
        figures = planned.figures(records or DEFAULT_RECORDS)
    except ConfigError as error:  # its key names function arguments
        options = str(error.key).replace("_", "-").replace(", ", ", --")
        raise error.but(key=f"--{options}") from None
    figures["one_more_round"] *= 1 if job is None else job.job.sync  # so far of one step
    figures["alone"] = None
    if job is not None and colluding is not None:
        found = alone(planned.event, planned.delta, len(job.sites), colluding)
        figures["alone"] = asdict(found)
    figures["looks"] = costs
    slots = SLOTS if looks is None else looks.slots
    of_look = slots if colluding is None else None  # a job with a secure sum can have no looks
    figures["choosing"] = price_choosing(planned, of_look, budget)
    figures["second"] = _second(planned) if check else None
    figures["methods"] = _reach(job, planned, size) if methods else None
    rows = rows_for(figures["epsilon"])
    figures["defaults"] = [{**asdict(row), "clip_norm": row.clip_norm} for row in rows]
    figures = finite_json(figures)  # figures without a finite bound become None
    if as_json:
        print(json.dumps(figures, indent=2, allow_nan=False))
    else:
        show(figures, Console(highlight=False))
    if check and figures["second"].get("agrees") is False:
        raise typer.Exit(1)


def _granted(job: JobConfig) -> float:
    """Return the ε that every site grants: the job's, or less."""
    caps = {site.granted(job.privacy.epsilon) for site in job.sites}
    if len(caps) > 1:
        fix = "Plan for one of them, such as with --epsilon " + " or ".join(
            f"{e:g}" for e in sorted(caps)
        )
        raise ConfigError("differs between sites", key="sites.epsilon", fix=f"{fix}.")
    return next(iter(caps), job.privacy.epsilon)


def _second(planned: Planned) -> dict[str, Any]:
    """Return another accountant's result for the same steps, or why there is none."""
    from fedpriv.privacy.accounting.opinion import name, opinion

    try:
        found = opinion((planned.event,), planned.delta)
    except AccountingError as error:
        return {"accountant": name(), "problem": str(error)}
    return {"accountant": name(), **found._asdict(), "agrees": found.holds(planned.epsilon)}


def _reach(job: JobConfig | None, planned: Planned, size: int | None) -> dict[str, Any]:
    """Estimate what denoising and PE-SGD can do for all sites of a job.

    Args:
        size: units of all sites together, if the file does not say each one's.
    """
    from fedpriv.doctor.studies import DENOISING, PE_SGD
    from fedpriv.models.stored import adapter_shapes
    from fedpriv.privacy.accounting.shares import shares_of
    from fedpriv.public_update.reach import reach, signal_to_noise

    if job is None:
        problem = "needs to know the model and its adapter"
        raise ConfigError(problem, key="--methods", fix="Name a FILE.")
    sizes = [site.size for site in job.sites]
    known = [one for one in sizes if one is not None]
    units = sum(known) if len(known) == len(sizes) else size
    if units is None:
        problem = "is missing, and the file does not say how many units each site has"
        fix = "Say how many units all sites have together."
        raise ConfigError(problem, key="--size", fix=fix)
    sites, colluding = len(sizes), job.max_colluding
    shares = 1 if colluding is None else shares_of(sites, colluding)
    event = planned.event
    found = signal_to_noise(event.sample_rate * units, event.noise_multiplier, sites, shares)
    reached = reach(found, adapter_shapes(job.model, job.lora))
    return {**asdict(reached), "studies": [DENOISING, PE_SGD]}


def show(figures: dict[str, Any], console: Console) -> None:
    """Show the five numbers, the curve, and the sentences."""
    for key, name in _NAMES.items():
        solved = key == figures["solved_for"]
        notes = ", ".join(note for note in ("solved" * solved, _note(key, figures)) if note)
        value = _upper(figures[key]) if key == "epsilon" else f"{figures[key]:.6g}"
        value = str(figures[key]) if key == "steps" else value
        line = f"{name:16}  {value:9}  {notes}".rstrip()
        console.print(line, style="bold" if solved else None)
        if key == "epsilon" and figures["second"] is not None:
            console.print(_opinion(figures["second"]), soft_wrap=True)
    console.print("\nε after so many steps", style="bold")
    for line in _curve(figures, console.width):
        console.print(line, soft_wrap=True)
    for sentence in _sentences(figures):
        console.print("\n" + sentence)
    console.print(
        "\nDefaults of a federation file at this ε, by task and size of the model", style="bold"
    )
    for row in figures["defaults"]:
        console.print(_default(row))


def _opinion(second: dict[str, Any]) -> str:
    if "problem" in second:
        return f"{'':16}  {second['problem']}"
    bounds = f"{second['lower']:.4g} to {second['upper']:.4g}, about {second['estimate']:.4g}"
    but = "" if second["agrees"] else "  [bold red]ours is outside[/]"
    return f"{'':16}  {second['accountant']}: {bounds}{but}"


def _note(key: str, figures: dict[str, Any]) -> str:
    target, batch = figures["target_epsilon"], figures["expected_batch"]
    if key == "epsilon" and target is not None:
        kept = "within" if figures["within_target"] else "[bold red]above[/]"
        return f"{kept} the {target:g} asked for"
    if key == "delta" and figures["delta_is_default"]:
        return "the default"
    if key == "sample_rate" and batch is not None:
        return f"{batch:.4g} of {figures['size']} units in a step, on average"
    return ""


def _curve(figures: dict[str, Any], width: int) -> list[str]:
    """Draw a bar for each number of steps. Beyond the plan it is hollow."""
    points = [(f"{point['steps']}", point["epsilon"]) for point in figures["curve"]]
    labels = max(len(steps) for steps, _ in points)
    values = max(len(_upper(epsilon)) for _, epsilon in points)
    room = max(1, min(WIDEST_BAR, width - labels - values - len("    < plan")))
    scale = room / (max(epsilon for _, epsilon in points) or 1.0)
    lines = []
    for steps, epsilon in points:
        block = "█" if int(steps) <= figures["steps"] else "░"
        bar = block * round(scale * epsilon)
        mark = "  < plan" if int(steps) == figures["steps"] else ""
        lines.append(f"{steps:>{labels}} {bar:<{room}} {_upper(epsilon):>{values}}{mark}")
    return lines


def _sentences(figures: dict[str, Any]) -> list[str]:
    more = f"One more round costs about {figures['one_more_round']:.2g} more."
    if figures["within_target"] is False:
        more = (
            f"The plan costs more than the {figures['target_epsilon']:g} asked for: leave one of"
            f" the others out to have it solved for. {more}"
        )
    first, *others = [(one["records"], _upper(one["epsilon"])) for one in figures["group"]]
    group = f"{first[1]} for a person who has {first[0]}"
    group += "".join(f"; {epsilon} for {records}" for records, epsilon in others)
    looks, alone, methods = (figures[key] for key in ("looks", "alone", "methods"))
    return [
        *([_looks(looks, figures)] if looks is not None else []),
        *(_trust(alone, figures) if alone is not None else []),
        more,
        _choosing(figures["choosing"], with_trust=alone is not None),
        *(_methods(methods) if methods is not None else []),
        f"If a unit is a record, each drawn on its own, ε is {group}.",
        "What this assumes: " + " ".join(figures["assumptions"]),
    ]


def _trust(alone: dict[str, Any], figures: dict[str, Any]) -> list[str]:
    """State the two claims of a secure sum."""
    parts = alone["shares"]
    share = f"one part of {parts} of it" if parts > 1 else "all of it"
    return [
        f"With trust: noise of {figures['noise_multiplier']:.4g} is that of a sum over up to"
        f" {alone['sites']} sites, of which each adds {share}. ε = {_upper(figures['epsilon'])}"
        f" holds as long as at most {alone['max_colluding']} of the sites in a sum work with the"
        " server, or forget their noise.",
        "Alone: if all other sites work with the server, a site's own noise of"
        f" {alone['noise_multiplier']:.4g} is all that protects its records, and ε is"
        f" {_upper(alone['epsilon'])}. A site that takes part needs a budget of that much, too"
        " (budget.epsilon_alone).",
    ]


def _looks(looks: dict[str, Any], figures: dict[str, Any]) -> str:
    return (
        f"Of the {figures['steps']} steps, {looks['steps']} look at held-out records of the sites."
        f" Without them, noise of {looks['noise_multiplier_without']:.4g} instead of"
        f" {figures['noise_multiplier']:.4g} would do for the same ε, or the same noise would cost"
        f" ε = {_upper(looks['epsilon_without'])} instead of {_upper(figures['epsilon'])}."
    )


def _choosing(found: dict[str, Any], *, with_trust: bool) -> str:
    """Say what choosing settings on private records costs, beside the job."""
    from fedpriv.privacy.ledger.choosing import REPEATED
    from fedpriv.privacy.ledger.life import MANY

    trial, look, repeated = found["trial"], found["look"], found["repeated"]
    said = [
        "Choosing settings: on public records it costs nothing. A trial job of"
        f" {trial['steps']} such steps costs ε = {_upper(trial['epsilon'])}, and"
        f" {_upper(trial['epsilon_with_job'])} together with this job."
    ]
    if look is not None:
        said.append(
            f"A look of {look['steps']} steps costs ε = {_upper(look['epsilon'])}, and"
            f" {_upper(look['epsilon_with_job'])} together with this job."
        )
    said.append(f"To train {REPEATED} times and keep the best costs {_upper(repeated['epsilon'])}.")
    if found["budget"] is not None:
        parts = (("the trial", trial), ("the look", look), (f"the {REPEATED} trainings", repeated))
        shares = [f"{what} {100 * one['share']:.3g}%" for what, one in parts if one is not None]
        others = f"{', '.join(shares[:-1])} and {shares[-1]}"
        trust = " with trust" if with_trust else ""
        fit = f"{MANY} or more" if found["jobs"] == MANY else f"{found['jobs']}"
        said.append(
            f"Of ε = {found['budget']:g} for life{trust} (rule rdp, order {found['order']}), this"
            f" job takes {100 * found['job_share']:.3g}%, {others}. In all, {fit} such jobs fit."
        )
    return " ".join(said)


def _methods(found: dict[str, Any]) -> list[str]:
    """Say what denoising can do for the commonest shape of matrix, and PE-SGD for its set."""
    ratio, needed = found["signal_to_noise"], found["needed"]
    most = max(found["matrices"], key=lambda one: one["count"])
    shape = f"{most['rows']} × {most['columns']}"
    seen = [share for share, least in needed.items() if ratio >= least]
    here = f"Here {'about' if seen else 'less than'} {max(seen, default=0.1):.0%} are seen."
    return [
        f"Methods: B/σ = {ratio:.3g}, the expected units of a step of all sites over the noise of"
        " their sum.",
        f"Denoising: at rank {min(most['rows'], most['columns'])} it can't raise the cosine of a"
        f" gradient above {most['gain']:.1f} times what it is ({most['count']} matrices of"
        f" {shape}). It sees something in such a matrix where that cosine is above"
        f" {most['cosine']:.2g}. By what was measured once, a tenth of the matrices are seen from"
        f" B/σ = {needed[0.1]:.0f}, half from {needed[0.5]:.0f}. {here}",
        f"PE-SGD: a synthetic set of more than about {found['texts']:,} texts is lost in this"
        " noise.",
        *found["studies"],
    ]


def _default(row: dict[str, Any]) -> str:
    largest = row["parameters"]
    size = "larger" if largest is None else f"up to {largest / 1e6:g} M"
    task = "classifier" if row["labels"] else "language model"
    return (
        f"{task:14} {size:10}  learning rate {row['lr']:g}, clip norm {row['clip_norm']:g}, sample"
        f" rate {row['sample_rate']:g}, rank {row['r']}, alpha {row['alpha']:g} ({row['basis']})"
    )


def _upper(value: float | None) -> str:
    from fedpriv.report.figures import upper

    return "no finite bound" if value is None else upper(value)
