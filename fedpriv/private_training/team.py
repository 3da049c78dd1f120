"""Several devices of a site share its steps: each adds up a part of the sample's clipped vectors.

They are processes with pipes between them, and no collective operation: none of them opens a port,
and one that dies keeps nobody waiting. The process that leads adds up their sums, and adds noise to
the total, once.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fedpriv.data.store import Unit, Units
from fedpriv.environment import set_environment
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.method import SiteHalf, SiteMethod
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.unit_sum import UNIT_FAILED
from fedpriv.private_training.worker import ModelRecipe, Worker

log = logging.getLogger(__name__)
LEAVE = 10.0  # seconds that a process has to end by itself
_TEAMS: WeakKeyDictionary[Worker, Team] = WeakKeyDictionary()


class _Member:
    """A process with a worker of its own, and the pipe to it."""

    def __init__(self, recipe: ModelRecipe, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, recipe, threads), daemon=True
        )
        self._process.start()
        theirs.close()
        self._owes = False

    def ask(self, task: str, *arguments: Any) -> None:
        """Send a task; its answer is fetched by `answer`.

        Raises:
            OSError, EOFError: the process is gone.
        """
        if self._owes:  # an answer that nobody waited for
            self._pipe.recv()
        self._pipe.send((task, arguments))
        self._owes = True

    def answer(self) -> Any:
        """Return the result of the last task.

        Raises:
            OSError, EOFError: the process is gone.
            FedprivError, RuntimeError: the task failed.
        """
        result = self._pipe.recv()
        self._owes = False
        if isinstance(result, Exception):
            try:
                raise result
            finally:
                del result  # else error and frame would keep each other, and a step's sums
        return result

    def close(self) -> None:
        """Let the process end."""
        self._pipe.close()
        self._process.join(LEAVE)
        if self._process.is_alive():
            self._process.kill()


class Team:
    """The processes that share the steps of the one that leads.

    Args:
        recipe: the recipe of the worker that leads.

    Raises:
        ConfigError: there are fewer devices than ``compute.devices``.
        FedprivError: the model can't be used on one of them.
    """

    def __init__(self, recipe: ModelRecipe, device: str) -> None:
        count = recipe.compute.devices
        others = devices_after(device, count, torch.cuda.device_count())
        self._threads = torch.get_num_threads()
        threads = max(1, self._threads // count)
        if device == "cpu":
            torch.set_num_threads(threads)
        self.members: list[_Member] = []
        try:
            for name in others:
                alone = recipe.compute.model_copy(update={"device": name, "devices": 1})
                self.members.append(_Member(replace(recipe, compute=alone), threads))
            self.ask("ready", repeat(()))
            if len(self.members) < len(others):
                raise EOFError
            for member in self.members:
                member.answer()
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError | EOFError):
                raise
            raise FedprivError(
                "A process of compute.devices ended as it began. Your own script must keep what it"
                " does under: if __name__ == '__main__'"
            ) from None

    def ask(self, task: str, each: Iterable[tuple[Any, ...]]) -> None:
        """Send every member a task with its own arguments. One that can't be asked is lost."""
        for member, arguments in zip(list(self.members), each, strict=False):
            try:
                member.ask(task, *arguments)
            except (OSError, EOFError):
                self.lose(member)

    def lose(self, member: _Member) -> None:
        """Go on without a member."""
        log.error("A process of compute.devices is gone; the others go on without it.")
        self.members.remove(member)
        member.close()

    def close(self) -> None:
        """Let all processes end."""
        while self.members:
            self.members.pop().close()
        torch.set_num_threads(self._threads)


class Shared:
    """A site's half of a method, whose sums a team makes together. All else is the half's own.

    Args:
        own: the half of the process that leads.
        made_of: the parts from which the others make their halves.
    """

    def __init__(self, own: SiteMethod, team: Team, made_of: SiteHalf) -> None:
        self._own, self._team, self._made_of = own, team, made_of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """Prepare every process, before anything is paid.

        Raises:
            FedprivError: it can't be computed.
        """
        self._team.ask("prepare", repeat((self._made_of, parameters)))
        size = self._own.prepare(worker, parameters)
        for member in list(self._team.members):
            try:
                member.answer()
            except (OSError, EOFError):
                self._team.lose(member)
        return size

    def clipped_sum(
        self, worker: Worker, units: Units, parameters: Vector, clip_norm: float, numerics: Numerics
    ) -> ClippedSum:
        """Sum over the units a vector of norm at most `clip_norm` each.

        A unit is dealt to one process, so the sum's sensitivity is that of a part. What a process
        fails to add up is added up here: the sample stays the same.
        """
        own, *parts = dealt(
            units,
            1 + len(self._team.members),
            lambda error: worker.went_on_after(error, UNIT_FAILED),
        )
        settings = (parameters, clip_norm, numerics)
        members = list(self._team.members)
        self._team.ask("sum", ((part, *settings) for part in parts))
        total = self._own.clipped_sum(worker, own, *settings)
        for member, part in zip(members, parts, strict=True):
            try:
                value, sensitivity, grid, failures = member.answer()
                found = ClippedSum(torch.from_numpy(value), sensitivity, grid)
                worker.failures.update(failures)
            except Exception as error:
                answered = isinstance(error, FedprivError | RuntimeError)
                if not answered and member in self._team.members:
                    self._team.lose(member)
                log.warning("A part of a step is done again: %s", type(error).__name__)
                found = self._own.clipped_sum(worker, part, *settings)
            total = _added(total, found)
        return total


def team_of(worker: Worker) -> Team:
    """Return the processes that share a worker's steps, started at first use.

    Raises:
        ConfigError: there are fewer devices than ``compute.devices``.
    """
    if worker not in _TEAMS:
        _TEAMS[worker] = team = Team(worker.recipe, worker.device)
        worker.resources.callback(_TEAMS.pop, worker, None)
        worker.resources.callback(team.close)
    return _TEAMS[worker]


def with_team(worker: Worker, half: SiteHalf) -> SiteMethod:
    """Make the site's half of a method, whose sums a worker makes with its team.

    Raises:
        ConfigError: there are fewer devices than ``compute.devices``.
    """
    return Shared(half.make(), team_of(worker), half)


def devices_after(first: str, count: int, there: int) -> list[str]:
    """Return the devices of a team's members, beside the first.

    Raises:
        ConfigError: there are fewer devices.
    """
    if first == "cpu":
        return ["cpu"] * (count - 1)
    begin = int(first.partition(":")[2] or 0)
    if begin + count > there:
        problem = f"is more than the {max(0, there - begin)} GPUs from {first} on"
        raise ConfigError(problem, key="compute.devices", value=count, fix="Lower it.")
    return [f"cuda:{number}" for number in range(begin + 1, begin + count)]


def dealt(units: Units, count: int, failed: Callable[[Exception], None]) -> list[list[Unit]]:
    """Deal units into `count` parts: which one a unit is in depends on that unit alone.

    Devices may round differently, and what a unit adds must not change with who else was drawn.

    Args:
        failed: called for each unit that can't be read. Such a unit is in no part.
    """
    parts: list[list[Unit]] = [[] for _ in range(count)]
    for place in range(len(units)):
        try:
            unit = units[place]
        except Exception as error:  # as in `sum_of_units`: a unit that can't be read adds 0
            failed(error)
            continue
        tokens = np.concatenate([example.input_ids for example in unit] or [[0]])
        parts[zlib.crc32(tokens.astype(np.int32).tobytes()) % count].append(unit)
    return parts


def _added(total: ClippedSum, part: ClippedSum) -> ClippedSum:
    value = total.value + part.value.to(total.value.device)
    return ClippedSum(value, max(total.sensitivity, part.sensitivity), total.grid)


def _serve(pipe: Connection, recipe: ModelRecipe, threads: int) -> None:
    """Serve as a member until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that leads is stopped, and closes
    set_environment()
    torch.set_num_threads(threads)
    worker: Worker | None = None
    half: SiteMethod | None = None
    with suppress(EOFError, OSError), pipe:
        while True:
            task, arguments = pipe.recv()
            result: Any = None
            try:
                if worker is None:
                    worker = make_worker(recipe)
                if task == "prepare":
                    made_of, parameters = arguments
                    half = made_of.make()
                    half.prepare(worker, parameters)
                elif task == "sum":
                    assert half is not None  # prepare came first
                    before = Counter(worker.failures)  # they are told of once, not cleared
                    found: ClippedSum = half.clipped_sum(worker, *arguments)
                    value = found.value.cpu().numpy()  # a tensor would need /dev/shm
                    failures = Counter(worker.failures) - before
                    result = value, found.sensitivity, found.grid, failures
            except Exception as error:
                own = isinstance(error, FedprivError)  # any other text may hold a record
                result = FedprivError(str(error)) if own else RuntimeError(type(error).__name__)
            pipe.send(result)
