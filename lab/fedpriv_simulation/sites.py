"""The sites of a simulation, as a federation file describes them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.config.looks import held_out_units
from fedpriv.config.sites import SiteSection
from fedpriv.errors import LedgerInUseError
from fedpriv.files import private_folder
from fedpriv.methods.proposal import shared_noise
from fedpriv.pki.signing import load_or_create_key
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.shares import share_of
from fedpriv.privacy.ledger.ledger import Terms
from fedpriv.privacy.ledger.terms import new_dataset_id
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, RandomSource, SystemCsprng
from fedpriv.private_training.pool import WorkerPool
from fedpriv.secure_sum.roster import Roster, RosterEntry
from fedpriv_client.limits import Limits
from fedpriv_client.site import Site
from fedpriv_client.site_settings import SIGNING_KEY, SiteSettings
from fedpriv_server.run_directory import private_site_folder, site_folder

PAUSE = 0.05  # seconds between two tries to open a ledger that another process has


@dataclass(frozen=True)
class Sites:
    """Open the sites one by one, in whatever process they are to be.

    Attributes:
        run: the run directory.
        insecure_seed: seed of sampling and noise. None draws them from the operating system.
        base_digest: digest of the model that the sites train.
        trained: number of the model's trained parameters.
        begin_digest: digest of the adapter that the sites begin at.
    """

    config: JobConfig
    run: Path
    insecure_seed: int | None
    base_digest: str
    trained: int
    begin_digest: str | None = None

    @cached_property
    def roster(self) -> Roster | None:
        """Return the roster of the sites that are added up together, in a job with a secure sum."""
        return simulated_roster(self.config, self.run)

    def open(self, section: SiteSection, pool: WorkerPool, *, patience: float = 0.0) -> Site:
        """Open a site with a ledger of its own.

        Args:
            patience: seconds to wait for another process that has the ledger.

        Raises:
            LedgerInUseError: another process still has the ledger.
            FedprivError: as for `Site`.
        """
        seed, until = self.insecure_seed, time.monotonic() + patience

        def csprng(job_id: str, slot: int) -> RandomSource:
            if seed is None:
                return SystemCsprng()
            return InsecureRandomness(seed, section.name, slot)

        while True:
            try:
                return Site(self.settings(section), pool, csprng)
            except LedgerInUseError:
                if time.monotonic() >= until:
                    raise
                time.sleep(PAUSE)

    def settings(self, section: SiteSection) -> SiteSettings:
        """Return what a site's administrator would have set. The data set's id is a new one."""
        config, seed = self.config, self.insecure_seed
        assert section.records is not None and section.size is not None  # checked when read
        cap = section.epsilon if section.epsilon is not None else config.privacy.epsilon
        folder = site_folder(self.run, section.name)
        return SiteSettings(
            name=section.name,
            data=section.records,
            columns=config.data.columns,
            state_dir=private_site_folder(self.run, section.name),
            report_folder=folder,
            ledger=section.ledger or folder / "ledger.db",
            terms=Terms(
                dataset_id=new_dataset_id(),
                declared_size=section.size,
                unit=config.privacy.unit,
                max_records_per_unit=config.privacy.max_records_per_unit,
                delta=config.privacy.delta,
                budget=cap,
                simulated=True,
                private=seed is None,
                budget_alone=self._budget_alone(section, cap),
            ),
            limits=Limits(
                per_job=cap,
                base_digest=self.base_digest,
                begin_digest=self.begin_digest,
                labels=config.model.labels,
                methods=(config.job.method,),
                max_length=config.model.max_length,
                max_trainable=self.trained,
                evaluation=config.evaluation.sites is not None,
                held_out=held_out_units(section.held_out, section.size, section.held_out_size),
                roster=self.roster,
            ),
            compute=config.compute,
            lasting=section.ledger is not None,
            witness=section.witness,
            held_out=section.held_out,
            transform=section.transform,
            max_empty=config.data.max_empty,
        )

    def _budget_alone(self, section: SiteSection, cap: float) -> float | None:
        """Return ε alone of a new ledger's claim: as stated, or what the job costs."""
        if self.roster is None:
            return None
        if section.epsilon_alone is not None:
            return section.epsilon_alone
        config, shared = self.config, shared_noise(self.config, self.roster)
        assert shared is not None
        noise = share_of(shared.noise_multiplier, shared.shares)
        event = Event(config.privacy.sample_rate, noise, config.slots)
        return max(cap, epsilon_upper([event], config.privacy.delta))


def simulated_roster(config: JobConfig, run: Path) -> Roster | None:
    """Make the roster of all sites of a federation file, and keys where there are none yet.

    None where each site adds all of its noise by itself.

    Raises:
        LedgerError: a key can't be used.
    """
    if config.max_colluding is None:
        return None
    entries = []
    for section in config.sites:
        folder = private_folder(private_site_folder(run, section.name))
        key = load_or_create_key(folder / SIGNING_KEY)
        public = key.public_key().public_bytes_raw().hex()
        entries.append(RosterEntry(name=section.name, public_key=public))
    return Roster.of(entries)
