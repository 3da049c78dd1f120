"""Turn a federation file into a model's recipe and a proposal to sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError
from fedpriv.methods.registry import find_method
from fedpriv.plugins import SERVER_HALVES, load
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.private_training.method import normalises
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import LocalSteps, Proposal, SharedNoise
from fedpriv.secure_sum.roster import Roster


def job_recipe(config: JobConfig) -> ModelRecipe:
    """Return the model of a job."""
    return ModelRecipe(config.model, config.lora, config.job.seed, config.compute)


def method_settings(config: JobConfig) -> tuple[Mapping[str, Any], int]:
    """Return what a job's method tells its sites, and how many public records they must hold.

    Raises:
        ConfigError: no such method is installed, or it can't be used with the file's settings.
    """
    method, name, made_up = find_method(config.job.method), config.job.method, config.synthetic
    if config.privacy.normalise is not None and not normalises(method):
        problem = f"is not for method {name!r}, which releases no gradient of adapters"
        raise ConfigError(
            problem, key="privacy.normalise", value=config.privacy.normalise, fix="Leave it out."
        )
    if made_up is None and method.needs_set:
        fix = f"Method {name!r} needs such a set."
        raise ConfigError("is missing", key="synthetic", fix=fix)
    if made_up is not None and not method.needs_set and not made_up.warm_start:
        fix = f"With method {name!r}, such a set is for a warm_start."
        raise ConfigError("has nothing to do", key="synthetic", fix=fix)
    records = made_up.size if made_up is not None and method.needs_set else 0
    problem = "has no half for a server"
    half = load(SERVER_HALVES, name, key="job.method", problem=problem)
    settings = getattr(half, "settings", None)
    return {} if settings is None else settings(config), records


def propose(
    config: JobConfig,
    *,
    job_id: str,
    base: str,
    vector: str,
    begin: str | None = None,
    roster: Roster | None = None,
) -> Proposal:
    """Propose a job to sites, for a base, an adapter and a trainable vector of these digests.

    Args:
        roster: the roster of the sites that are added up together, in a job with a secure sum.

    Raises:
        ConfigError: no such method is installed, or it can't be used with the file's settings.
    """
    settings, public_records = method_settings(config)
    statement = config.statement
    if statement is not None and not statement.participants:
        named = tuple(site.name for site in config.sites)
        statement = statement.model_copy(update={"participants": named})
    local, count = None, config.job.sync
    if count > 1:
        local = LocalSteps(count=count, optimizer=config.optimizer, denoise=config.denoise)
    return Proposal(
        job_id=job_id,
        method=config.job.method,
        steps=config.slots,
        seed=config.job.seed,
        fields=tuple(sorted(config.data.columns)),
        model=config.model,
        lora=config.lora,
        privacy=config.privacy.model_copy(update={"roster": None}),  # the coordinator's file
        base_digest=base,
        begin_digest=begin,
        vector_digest=vector,
        wire=config.job.wire,
        local=local,
        settings=dict(settings),
        public_records=public_records,
        evaluation=config.evaluation.sites,
        shared=None if roster is None else shared_noise(config, roster),
        statement=statement,
    )


def shared_noise(config: JobConfig, roster: Roster) -> SharedNoise | None:
    """Return how sites of a roster share the noise of a sum; None where each adds all of its own.

    The proposed ε and δ decide σ. A site that grants less refuses.
    """
    privacy, colluding = config.privacy, config.max_colluding
    if colluding is None:
        return None
    return SharedNoise(
        max_colluding=colluding,
        sites=len(roster),
        roster=roster.digest,
        noise_multiplier=calibrate_noise(
            privacy.epsilon, privacy.delta, privacy.sample_rate, config.slots
        ),
        spare_slots=privacy.spare_slots,
    )
