"""Run a site: read its file and enrolment, connect, and then load what is heavy."""

from __future__ import annotations

import contextlib
import logging
import ssl
from pathlib import Path

from flwr.clientapp import ClientApp

from fedpriv import errors
from fedpriv.config.site_file import SiteFile
from fedpriv.files import private_folder
from fedpriv.health import health_service
from fedpriv.metrics import metrics_service
from fedpriv.pki.keys import PrivateKey, load_key
from fedpriv.plugins import load_part
from fedpriv.process import Status, only_process
from fedpriv.synthetic.records import MAX_BYTES
from fedpriv_client.connection import ServerConnection
from fedpriv_client.fleet import MIB
from fedpriv_client.service import Service
from fedpriv_client.settings import enrolment_of, site_settings
from fedpriv_client.site_settings import work_folder

log = logging.getLogger(__name__)


def serve(file: SiteFile, config: Path) -> None:
    """Answer the server until stopped.

    A wrong certificate shows at once. The records are read before the site joins. So its own file
    decides whether they can be used, and no server is told (law 18). A server can notice a site
    that greets it, with its certificate, and doesn't join.

    Raises:
        FedprivError: a problem that does not go away by waiting.
        KeyboardInterrupt: after the ledger was given back.
    """
    folder = private_folder(file.site.state_dir)
    with contextlib.ExitStack() as stack:
        stack.enter_context(only_process(folder))
        # Own training beside it would show in the times of its answers (law 19).
        stack.enter_context(only_process(private_folder(work_folder(folder))))
        status = Status(folder, site=file.site.name, server=file.server.address)
        status.update(connection="connecting", activity="starting", problem="", refusal="")
        stack.callback(status.update, connection="none", activity="stopped")
        healthy = stack.enter_context(health_service(file.site.health, "site.health"))
        port, key = file.site.metrics_port, "site.metrics_port"
        stack.enter_context(metrics_service(port, key, lambda: load_part(key)(file, config)))
        connection = connection_of(file)
        service = Service(connection, status, healthy)
        stack.callback(service.close)
        try:
            with contextlib.suppress(errors.UnreachableError):  # the service waits for it later
                connection.greet()
            log.info("%s reads its records.", file.site.name)
            status.update(activity="reading records")
            app = _app(file, config, stack)
            service.connect()
            service.run(app)
        except Exception as error:
            try:
                if isinstance(error, errors.AdmissionError):
                    identity(file)  # the certificate may have ended since the start
            except errors.EnrolmentError as ended:
                status.update(problem=str(ended))
                raise ended from None
            ours = isinstance(error, errors.FedprivError)  # another's text may quote a record
            status.update(problem=str(error) if ours else type(error).__name__)
            raise


def _app(file: SiteFile, config: Path, stack: contextlib.ExitStack) -> ClientApp:
    import torch
    from huggingface_hub import constants

    from fedpriv.kept import in_memory_alone
    from fedpriv.privacy.mechanism.csprng import SystemCsprng
    from fedpriv.private_training.pool import WorkerPool
    from fedpriv_client.account import account_file, write_account
    from fedpriv_client.app import client_app
    from fedpriv_client.orders import Orders
    from fedpriv_client.site import Site
    from fedpriv_client.ticks import preparation, until_tick

    # Some processors are slower with numbers that are next to 0 (law 19). Threads that torch starts
    # later inherit it, so nothing is computed before.
    torch.set_flush_denormal(True)
    stack.callback(torch.set_flush_denormal, False)
    settings = site_settings(file, config)
    stack.enter_context(in_memory_alone())
    # The server was greeted, and how long reading takes depends on the records (law 19).
    seconds = 2 * preparation(settings)  # to read them, and to try the longest preparation
    with until_tick(seconds) if settings.limits.ticks else contextlib.nullcontext():
        site = Site(settings, WorkerPool(1), lambda job, slot: SystemCsprng())
    stack.callback(site.close)
    if file.notify is not None:
        site.notify = load_part("notify.urls")(file)
    # From now on nothing is downloaded: whether there is room for it depends on records (law 18).
    stack.callback(setattr, constants, "HF_HUB_OFFLINE", constants.HF_HUB_OFFLINE)
    constants.HF_HUB_OFFLINE = True
    try:
        write_account(site.ledger, settings)
    except OSError as error:  # people see less, but the site goes on
        log.error("%s: not written: %s.", account_file(settings), error.strerror)
    log.info("%s is ready.", file.site.name)
    return client_app(site, lambda job: Orders.read(settings.state_dir).check(job))


def connection_of(file: SiteFile) -> ServerConnection:
    """Return the connection that a file describes, before it connects.

    Raises:
        EnrolmentError: the enrolment can't be used.
        ConfigError: see `fedpriv.config.site_file`.
    """
    tls, key = identity(file)
    largest = 4 * file.allow.max_trainable + MAX_BYTES + MIB
    return ServerConnection(file.server.address, tls, key, largest=largest)


def identity(file: SiteFile) -> tuple[ssl.SSLContext | None, PrivateKey]:
    """Return whom a site trusts and what it shows: TLS settings by its enrolment, and its key.

    Raises:
        EnrolmentError: a part of it is missing, was changed, has expired or is another site's.
    """
    server = file.server
    if server.plain:
        return None, load_key(server.key)
    enrolment = enrolment_of(file)
    manifest = enrolment.manifest
    for name, stated, signed in (
        ("site.name", file.site.name, manifest.site),
        ("server.address", server.address, manifest.address),
    ):
        if stated != signed:
            raise errors.EnrolmentError(
                f"{server.enrolment}: was made for {name} = {signed!r}, not {stated!r}. Ask the"
                " coordinator for an enrolment that says so, or correct the site's file."
            )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=enrolment.ca.decode("ascii"))
        context.load_cert_chain(server.certificate, server.key)
    except (ssl.SSLError, OSError, ValueError) as error:
        why = f"its certificates can't be used: {error}."
        raise errors.CertificateError(f"{server.enrolment}: {why}") from None
    return context, enrolment.key
