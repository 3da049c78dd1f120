"""Check whether a model and its steps fit: by arithmetic before it is loaded, by a step after.

`scarcity` says in one sentence what a machine has too little of for a run.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv import cores, memory
from fedpriv.errors import ConfigError
from fedpriv.models.config import Bits
from fedpriv.private_training.config import ComputeSection

if TYPE_CHECKING:
    from fedpriv.private_training.worker import Worker

_READ = 2  # bytes of a weight as usually stored, while a model is read to be quantised
_KEPT = {"8bit": 1 + 4 / 64, "4bit": 0.5 + 4 / 64}  # bytes of a weight in a linear layer
# Bytes of a weight as it is loaded.
_BYTES = {"float32": 4, "mixed": 4, "bfloat16": 2, "float64": 8}


def available(device: str = "cpu") -> int:
    """Return the bytes that this process may still take, of a GPU or of machine and container.

    Raises:
        ConfigError: this system does not say.
    """
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    try:
        free = _bytes_of(Path("/proc/meminfo"))["MemAvailable"]
    except (OSError, KeyError, ValueError):
        raise ConfigError("is unknown on this system", key="memory") from None
    left = memory.left()
    return free if left is None else min(free, left)


def weights(name: str, compute: ComputeSection, quantize: Bits | None = None) -> str:
    """Check that a base model's weights fit, without loading them.

    Args:
        quantize: the bits in which a job keeps the weights. They are first read as they are stored.

    Raises:
        ConfigError: they do not.
    """
    from fedpriv.model_size import parameters_of
    from fedpriv.private_training.worker import device_of

    count = parameters_of(name)
    if count is None:
        return "of unknown size"
    each = _BYTES[compute.dtype] if quantize is None else _READ
    needed, place = count * each, device_of(compute.device)
    free = min(available(), available(place))  # it is loaded through the machine's memory
    shown = f"{count / 1e6:,.0f} M parameters, {needed / 1e9:.2f} GB of {free / 1e9:.1f} GB free"
    if quantize is not None:
        shown += f", of which {quantize} leaves {count * _KEPT[quantize] / 1e9:.2f} GB or more"
    if needed > free:
        fix = 'Use a smaller one, compute.dtype = "bfloat16", or a machine with more memory.'
        raise ConfigError(f"does not fit: {shown}", key="model", value=name, fix=fix)
    return shown


def step(worker: Worker) -> str:
    """Measure the memory of a step over the longest records, by a step on random tokens.

    The text says how many records of that length fit.

    Raises:
        ConfigError: it does not fit; says what fits, estimated from a step over one record and over
            two.

    Privacy:
        Records have no part in it.
    """
    from fedpriv.private_training.microbatch import MOST, is_out_of_memory, most_private

    records, length = most_private(worker), worker.recipe.model.max_length
    free = available(worker.device)
    fitting, held = None, _resident("VmRSS")  # freed memory is kept for the next step
    try:
        if worker.device == "cpu" and records > 2:  # there, too much memory kills the process
            one, two = _taken(worker, 1, held), _taken(worker, 2, held)
            fitting = 0 if one > free else 1 + (free - one) // max(1, two - one)
            if fitting < records:
                raise _too_much(worker, records, free, fitting)
        taken = _taken(worker, records, held)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise _too_much(worker, records, free) from None
    room = "" if fitting is None or fitting > MOST else f", room for {fitting} at once"
    return (
        f"{worker.vector.size:,} trained; a step over {records} records of {length} tokens at once"
        f" took {taken / 1e9:.2f} GB, {free / 1e9:.1f} GB are free{room}"
    )


def _too_much(worker: Worker, records: int, free: int, fitting: int | None = None) -> ConfigError:
    length = worker.recipe.model.max_length
    ways = ["Halve it" if fitting is None else f"Set it to {fitting}"] if fitting != 0 else []
    ways.append(f"lower model.max_length below {length}")
    if not worker.recipe.compute.gradient_checkpointing:
        ways.append("set compute.gradient_checkpointing = true")
    fix = ", or ".join(ways)
    fix = f"{fix[0].upper()}{fix[1:]}."
    problem = f"{records} records of {length} tokens at once do not fit into {free / 1e9:.1f} GB"
    return ConfigError(problem, key="compute.microbatch", value=records, fix=fix)


def _taken(worker: Worker, records: int, held: int) -> int:
    """Return the peak bytes of a step; on a CPU, those of the process above what it `held`."""
    from fedpriv.private_training.microbatch import rehearse

    with suppress(OSError):  # if that is not allowed, the peak stays that of the whole process
        Path("/proc/self/clear_refs").write_bytes(b"5")  # resets VmHWM (proc(5))
    on_a_gpu = rehearse(worker, records)
    return on_a_gpu if worker.device != "cpu" else max(0, _resident("VmHWM") - held)


def _resident(key: str) -> int:
    return _bytes_of(Path("/proc/self/status")).get(key, 0)


def _bytes_of(file: Path) -> dict[str, int]:
    """Read what the system states in kB, and return bytes by name."""
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}


def scarcity(needed: int) -> str | None:
    """Say in one sentence what makes a run slow here or may end it; None if nothing does.

    It reads what the system states and imports no torch, so that it can be said before all else.

    Args:
        needed: bytes of memory that the run takes at its peak.
    """
    found, free = [], needed
    with suppress(ConfigError):
        free = available()
    if free < needed:
        found.append(
            f"only {free / 1e9:.1f} GB of memory are free, and the run takes {needed / 1e9:.1f} GB,"
            " so the system may end it"
        )
    if cores.usable() == 1:
        found.append("it can use only one core, and the run takes about twice as long as on two")
    return f"This machine is small for it: {'; '.join(found)}." if found else None
