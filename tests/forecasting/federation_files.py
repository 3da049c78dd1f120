"""Federation files without records: a forecast reads none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def federation_file(
    path: Path,
    sizes: Sequence[int | None] = (64,) * 16,
    *,
    privacy: str = "",
    job: str = "",
    site: str = "",
    rest: str = "",
) -> Path:
    """A file of sites of these sizes, or over the network; other arguments are further lines."""
    network = None in sizes
    tables = "".join(
        f'[[sites]]\nname = "site-{index}"\n'
        + ("" if network else f'data = "absent-{index}.jsonl"\nsize = {size}\n')
        + f"{site}\n"
        for index, size in enumerate(sizes)
    )
    if network:
        job, rest = f'engine = "network"\n{job}', f'{rest}\n[server]\naddress = "a.test:443"\n'
    path.write_text(
        f"[job]\nrounds = 30\n{job}\n[privacy]\nepsilon = 4\nsample_rate = 0.2\n{privacy}\n{rest}\n"
        f'[evaluation]\ndata = "absent.jsonl"\n{tables}'
    )
    return path
