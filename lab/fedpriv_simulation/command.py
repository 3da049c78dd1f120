"""`fedpriv simulate`: its options, its progress, its closing table."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from fedpriv.config.job import JobConfig
from fedpriv.config.load import EMBEDDED
from fedpriv.doctor.memory import scarcity
from fedpriv.errors import ConfigError, naming
from fedpriv.files import finite_json
from fedpriv.progress import shown_on
from fedpriv.report.alike import rows_of, said_together
from fedpriv.report.figures import TIE, amount, look_line, upper, worse
from fedpriv.report.page_parts import score_names
from fedpriv_simulation import first_run
from fedpriv_simulation.watching import new_run, watching

MODELS = ("base", "federated", "personal", "alone", "two alone", "all three")

if TYPE_CHECKING:
    from fedpriv.report.budget import BudgetReport
    from fedpriv_simulation.simulate import Outcome


def simulate(
    file: Annotated[
        Path | None, typer.Argument(help="The federation file; without one, the embedded example.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory.", show_default="runs/<name>-<UTC>")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Short for --set job.rounds=N.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    personal: Annotated[
        bool,
        typer.Option(
            "--personal",
            help="Then let each site with held-out records train by itself, from the adapter and"
            " alone.",
        ),
    ] = False,
    personal_sites: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Do --personal at N of these sites, spread over the list."
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Run the example as the results were measured: more of each note, 60 rounds.",
        ),
    ] = False,
    insecure_seed: Annotated[
        int | None, typer.Option(help="Make repeatable noise; public data only, NOT PRIVATE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fine-tune a model across a federation file's sites, all on this machine."""
    overrides = list(set_ or []) + ([] if rounds is None else [f"job.rounds={rounds}"])
    if full and file is not None:
        raise typer.BadParameter("--full is for the embedded example, so it goes without a file")
    config = first_run.load(file, overrides, full=full)
    if resume and out is None:
        raise typer.BadParameter("--resume needs --out with the directory of the run")
    out = out or new_run(config.job.name)
    console = Console(stderr=as_json, highlight=False)
    source = file or EMBEDDED
    if file is None and (lacking := scarcity(first_run.MEMORY)) is not None:
        console.print(lacking, soft_wrap=True)
    personal = personal or personal_sites is not None
    if personal:
        _check_personal(config, source)
    logging.getLogger("fedpriv_client").setLevel(logging.WARNING)
    try:
        with watching(config.job.rounds, _opening(config, out, insecure_seed), console) as run:
            seed = insecure_seed
            outcome = run(config, out, source=source, resume=resume, insecure_seed=seed)
    except KeyboardInterrupt:
        console.print(_stopped(out, source), soft_wrap=True)
        raise
    if as_json:
        print(json.dumps(finite_json(summary(outcome)), indent=2))
    else:
        show(outcome, console)
    if personal:
        _personalise(config, outcome, source, console, personal_sites)


def _check_personal(config: JobConfig, source: Path) -> None:
    """Check, before anything is computed, that sites may train by themselves here.

    Raises:
        ConfigError: the records are private. A person who sees what each site alone may see could
            choose settings by it, which nobody paid for (law 15). Or no site keeps records apart.
    """
    if not config.job.data_is_public:
        problem = "--personal would show to one person what each site alone may see"
        fix = "Use public records, or fedpriv-client personalise at each site."
        raise ConfigError(problem, file=source, key="job.data_is_public", value=False, fix=fix)
    if all(site.held_out is None for site in config.sites):
        problem = (
            "is missing at every site, and --personal tests a site's models on its own records"
        )
        apart = "Keep a share of units apart, such as held_out = 0.2, or name a file"
        fix = f"{apart}, at the sites that are to be tested."
        raise ConfigError(problem, file=source, key="sites.held_out", fix=fix)


def _personalise(
    config: JobConfig, outcome: Outcome, source: Path, console: Console, count: int | None
) -> None:
    """Print what each site would see on a screen of its own. The records are public."""
    from fedpriv_simulation.own_models import own_models, spread

    with shown_on(console, "Loading") as say, naming(source):
        found = own_models(config, outcome.run.path, spread(config, count), say)
    chosen = config.personal.validation > 0
    title = "Loss on each site's own held-out records"
    columns = (Column(name, no_wrap=" " not in name) for name in ("site", *MODELS))
    table = Table(*columns, title=f"{title}; below it, rate × passes" if chosen else title)
    table.title_justify = "left"
    losses = {name: evaluation.losses for name, evaluation in found.items()}
    for name, evaluation in found.items():
        said = {row.name: f"\n{row.trained.replace(' ', '')}" for row in evaluation.rows if chosen}
        table.add_row(name, *(f"{losses[name][m]:.3f}{said.get(m, '').rstrip()}" for m in MODELS))
    means = {m: statistics.fmean(row[m] for row in losses.values()) for m in MODELS}
    if len(losses) > 1:
        table.add_section()
        table.add_row("mean", *(f"{mean:.3f}" for mean in means.values()))
    console.print(table)
    for sentence in _in_words(config, losses, means):
        console.print(sentence, markup=False)
    console.print(
        f"Each site's own models, and a page of what they are worth to it, not to be handed on:\n"
        f"{outcome.run.private_folder}",
        soft_wrap=True,
    )


def _in_words(
    config: JobConfig, losses: Mapping[str, Mapping[str, float]], means: Mapping[str, float]
) -> Iterator[str]:
    """Say how rate and passes were found, and what the table says about joining."""
    if config.personal.validation:
        yield (
            "Each site chose rate × passes by cross-validation on its own records, alone and from"
            " the adapter alike; 'two alone' have those of 'alone'."
        )
    else:
        alone = config.personal.beginning("alone")
        further = config.personal.beginning("personal")
        yield (
            f"Rate and passes are fixed ([personal]): {alone.rates[0]:g} × {alone.epochs} alone,"
            f" and {further.epochs} passes from the adapter. No site chose its own."
        )
    harmed = sum(row["alone"] > row["base"] + TIE for row in losses.values())
    if harmed:
        yield (
            f"At {harmed} of {len(losses)} sites 'alone' is worse than 'base', no training at all."
            " There, being better than 'alone' shows nothing."
        )
    best = {name: min(row["two alone"], row["base"]) for name, row in losses.items()}
    gains = [round(best[name], 3) - round(losses[name]["all three"], 3) for name in losses]
    better, even = sum(gain > 0 for gain in gains), sum(gain == 0 for gain in gains)
    gain = round(min(means["two alone"], means["base"]), 3) - round(means["all three"], 3)
    compared = f"{abs(gain):.3f} {'lower' if gain > 0 else 'higher'}" if gain else "the same"
    yield (
        "'two alone' is what joining has to beat: two own models answer together, for about as"
        " much training. 'all three' are its own model, the federation's adapter, and that adapter"
        f" trained further. Against 'two alone', or 'base' where that is lower, their loss is"
        f" {compared} on average, and lower at {better} of {len(losses)} sites"
        + (f", equal at {even}." if even else ".")
    )


def _stopped(out: Path, source: Path) -> str:
    if not (out / "run.json").exists():
        return "\nStopped before the run began; nothing was spent."
    given = "" if source == EMBEDDED else f" {source}"
    return (
        f"\nStopped; what was spent stays spent. To go on:\n"
        f"  fedpriv simulate{given} --out {out} --resume  (with the same options)"
    )


def _opening(config: JobConfig, out: Path, insecure_seed: int | None) -> str:
    privacy, job = config.privacy, config.job
    most = max(site.granted(privacy.epsilon) for site in config.sites)
    steps = "" if job.sync == 1 else f"{job.sync} steps of "
    lines = (
        f"{len(config.sites)} sites, {job.rounds} rounds of {steps}{job.method}, at most"
        f" ε = {most:g} per site at δ = {privacy.delta:g}; run directory {out}"
    )
    if most < privacy.epsilon:
        lines += (
            f"\nprivacy.epsilon is {privacy.epsilon:g}, and no site takes part for more than"
            f" {most:g}: see epsilon of each of [[sites]]"
        )
    lines += (
        f"\nrank {config.lora.r}, clip norm {privacy.clip_norm:g}, sample rate"
        f" {privacy.sample_rate:g}, learning rate {config.optimizer.lr:g} by"
        f" {config.optimizer.name}"
    )
    return lines if insecure_seed is None else f"[bold red]NOT PRIVATE[/] (seeded noise)\n{lines}"


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as JSON."""
    last = _last_scores(outcome)
    looks = [row["held_out"] for row in outcome.rounds if row["held_out"] is not None]
    moved = [*outcome.rounds, *looks]
    return {
        "run": str(outcome.run.path),
        "job_id": outcome.run.info["job_id"],
        "private": outcome.run.info["private"],
        "rounds": len(outcome.rounds),
        "before": outcome.baseline.as_dict(),
        "after": last,
        "worse": bool(worse(outcome.baseline.eval_loss, last["eval_loss"])),
        "held_out": looks[-1] if looks else None,
        "bytes_up": sum(row["bytes_up"] for row in moved),
        "bytes_down": sum(row["bytes_down"] for row in moved),
        "seconds": _seconds(outcome.rounds),
        "sites": {name: _spent(report) for name, report in outcome.budgets.items()},
        "outside": {name: one.losses for name, one in outcome.outside.items()},
        "report": str(outcome.report),
        "not_to_be_handed_on": str(outcome.run.private_folder),
    }


def _seconds(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Add up the seconds of all rounds.

    None for private records, because time tells who was sampled.
    """
    found = [row["seconds"] for row in rounds]
    return None if None in found else round(sum(found), 2)


def _spent(report: BudgetReport) -> dict[str, float]:
    """Return what a site has spent. In a secure sum, also return ε alone and `max_colluding`."""
    keys = ["epsilon_spent", "epsilon_committed", "budget", "delta"]
    if report.max_colluding is not None and report.epsilon_alone_committed is not None:
        keys += ["epsilon_alone_committed", "max_colluding"]
    return {key: getattr(report, key) for key in keys}


def _last_scores(outcome: Outcome) -> dict[str, float]:
    scored = [row for row in outcome.rounds if row["eval_loss"] is not None]
    keys = ("eval_loss", "eval_accuracy", "eval_auc")
    last = {key: scored[-1][key] for key in keys if scored and scored[-1].get(key) is not None}
    return last or outcome.baseline.as_dict()


def show(outcome: Outcome, console: Console) -> None:
    """Print the closing tables."""
    figures = summary(outcome)
    before, after = figures["before"], figures["after"]
    names = score_names(outcome.run.info["config"]["model"]["task"])
    utility = Table("", "before", "after", title="Utility on held-out data", title_justify="left")
    for key, name in names.items():
        if key in before:
            form = ".3f" if key != "eval_accuracy" else ".1%"
            utility.add_row(name, format(before[key], form), format(after[key], form))
    console.print(utility)
    if said := worse(before["eval_loss"], after["eval_loss"]):
        console.print(f"[red]{said}[/]", soft_wrap=True)
    if figures["held_out"] is not None:
        console.print(f"The last look: {look_line(figures['held_out'])}", soft_wrap=True)
    if outcome.outside:
        title = "Loss at outside sites"
        outside = Table("site", "base", "federated", title=title, title_justify="left")
        for name, losses in figures["outside"].items():
            outside.add_row(name, *(f"{losses[model]:.3f}" for model in ("base", "federated")))
        console.print(outside)
    title = "Privacy, per site" + ("" if figures["private"] else "  [bold red]NOT PRIVATE[/]")
    columns = ["site", "ε spent", "ε committed / budget", "δ"]
    shared = any("max_colluding" in site for site in figures["sites"].values())
    if shared:
        columns.append("ε alone")

    def cells(name: str) -> tuple[str, ...]:
        site = figures["sites"][name]
        alone = site.get("epsilon_alone_committed")
        committed = f"{upper(site['epsilon_committed'])} / {site['budget']:g}"
        found = upper(site["epsilon_spent"]), committed, f"{site['delta']:g}"
        return (*found, "–" if alone is None else upper(alone)) if shared else found

    budget = Table(*columns, title=title, title_justify="left")
    for alike in rows_of(figures["sites"], cells):
        budget.add_row(said_together(alike), *cells(alike[0]))
    console.print(budget)
    if shared:
        console.print(_trust(figures["sites"]))
    took = "" if figures["seconds"] is None else f", {figures['seconds']:.0f} s"
    console.print(
        f"{amount(figures['bytes_up'])} up, {amount(figures['bytes_down'])} down"
        f" in {figures['rounds']} rounds{took}\n"
        f"Adapter: {outcome.run.path / 'adapter'}\nReport:  {outcome.report}\n"
        f"All of it may be handed on, but {outcome.run.private_folder}",
        soft_wrap=True,
    )


def _trust(sites: dict[str, dict[str, Any]]) -> str:
    """Say whom the two figures of a secure sum depend on."""
    most = min(site["max_colluding"] for site in sites.values() if "max_colluding" in site)
    return (
        f"ε holds while at most {most} other sites work with the server, because each site adds a"
        " share of the noise. If all others do, only ε alone holds. Without such trust, let each"
        ' site add all of its noise: privacy.trust = "local".'
    )
