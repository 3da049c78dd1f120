"""`audit.json`: what was claimed, what attacks could tell, and whether they would see a fault.

A *world* is one way in which a part was run: as claimed, or as a *twin* with less noise or none,
which the part has to catch. An audit whose twins are not caught says nothing, however good it
looks.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from fedpriv.documents import read_json
from fedpriv.files import write_atomic
from fedpriv.one_line import one_line
from fedpriv.section import Section

FORMAT = 1
FILE = "audit.json"
PartName = Literal["pipeline", "one-run", "membership", "exposure"]
WorldName = Literal["as-claimed", "half-noise", "tenth-noise", "no-noise", "run"]
Share = Annotated[float, Field(gt=0, lt=1)]
TITLES: dict[PartName, str] = {
    "pipeline": "Canary, likelihood ratio",
    "one-run": "Many canaries, one run",
    "membership": "Membership of records",
    "exposure": "Extraction of secrets",
}
WORLDS: dict[WorldName, str] = {
    "as-claimed": "as claimed",
    "half-noise": "half of the noise",
    "tenth-noise": "a tenth of the noise",
    "no-noise": "no noise",
    "run": "the run's adapter",
}
CLAIMED: tuple[WorldName, ...] = ("as-claimed", "run")  # these keep the claim; all others are twins


class Measure(Section):
    """A figure of an attack, with an interval where there is one.

    Attributes:
        name: the name of the figure, such as "AUC".
        low, high: bounds, which hold together with the part's confidence.
        by_chance: the figure of an attacker who knows nothing.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    by_chance: float | None = None


class World(Section):
    """Describe one way in which a part was run.

    Attributes:
        name: the plan as claimed, a twin, or the adapter of the audited run.
        private: whether the world kept a claim. A twin without noise keeps none; one with less
            noise keeps a weaker claim, `epsilon`.
        epsilon: what the world's own plan costs, by the accountant; None without noise.
        epsilon_lower: the ε that the attack proves at least, 0 if nothing. None where the part
            measures something else.
        found: whether the attack broke the claim that the part is held to. For membership and
            exposure, whether it found more than chance.
        wanted: whether `found` has to be true. If it has to and is not, the part says nothing,
            which is a fault.
        trials: the number of runs, guesses or records behind the figures, by name.
    """

    name: WorldName
    private: bool
    epsilon: float | None
    epsilon_lower: float | None = Field(None, ge=0)
    found: bool
    wanted: bool
    trials: dict[str, int]
    measures: tuple[Measure, ...] = ()


class Part(Section):
    """One kind of attack, in all its worlds.

    Attributes:
        epsilon, delta: the attacked claim.
        confidence: the confidence of each bound and interval.
        settings: the sizes and the plan of the run.
    """

    name: PartName
    epsilon: float = Field(gt=0)
    delta: Share
    confidence: Share
    settings: dict[str, JsonValue]
    worlds: tuple[World, ...]
    seconds: float | None = Field(None, ge=0)

    @property
    def proven(self) -> float | None:
        """Return the largest lower bound of ε over worlds that keep the claim. None without one."""
        bounds = [world.epsilon_lower for world in self.worlds if world.name in CLAIMED]
        return max((lower for lower in bounds if lower is not None), default=None)

    @property
    def holds(self) -> bool:
        """Tell whether no attack on the world as claimed proved more than its ε."""
        return self.proven is None or self.proven <= self.epsilon

    @property
    def missed(self) -> list[World]:
        """Return the twins that attacks should have caught, and did not."""
        return [world for world in self.worlds if world.wanted and not world.found]


class Refused(Section):
    """A part that was not run, and why."""

    what: str
    why: str


class Audit(Section):
    """The content of `audit.json`.

    Attributes:
        job: the name in the federation file. `job_id` is that of the audited run, if there is one.
        base_digest: the digest of the base model.
        config_digest: the digest of the federation's settings.
        data_is_public: what the federation file says.
        not_private: whether anything was computed from records without the claimed noise. The
            results are then in no way protected, and neither are figures in this file.
        charged: ε that each site's ledger paid for an audit by an older version.
        seeds: where each kind of randomness came from.
    """

    format: Literal[1] = 1
    command: str
    started: datetime
    seconds: float | None = Field(None, ge=0)
    versions: dict[str, str]
    job: str
    job_id: str | None
    method: str
    base_digest: str
    config_digest: str
    data_is_public: bool
    not_private: bool
    charged: dict[str, float] = Field(default_factory=dict)
    seeds: dict[str, str]
    parts: tuple[Part, ...]
    refused: tuple[Refused, ...]

    __repr__ = __str__ = one_line

    @property
    def holds(self) -> bool:
        """Tell whether no attack proved more than was claimed."""
        return all(part.holds for part in self.parts)

    @property
    def sound(self) -> bool:
        """Tell whether attacks caught every twin that they should."""
        return not any(part.missed for part in self.parts)

    def write(self, folder: Path) -> Path:
        """Write the file into a folder, and return its path."""
        path = folder / FILE
        write_atomic(path, self.model_dump_json(indent=2) + "\n")
        return path


def read_audit(path: Path) -> Audit:
    """Read the file of an audit.

    Raises:
        ConfigError: the file is no audit, or has another format. The message names the key.
    """
    return read_json(path, Audit, strict=False)


def shown(measure: Measure) -> str:
    """Show a figure in one line."""
    text = f"{measure.name} {measure.value:.3g}"
    if measure.low is not None and measure.high is not None:
        text += f" [{measure.low:.2f}, {measure.high:.2f}]"
    return text


def shown_with_chance(measure: Measure) -> str:
    """Show a figure in one line, and what an attacker has who knows nothing."""
    chance = "" if measure.by_chance is None else f", by chance {measure.by_chance:.3g}"
    return shown(measure) + chance


def verdict(part: Part, world: World) -> str:
    """Say in a few words what a row shows."""
    if world.wanted:
        return "caught" if world.found else "NOT CAUGHT"
    if world.name in CLAIMED:
        if world.epsilon_lower is not None and world.epsilon_lower > part.epsilon:
            return "CLAIM BROKEN"
        return "more than chance" if world.found else "nothing found"
    return "found" if world.found else "not told apart"


def conclusion(audit: Audit) -> str:
    """Say in one sentence what the whole audit shows."""
    if not audit.holds:
        broken = ", ".join(part.name for part in audit.parts if not part.holds)
        return f"The claim does not hold: {broken} proved more."
    if not audit.sound:
        missed = ", ".join(
            f"{part.name}, {WORLDS[world.name]}" for part in audit.parts for world in part.missed
        )
        return (
            f"Nothing broke the claim, but that says little: some twins were not caught ({missed})."
        )
    return "No attack broke the claim, and every twin was caught that had to be."
