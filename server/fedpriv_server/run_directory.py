"""The directory of one job: what is written, and when, so that a job can go on after a crash.

run.json       first of all, with status `preparing`: nothing is spent yet; last, why it ended
metrics.jsonl  one line a round, before its checkpoint; written again with the look after it
checkpoint/    after every round; metrics of later rounds are dropped on resume
adapter/       when the job stops, with synthetic.jsonl where a method has a synthetic set
signed.json    over TLS: the coordinator's signature of the proposal
begin/         an adapter that was merged into the base; adapter/ is of no use without it
tracking/      what TensorBoard and Weights & Biases are told, if the federation file asks for it
sites/NAME/    the site's signed report; in a simulation its ledger, too
private/NAME/  only in a simulation: what would be on a site's own machine

All but private/ may be handed on: it was released, or is public.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpriv import __version__
from fedpriv.config.job import JobConfig, without_gone
from fedpriv.config.load import digest, digest_of_record, settings_of
from fedpriv.errors import RunError
from fedpriv.files import sha256, write_atomic, write_json
from fedpriv.process import LOCK, STATUS, only_process, timestamp
from fedpriv.software import software
from fedpriv_server.checkpoint import Checkpoint, SumFile

PRIVATE = "private"  # the folder of a run directory that must not be handed on


def site_folder(run: Path, name: str) -> Path:
    """Return the folder of a run directory that holds what others may know of a site."""
    return run / "sites" / name


def private_site_folder(run: Path, name: str) -> Path:
    """Return a simulated site's folder for its secrets: keys and, for a time, clear text."""
    return run / PRIVATE / name


@contextlib.contextmanager
def only_run(path: Path) -> Iterator[None]:
    """Be the only process of a run directory. Make it if needed, and leave no empty one behind.

    Raises:
        RunError: `path` is a file.
        RunningError: another process works in it.
    """
    if path.exists() and not path.is_dir():
        raise RunError(f"{path}: is a file. Give another --out.")
    path.mkdir(parents=True, exist_ok=True)
    try:
        with only_process(path):
            yield
    finally:
        with contextlib.suppress(OSError):  # not empty, because a run is in it
            path.rmdir()


@contextlib.contextmanager
def opened_run(path: Path, config: JobConfig) -> Iterator[RunDirectory]:
    """Go on with the run in `path`, or begin one. Remove a run that never began.

    Raises:
        RunError, RunningError: see `only_run` and `RunDirectory.open`.
    """
    with only_run(path):
        run = RunDirectory.open(path, config)
        try:
            yield run
        finally:
            run.discard()


class RunDirectory:
    """An opened run directory; use `create` or `resume`.

    Attributes:
        path: path of the directory.
        info: what run.json holds.
        private_folder: the folder that must not be handed on, if there is one.
        sum_file: the file that says which sites are in a secure sum.
    """

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.path, self.info = path, info
        self.private_folder = path / PRIVATE
        self.sum_file = SumFile(path / "checkpoint" / "sum.json")
        self._checkpoint_path = path / "checkpoint" / "latest.safetensors"
        self._metrics_path = path / "metrics.jsonl"

    @classmethod
    def create(cls, path: Path, config: JobConfig, *, insecure_seed: int | None) -> RunDirectory:
        """Begin a new run.

        Raises:
            RunError: the directory holds another run or other files.
        """
        job_id = f"{config.job.name}-{secrets.token_hex(4)}"
        held = _read_info(path)
        if held is not None and held["status"] == "preparing":
            if digest_of_record(held["config"]) == digest(config):
                job_id = held["job_id"]  # people may have been asked about it already
            _empty(path)  # stopped before anything was spent
        elif held is not None:
            raise RunError(
                f"{path}: already holds the run {held['job_id']!r} ({held['status']})."
                " Give --resume to go on with it, or another --out."
            )
        elif path.exists() and any(p.name != LOCK for p in path.iterdir()):
            raise RunError(f"{path}: is not empty and not a run. Give another --out.")
        path.mkdir(parents=True, exist_ok=True)
        info = {
            "format": 1,
            "job": settings_of(config)["job"],
            "job_id": job_id,
            "status": "preparing",
            "started": timestamp(),
            "finished": None,
            "config_digest": digest(config),
            "config": settings_of(config),
            "versions": {"fedpriv": __version__} | {n: version(n) for n in _SHOWN},
            "software": {name: one.model_dump() for name, one in software().items()},
            "seeds": _seeds(config, insecure_seed),
            "private": insecure_seed is None,
        }
        run = cls(path, info)
        run._write()
        return run

    @classmethod
    def open(cls, path: Path, config: JobConfig) -> RunDirectory:
        """Go on with the run in `path`, finished or not, or begin a new one.

        Raises:
            RunError: the directory holds another run, or other files.
        """
        info = _read_info(path)
        if info is None or info["status"] == "preparing":
            return cls.create(path, config, insecure_seed=None)
        if info["status"] == "finished" and digest_of_record(info["config"]) == digest(config):
            return cls(path, info)
        return cls.resume(path, config, insecure_seed=None)

    @classmethod
    def read(cls, path: Path) -> RunDirectory | None:
        """Return the run in a directory, only to read it. Return None if there is no run.

        Raises:
            RunError: its run.json can't be read.
        """
        info = _read_info(path)
        return None if info is None else cls(path, info)

    @classmethod
    def resume(cls, path: Path, config: JobConfig, *, insecure_seed: int | None) -> RunDirectory:
        """Go on with a run that was stopped.

        Raises:
            RunError: there is no run, it is finished, or it was started with other settings.
        """
        info = _read_info(path)
        if info is None or info["status"] == "preparing":
            raise RunError(f"{path}: holds no run to resume. Leave --resume out to start one.")
        if info["status"] == "finished":
            finished = f"the run {info['job_id']!r} is finished"
            raise RunError(f"{path}: {finished}. Give another --out for a new run.")
        if digest_of_record(info["config"]) != digest(config):
            keys = _differences(without_gone(info["config"]), settings_of(config))
            raise RunError(
                f"{path}: was started with other settings: {', '.join(keys)}."
                " Resume with the same file and options; a plan can't change once it is committed."
            )
        if info.get("seeds") != _seeds(config, insecure_seed):
            noise = (info.get("seeds") or {}).get("noise")
            how = "without --insecure-seed" if info["private"] else f"with --insecure-seed {noise}"
            raise RunError(f"{path}: was started {how}; resume it the same way.")
        return cls(path, info)

    def same_records(self, own: Mapping[str, Any]) -> dict[str, str]:
        """Return a short digest of the coordinator's examples at each key, the same as at first.

        It has only 32 bits, as run.json may be handed on. The base model's loss on them says as
        much.

        Raises:
            RunError: the run began with other examples, and is not finished.
        """
        written = {key: json.dumps(examples, default=vars) for key, examples in own.items()}
        found = {key: sha256(text.encode())[-8:] for key, text in written.items()}
        began = self.info.get("records", found)  # 0.2.0 wrote none
        for key in found:
            if found[key] != began.get(key) and self.info["status"] != "finished":
                raise RunError(
                    f"{self.path}: was started with other records in {key}, so losses can't be"
                    " compared. Put the old records back, or give another --out."
                )
        return found

    def ready(self, **facts: Any) -> None:
        """Mark the run as running. From here on budgets are spent."""
        self.info.update(facts, status="running")
        self.info.pop("ended", None)
        self._write()

    def stop(self, status: str) -> None:
        """Mark the run as `interrupted` or `finished`."""
        self.info["status"] = status
        # Only the day, unless records are public: how long it took depends on who was sampled.
        shown = None if self.info["job"].get("data_is_public") else len("2000-01-01")
        self.info["finished"] = timestamp()[:shown] if status == "finished" else None
        self._write()

    def keep_end(self, why: str, sites: Mapping[str, Any]) -> None:
        """Store why the job ended, and what is known of each site: how often it took part."""
        self.info["ended"] = {"why": why, "sites": sites}
        with contextlib.suppress(OSError):  # a full disk, say; it must not hide what ended the job
            self._write()

    def keep_outside(self, scores: Mapping[str, Any]) -> None:
        """Store the scores of sites that took no part, whose records are public."""
        self.info["outside"] = scores
        self._write()

    @property
    def owed(self) -> dict[str, list[str]]:
        """The sites whose `reports` are missing, and those that have not got the adapter."""
        return self.info.get("owed") or {"reports": [], "adapters": []}

    def owe(self, *, reports: Collection[str], adapters: Collection[str]) -> None:
        """Store whose report is missing, and which sites have not got the adapter."""
        self.info["owed"] = {"reports": sorted(reports), "adapters": sorted(adapters)}
        self._write()

    def discard(self) -> None:
        """Remove a run that failed before it began. Keep why it ended, if that is known."""
        if self.info["status"] == "preparing":
            _empty(self.path, {LOCK, *(("run.json", STATUS) if "ended" in self.info else ())})

    def checkpoint(self) -> Checkpoint | None:
        """Read the newest checkpoint, if there is one.

        Raises:
            RunError: the checkpoint can't be read, or belongs to another job.
        """
        path = self._checkpoint_path
        if not path.exists():
            return None
        found = Checkpoint.read(path)
        if found.job_id != self.info["job_id"]:
            raise RunError(f"{path}: belongs to job {found.job_id!r}, not {self.info['job_id']!r}.")
        return found

    def begin(self, checkpoint: Checkpoint) -> None:
        """Store what a job begins with, because making it again might give something else.

        Raises:
            RunError: there is no room, or the disk fails.
        """
        with self._keeping("The beginning"):
            checkpoint.write(self._checkpoint_path)

    def save(self, metrics: dict[str, Any], checkpoint: Checkpoint) -> None:
        """Store a finished round: its metrics, then the checkpoint that makes it count.

        Raises:
            RunError: there is no room, or the disk fails.
        """
        with self._keeping(f"Round {metrics['round']}"):
            with self._metrics_path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(metrics) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            checkpoint.write(self._checkpoint_path)

    def amend(self, rounds: Sequence[Mapping[str, Any]], checkpoint: Checkpoint) -> None:
        """Add a look at held-out records to a round that was stored before.

        Args:
            rounds: the metrics of all rounds so far.

        Raises:
            RunError: there is no room, or the disk fails.
        """
        with self._keeping("A look"):
            _write_lines(self._metrics_path, rounds)
            checkpoint.write(self._checkpoint_path)

    @contextlib.contextmanager
    def _keeping(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path}: {what} can't be kept ({error}). Make room and start again; the sites"
                " send the same replies, at no cost."
            ) from None

    def rounds(self, last: int) -> list[dict[str, Any]]:
        """Read the metrics of the rounds up to `last`. Later and incomplete lines are dropped.

        Raises:
            RunError: the file can't be read.
        """
        path = self._metrics_path
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{path}: can't be read: {error.strerror}.") from None
        kept = []
        for line in lines:
            try:
                row = json.loads(line)
                if row["round"] <= last:
                    kept.append(row)
            except (ValueError, RecursionError, TypeError, KeyError):
                break  # cut short
        if len(kept) < len(lines):
            _write_lines(path, kept)
        return kept

    def write_synthetic(self, records: Sequence[Mapping[str, str]]) -> None:
        """Write a synthetic set as a file of records, with the job's fields as columns."""
        _write_lines(self.path / "synthetic.jsonl", records, ensure_ascii=False)

    def _write(self) -> None:
        write_json(self.path / "run.json", self.info)


_NEEDED = {"job_id", "status", "config", "config_digest", "private"}
_TABLES = ("baseline", "config", "ended", "job", "model", "outside", "owed", "records", "seeds")
_SHOWN = ("torch", "transformers", "peft", "flwr", "numpy", "scipy")


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]], **options: bool) -> None:
    write_atomic(path, "".join(json.dumps(row, **options) + "\n" for row in rows))  # type: ignore[arg-type]


def _empty(path: Path, spared: Collection[str] = (LOCK,)) -> None:
    """Remove what is in a run directory, except the files named in `spared`."""
    for item in path.iterdir():
        if item.is_dir():
            shutil.rmtree(item, ignore_errors=True)
        elif item.name not in spared:
            item.unlink(missing_ok=True)


def _seeds(config: JobConfig, insecure_seed: int | None) -> dict[str, str | int]:
    noise = "operating system" if insecure_seed is None else insecure_seed
    return {"public": config.job.seed, "noise": noise}


def _read_info(path: Path) -> dict[str, Any] | None:
    file = path / "run.json"
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError):
        info = None
    if not isinstance(info, dict) or any(
        not isinstance(info.get(key), dict | None) for key in _TABLES
    ):
        raise RunError(f"{file}: can't be read as the record of a run.")
    return info if info.keys() >= _NEEDED else None


def _differences(old: Any, new: Any, key: str = "") -> list[str]:
    """Return the dotted keys whose values differ."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            found
            for name in sorted(old.keys() | new.keys())
            for found in _differences(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
        ]
    return [] if old == new else [key]
