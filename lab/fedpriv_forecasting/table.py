"""The table of measured runs that a forecast rests on: who gained what in which federation.

`benchmarks/joining.py DATA --tables` writes it from public records: from the points of
`docs/results/border.json` and of `docs/results/joining`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedpriv.config.task import Task
from fedpriv.documents import read_json
from fedpriv.privacy.accounting.shares import shares_of
from fedpriv_forecasting.setting import Setting, noise_to_signal

SHIPPED = Path(__file__).parent / "measured.json"
MADE_BY = "Name a table that benchmarks/joining.py wrote."
ALONE = "alone"  # LoRA on a site's own records, without noise
TWO_ALONE = "alone+alone"  # the mean of two such models
WAYS = {  # what a site can do with a federation's adapter
    "federated": "the federation's adapter as it is",
    "federated+personal": "the adapter, trained further on own records",
    "federated+both": "an own model, the adapter trained further and the federation's, which has a"
    " fifth of the weight, answer together",
    "federated+fifth": "an own model, beside it the federation's with a fifth of the weight",
    "federated+averaged": "the same, with the weight that own validation records choose",
}
BASE, FEDERATED, SINGLE = "base", "federated", "single"
OWN, OUTSIDE = "own", "outside"  # patients asked about: a site's own, or an outside site's
OWN_RECORDS = ("0", "4", "16", "64")  # own records of a new site that begins with an adapter
Unit = Literal["record", "patient"]
# What an outside site may have: the base model, the federation's adapter, the adapter that the best
# single hospital can hand on at the same ε, public text alone, or what joining gives without noise.
Start = Literal["base", "federated", "single", "warm-start", "lora"]
Losses = Annotated[tuple[float, ...], Field(min_length=1)]  # one for each site
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Entry(BaseModel):
    """Hold a part of the table. Fields that it does not name are for other readers."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Kind(Entry):
    """Describe a kind of records, with the model that was trained on them.

    Attributes:
        says: the records in words.
        model: the base model's name.
        trained: number of trained values.
        tokens: tokens of a window.
        settings: settings of all runs, by the keys of a federation file.
    """

    says: str
    task: Task
    model: str
    trained: Count
    tokens: Count
    settings: dict[str, Positive | str | tuple[str, ...]] = {}


class Point(Entry):
    """Hold one measured run of a federation, with one seed.

    Attributes:
        records: records of each site, or patients where these are the unit.
        warm_start: whether public text was trained on first.
        own: for each row, the loss of each scored site's model on further records of that site.
        outside: for each start, its loss at each site outside the federation.
        new: the same losses after such a site trained on a number of own records.
        unit: whose privacy was protected. The default is what the kind's settings say.
    """

    kind: str
    sites: Count
    records: Count
    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    trust: Literal["local", "secure-sum"]
    max_colluding: int | None = None
    sample_rate: Annotated[float, Field(gt=0, le=1)]
    rounds: Count
    noise_multiplier: Positive
    seed: int
    scored: Count
    warm_start: bool = False
    own: dict[str, tuple[float, ...]]
    outside: dict[Start, Losses] = {}
    new: dict[Start, dict[Literal["0", "4", "16", "64"], Losses]] = {}
    unit: Unit | None = None

    @property
    def noise(self) -> float:
        """Return the noise to signal of the whole run, as in `noise_to_signal`."""
        shares = 1
        if self.trust == "secure-sum":
            shares = shares_of(self.sites, self.max_colluding or 0)
        return noise_to_signal(
            self.noise_multiplier * math.sqrt(self.sites / shares),
            self.sample_rate * self.sites * self.records,
            self.rounds,
        )

    @property
    def setting(self) -> Setting:
        """Return where the run is on the curve."""
        return Setting(self.sites, self.records, self.noise)

    def gains(
        self, way: str, baseline: str = ALONE, question: str = OWN
    ) -> tuple[float, ...] | None:
        """Return how much lower the loss at each site is. None where either was not run.

        Args:
            question: `OWN`, `OUTSIDE`, or one of `OWN_RECORDS` for a new site.
        """
        new: Mapping[Any, Mapping[Any, Losses]] = self.new
        rows: Mapping[Any, Losses] = {at: of[question] for at, of in new.items() if question in of}
        if question in (OWN, OUTSIDE):
            rows = self.own if question == OWN else self.outside
        if way not in rows or baseline not in rows:
            return None
        return tuple(b - w for b, w in zip(rows[baseline], rows[way], strict=True))


class Table(Entry):
    """Hold measured runs, of one or several kinds of records."""

    format: Literal[1]
    kinds: dict[str, Kind]
    points: tuple[Point, ...] = Field(min_length=1)

    def of(self, kind: str, unit: Unit | None = None) -> list[Point]:
        """Return the runs of a kind that began at the base model, for all units or for one."""
        points = [one for one in self.points if one.kind == kind and not one.warm_start]
        if unit is None or not points:
            return points
        stated = self.kinds[kind].settings.get("privacy.unit", "record")
        usual = "record" if stated == "record" else "patient"
        return [point for point in points if (point.unit or usual) == unit]


def read_table(path: Path | None = None) -> Table:
    """Read the table in a file, or the shipped one.

    Raises:
        ConfigError: there is no table, or the file is not such a table. The message names the file
            and the key.

    Privacy:
        The table holds figures of public records alone.
    """
    return read_json(path or SHIPPED, Table, MADE_BY, strict=False)
