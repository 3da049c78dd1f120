"""`fedpriv-client`: what the administrator of a site types."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv import __version__, logs
from fedpriv.command_line import run
from fedpriv.commands.doctor import doctor
from fedpriv.commands.ledger import app as ledger_app
from fedpriv.commands.roster import app as roster_app
from fedpriv.environment import set_environment
from fedpriv.process import read_status, stop_on_terminate
from fedpriv.terminal import confirm

if TYPE_CHECKING:
    from fedpriv.config.personal import OwnSiteFile
    from fedpriv_client.orders import Orders, Said

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, records among them
    invoke_without_command=True,
    help="Take part in a federation with the records of this site.",
)
app.add_typer(ledger_app, name="ledger")
app.add_typer(roster_app, name="roster")
app.command()(doctor)
NEWEST = "this site's newest"
Config = Annotated[Path, typer.Option("--config", help="This site's own file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Probe = Annotated[
    bool, typer.Option("--probe", help="Print nothing; exit with 0 if connected, else with 1.")
]
Adapter = Annotated[
    Path | None, typer.Option("--adapter", help="Folder of a job's adapter.", show_default=NEWEST)
]
SITE = Path("site.toml")
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")]
Folder = Annotated[
    Path | None, typer.Option("--folder", help="Folder of a site model.", show_default=NEWEST)
]
In = Annotated[Path | None, typer.Option("--in", help="A file of records to read, as JSONL.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="File for records with answers; old answers are kept.")
]
Field = Annotated[
    str | None,
    typer.Option("--field", help="The field with a record's text.", show_default="the job's"),
]
BatchSize = Annotated[
    int, typer.Option("--batch-size", min=1, max=16, help="Number of texts at once.")
]


By = Annotated[str | None, typer.Option("--by", help="Name of the person who decides.")]
Why = Annotated[str, typer.Option("--reason", help="A reason listed in docs/how-to/site-page.md.")]
Text = Annotated[str, typer.Option("--text", help="More about the reason; it stays at this site.")]
Agreed = Annotated[
    bool, typer.Option("--agreed", help="My name and text may leave with the ledger's rows.")
]


def _said(by: str | None, reason: str, text: str, agreed: bool = False) -> Said:
    from fedpriv_client.persons import said_of

    return said_of(by or f"{getuser()}, at the command line", reason, text, agreed=agreed)


def _load(config: Path) -> OwnSiteFile:
    from fedpriv.config.load import load_site

    return load_site(config)


@app.callback()
def serve(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="This site's own file.")] = None,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log lines as JSON.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Connect to the server and answer it within the limits of the site's file, until stopped."""
    if version:
        print(f"fedpriv-client {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise typer.BadParameter("give the site's file, such as site.toml", param_hint="--config")
    file = _load(config)
    logs.configure(as_json=json_logs, paced=True)
    stop_on_terminate()
    from fedpriv_client.serve import serve as serve_site

    serve_site(file, config)


@app.command()
def enroll(
    name: Annotated[str, typer.Option(help="The site's name in the federation file.")],
    folder: Annotated[Path, typer.Option(help="The folder for the key.")] = Path(),
) -> None:
    """Make this site's key and a request, which you send to the coordinator."""
    from fedpriv_client.enroll import enroll as make

    print(make(folder, name))


@app.command()
def setup(config: Config = SITE) -> None:
    """Set this site up with questions: first its key, then its file and its ledger."""
    from fedpriv.pki.enrolment import read_enrolment
    from fedpriv.pki.points import in_rows
    from fedpriv_client.enroll import enroll as make
    from fedpriv_client.settings import ledgers
    from fedpriv_client.setup import fill_in

    folder = config.parent
    enrolment, key = folder / "enrolment.json", folder / "site.key"
    if not enrolment.exists():
        if key.exists():
            print(f"Put the files from the coordinator into {folder}, then type this again.")
        else:
            print(make(folder, typer.prompt("This site's name in the federation file")))
        return
    authority = read_enrolment(enrolment, key=key).manifest.ca
    print("Fingerprint of the coordinator's authority:")
    for line in in_rows(authority):
        print(f"  {line}")
    typer.confirm("Did the coordinator read out the same fingerprint by telephone?", abort=True)
    fill_in(config, lambda text, usual: str(typer.prompt(text, usual)), typer.echo)
    if not ledgers(_load(config)):
        init(config)
    doctor(config, offline=True)


@app.command()
def roster_entry(
    out: Annotated[Path, typer.Option(help="The file to write, such as NAME.roster.json.")],
    config: Config = SITE,
) -> None:
    """Write this site's name and public key to a file, for the roster of a secure sum."""
    from fedpriv_client.roster_entry import write_entry

    print(write_entry(_load(config), out))


@app.command()
def accept_roster(
    roster: Annotated[Path, typer.Argument(help="The new roster; it follows this site's roster.")],
    config: Config = SITE,
    yes: Yes = False,
) -> None:
    """Show who joins or leaves a secure sum and which keys are new, then ask you to accept."""
    from fedpriv_client.roster_entry import accept

    print(accept(_load(config), roster, lambda: confirm("Accept it?", yes=yes)))


@app.command()
def init(
    config: Config = SITE,
    another: Annotated[
        bool, typer.Option("--another", help="Make a further ledger, for other people.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Make the ledger of this site's people, once, with their budget for life.

    At a terminal it shows the terms and asks; a script is not asked.
    """
    from fedpriv_client.init import make_ledger

    make_ledger(_load(config), config, another=another, yes=yes)


@app.command()
def undo_init(
    config: Config = SITE,
    dataset_id: Annotated[
        str | None, typer.Option("--ledger", help="The ledger's data set, if there are several.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Undo a ledger within a day, if nothing was spent from it; this leaves a trace.

    A script has to give --yes. The command refuses if the client was started with the ledger, or if
    the ledger, its witness, the index of units or the last report knows of any payment.
    """
    from fedpriv_client.settings import ledgers
    from fedpriv_client.undo_init import undo

    file = _load(config)
    known = [dataset_id] if dataset_id else [*ledgers(file)]
    if len(known) != 1:
        text = f"give one of {', '.join(known)}" if known else "there is no ledger"
        raise typer.BadParameter(text, param_hint="--ledger")
    [chosen] = known
    confirm(f"Undo the ledger of data set {chosen}?", yes=yes)
    print(undo(file, chosen))


@app.command()
def digest(config: Config = SITE) -> None:
    """Print the base model's digest, for allow.model_digest, and that of allow.begin, if set."""
    from fedpriv.config.load import allowed_model
    from fedpriv.models.stored import digest_of
    from fedpriv.stored_adapter import find_adapter

    print(digest_of(allowed_model(config) or "embedded"))
    if (begin := allowed_model(config, "begin")) is not None:
        print(find_adapter(begin).digest, " # begin_digest")


@app.command()
def status(config: Config = SITE, as_json: AsJson = False, probe: Probe = False) -> None:
    """Show the state of this site's process, and what its budget report says."""
    from fedpriv.report import budget
    from fedpriv.report.figures import upper
    from fedpriv.report.lifetime import in_words
    from fedpriv_client.held_space import full_disk
    from fedpriv_client.orders import Orders
    from fedpriv_client.roster_entry import own_key

    file = _load(config)
    folder, report = file.site.state_dir, None
    facts = read_status(folder)
    if probe:
        raise typer.Exit(0 if facts["running"] and facts.get("connection") == "connected" else 1)
    orders = Orders.read(folder)
    facts |= {"key": own_key(file), "paused": orders.paused, "refused": list(orders.refused)}
    if full := full_disk(folder):
        facts["problem"] = full
    if (path := folder / "budget.json").exists():
        report = budget.read(path)
        keys = {"epsilon_spent", "epsilon_allocated", "epsilon_committed", "budget", "job", "life"}
        facts["budget"] = report.model_dump(include=keys)
    if file.allow.approve == "ask":
        from fedpriv_client.decide import waiting

        facts["waiting"] = waiting(file, config)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    pid = f" (pid {facts['pid']})" if facts["pid"] else ""  # none until it first writes its status
    running = f"running{pid}" if facts["running"] else "not running"
    print(f"{facts.get('site', 'site')}: {running}{', PAUSED' if orders.paused else ''}")
    for key in ("key", "server", "connection", "activity", "problem", "refusal"):
        if facts.get(key) and (facts["running"] or key in ("key", "problem")):
            print(f"  {key}: {facts[key]}")
    lists = {"refused jobs": orders.refused, "jobs that wait for approval": facts.get("waiting")}
    for name, jobs in lists.items():
        if jobs:
            print(f"  {name}: {', '.join(jobs)}")
    if report is not None:
        print(
            f"  ε: {upper(report.epsilon_spent)} spent, {upper(report.epsilon_allocated)} allocated"
            f", {report.budget:g} for life (job {report.job})"
        )
        if report.life is not None:
            print(f"  job {report.job}: {in_words(report.life)}")


@app.command()
def personalise(
    config: Config = SITE,
    adapter: Adapter = None,
    single: Annotated[
        bool, typer.Option("--single", help="Make one adapter that learns all models' answers.")
    ] = False,
) -> None:
    """Make a model from this site's records and the federation's adapter; it stays here."""
    file = _load(config)
    stop_on_terminate()
    from fedpriv_client.personalise import run as train

    train(file, config, adapter, single=single)


@app.command()
def evaluate(
    config: Config = SITE,
    adapter: Adapter = None,
) -> None:
    """Compare the models on this site's held-out records; the figures stay here."""
    file = _load(config)
    stop_on_terminate()
    from fedpriv_client.evaluate import run as compare

    compare(file, config, adapter)


@app.command()
def generate(
    source: In = None,
    out: Out = None,
    folder: Folder = None,
    config: Config = SITE,
    field: Field = None,
    batch_size: BatchSize = 8,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, show_default="as many as fit into a record of the job")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=100, help="0 always takes the likeliest token.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed for drawing tokens.")] = 0,
) -> None:
    """Let the site model continue a text from standard input, or the texts of a file."""
    from fedpriv.serving.answers import Answering
    from fedpriv_client.answer import run as answer

    answering = Answering(*_site_model(folder, config), writes=True)
    how = answering.write(max_new_tokens, temperature, seed)
    answer(answering, how, source, out, field=field, batch_size=batch_size)


@app.command()
def classify(
    source: In = None,
    out: Out = None,
    folder: Folder = None,
    config: Config = SITE,
    field: Field = None,
    batch_size: BatchSize = 8,
) -> None:
    """Let the site model label a text from standard input, or the texts of a file."""
    from fedpriv.serving.answers import Answering
    from fedpriv_client.answer import run as answer

    answering = Answering(*_site_model(folder, config), writes=False)
    answer(answering, answering.label, source, out, field=field, batch_size=batch_size)


@app.command()
def serve_model(
    folder: Annotated[
        Path | None, typer.Argument(help="A site model.", show_default=NEWEST)
    ] = None,
    config: Config = SITE,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Local port; 0: any.")] = 8641,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that requests must show; made if missing.",
            show_default="a new token at each start",
        ),
    ] = None,
) -> None:
    """Serve the site model to this machine by transformers' server, with OpenAI's interface."""
    logs.configure(as_json=False, paced=True)
    stop_on_terminate()
    from fedpriv_client.serve_model import serve_model as serve_it

    folder, transform = _site_model(folder, config)
    if transform:
        print(
            f"data.transform ({transform}) is not applied. Send texts that it was applied to.",
            file=sys.stderr,
        )
    serve_it(folder, port, token_file)


def _site_model(folder: Path | None, config: Path) -> tuple[Path, str | None]:
    """Return the site model's folder, and the transform that texts go through in training."""
    from fedpriv.serving.folder import newest_site_model

    if folder and not config.exists():
        print(f"{config} (--config) is not there: no data.transform is applied.", file=sys.stderr)
        return folder, None
    file = _load(config)
    return folder or newest_site_model(file.site.state_dir), file.data.transform


@app.command()
def pause(config: Config = SITE) -> None:
    """Pause this site: it finishes what it computes, and then computes nothing."""
    _order(config, lambda stands: stands.model_copy(update={"paused": True}))


@app.command()
def resume(config: Config = SITE) -> None:
    """Let this site compute again after a pause."""
    _order(config, lambda stands: stands.model_copy(update={"paused": False}))


@app.command()
def jobs(config: Config = SITE, as_json: AsJson = False) -> None:
    """List the jobs proposed to this site: what they cost, and which wait for approval."""
    from fedpriv_client.decide import list_jobs

    list_jobs(_load(config), config, as_json=as_json)


@app.command()
def approve(
    job: Annotated[str, typer.Argument(help="The job's id or name; jobs lists them.")],
    config: Config = SITE,
    digest: Annotated[
        str | None, typer.Option(help="The proposal's digest, if there are several.")
    ] = None,
    yes: Yes = False,
    by: By = None,
    reason: Why = "",
    text: Text = "",
    agreed: Agreed = False,
) -> None:
    """Show a proposal that waits (allow.approve = "ask"), then ask you to approve it."""
    from fedpriv_client.decide import approve as decide

    said = _said(by, reason, text, agreed)
    decide(_load(config), config, job, digest, said, yes=yes)


@app.command()
def refuse(
    job: Annotated[str, typer.Argument(help="The job's id or name; jobs lists them.")],
    config: Config = SITE,
    undo: Annotated[bool, typer.Option("--undo", help="Take the refusal back.")] = False,
    by: By = None,
    reason: Why = "",
    text: Text = "",
) -> None:
    """Refuse any further part in a job; the budget that was spent stays spent."""
    from fedpriv_client.proposals import kept_proposals

    said = _said(by, reason, text)
    _order(config, lambda stands: stands.not_refusing(job) if undo else stands.refusing(job, said))
    known = sorted({one.job for one in kept_proposals(_load(config).site.state_dir)})
    if not undo and not any(job in (name, name.rpartition("-")[0]) for name in known):
        proposed = f"Jobs so far: {', '.join(known)}" if known else "There is none yet"
        print(f"No job {job!r} was proposed so far. {proposed}. Check how the name is spelt.")


@app.command()
def page(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("site-page.html"),
    config: Config = SITE,
) -> None:
    """Write a web page with this site's jobs, in plain words, and its budget."""
    from fedpriv_client.page import write_site_page

    write_site_page(_load(config), config, out)
    print(f"Wrote {out}.")


@app.command()
def serve_page(
    config: Config = SITE,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Local port; 0: any.")] = 8640,
) -> None:
    """Serve the site's page to this machine alone, with buttons to approve and refuse jobs."""
    file = _load(config)
    logs.configure(as_json=False, paced=True)
    stop_on_terminate()
    from fedpriv_client.page_server import serve_page as serve_it

    serve_it(file, config, port)


def _order(config: Path, how: Callable[[Orders], Orders]) -> None:
    from fedpriv_client.orders import Orders

    stands = Orders.change(_load(config).site.state_dir, how)
    print("paused" if stands.paused else "not paused", end="")
    print(f"; refused: {', '.join(stands.refused)}" if stands.refused else "; no job refused")


def main() -> None:
    """Run the `fedpriv-client` command, which leaves no core file: it would hold records."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    set_environment()
    run(app)
