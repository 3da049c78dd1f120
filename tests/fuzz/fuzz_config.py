"""Files that people write: the federation's, a site's, and what `--set` changes of them."""

from __future__ import annotations

import math
from pathlib import Path

from fedpriv.config.duration import seconds
from fedpriv.config.job import JobConfig
from fedpriv.config.load import HOSPITALS, allowed_model, digest, load_job, load_site
from fedpriv.config.personal import OwnSiteFile
from fedpriv.methods.proposal import propose
from fedpriv.protocol import Proposal
from fedpriv_client.settings import site_settings, terms_of
from tests.fuzz.fuzz_mutate import text_bytes, toml_bytes
from tests.fuzz.fuzz_target import Target, refuses

HASH = "sha256:" + "a" * 64
FEDERATION = HOSPITALS.read_bytes()
NETWORK = b"""
[job]
name = "hearts"
engine = "network"
rounds = 20
sync = 2
wire = "int8"
min_sites = 2
round_timeout = "90s"
[server]
address = "fed.example.org:8443"
names = ["127.0.0.1"]
wait = "2h"
[model]
name = "embedded"
task = "classification"
labels = ["no", "yes"]
pooling = "mean"
[data]
columns = { text = "note", label = "outcome" }
[lora]
r = 4
alpha = 8.0
target_modules = ["q_proj", "v_proj"]
modules_to_save = ["score"]
[privacy]
epsilon = 3.0
sample_rate = 0.1
clip_norm = 0.5
unit = "patient"
numerics = "strict"
[optimizer]
name = "adamw"
lr = 1e-2
schedule = "cosine"
betas = [0.9, 0.99]
[server_optimizer]
momentum = 0.9
[denoise]
where = "site"
kappa = "auto"
[evaluation]
data = "held-out.csv"
tuning_share = 0.5
[[sites]]
name = "a"
[[sites]]
name = "b"
"""
SYNTHETIC = b"""
[job]
method = "pe-sgd"
rounds = 3
[synthetic]
size = 20
data = "made-up.jsonl"
noise = "residual"
bound = "clipped"
[synthetic.generator]
kind = "endpoint"
model = "m"
url = "http://localhost/v1"
describe = "a note"
[evaluation]
data = "held-out.jsonl"
tuning = "tuning.jsonl"
[compute]
dtype = "mixed"
devices = 2
[[sites]]
name = "a"
data = "owner/name"
size = 100
ledger = "a.db"
witness = "a.witness"
"""
SITE = f"""
[site]
name = "cardiology"
health = "127.0.0.1:9000"
[server]
address = "fed.example.org:8443"
ca = "ca.crt"
key = "site.key"
[data]
path = "notes.jsonl"
dataset_id = "{"0" * 32}"
unit = "patient_nbr"
size = 250
columns = {{ text = "note", label = "outcome" }}
labels = ["no", "yes"]
[budget]
rule = "sum"
epsilon = 10.0
per_job = 4.0
plans = 10
witness = "../usb/witness.json"
[allow]
model_digest = "{HASH}"
max_basis = 2.5
targets = ["q_proj"]
""".encode()
PLAIN = b"".join(
    line + b"\n"
    for line in SITE.splitlines()
    if not line.startswith((b"rule", b"plans", b"labels", b"health"))
).replace(b', label = "outcome"', b"")


def federation(data: bytes, folder: Path) -> None:
    path = folder / "federation.toml"
    path.write_bytes(data)
    check_job(load_job(path))


def check_job(job: JobConfig) -> None:
    """What a job that was read has to be good for."""
    digest(job)
    written = job.model_dump(exclude_unset=True, exclude_none=True)
    refuses(JobConfig.model_validate(written) == job, "another job when it is read again")
    refuses(0 < seconds(job.job.round_timeout) < math.inf, "no time to wait")
    proposal = propose(job, job_id="j", base=HASH, vector=HASH)
    refuses(Proposal.parse(proposal.model_dump_json()) == proposal, "another proposal")
    proposal.digest()


def overrides(data: bytes, folder: Path) -> None:
    """A line for each `--set`."""
    texts = data.decode("utf-8", "surrogateescape").split("\n")
    check_job(load_job(HOSPITALS, texts))


def site(data: bytes, folder: Path) -> None:
    path = folder / "site.toml"
    path.write_bytes(data)
    allowed_model(path)
    file = load_site(path)
    refuses(
        OwnSiteFile.model_validate(file.model_dump()) == file, "another file when it is read again"
    )
    terms_of(file, "0" * 32)
    if file.data.dataset_id is not None:
        site_settings(file, path)


TARGETS = (
    Target(
        "federation",
        federation,
        lambda: {"embedded": FEDERATION, "network": NETWORK, "synthetic": SYNTHETIC},
        toml_bytes,
    ),
    Target(
        "overrides",
        overrides,
        lambda: {
            "several": b"privacy.epsilon=3\nsites.0.epsilon=2\nsites.radiology.size=9\njob.seed=1",
            "tables": b'sites=[{name="a",data="a.csv",size=9}]\njob.min_sites=1\nlora.r=8',
            "text": b"model.name=owner/name\nlora.r=8\nlora.alpha=8\noptimizer.lr=1\n"
            b"privacy.clip_norm=1\nprivacy.sample_rate=0.5",
        },
        text_bytes,
    ),
    Target("site", site, lambda: {"sum": SITE, "plain": PLAIN}, toml_bytes),
)
