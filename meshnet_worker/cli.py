"""The command line of a Worker; heavy imports wait until a command really runs."""

import re
from pathlib import Path
from typing import Any

import click
from platformdirs import user_cache_path, user_state_path

from meshnet_common.edge.importing import lasting_imports
from meshnet_common.edge.ranges import FiniteRange
from meshnet_worker.options import (
    DECODE_GROUPS,
    GRACE_SECONDS,
    KV_WAIT_SECONDS,
    MAX_REGION_CHARACTERS,
    MAX_THREADS,
    SizeOptionError,
    Vram,
    WorkerOptions,
    parse_size,
    parse_vram,
    split_urls,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="meshnet")
def main() -> None:
    """Lend this machine's device to a Mesh."""


@main.command()
@click.option(
    "--tracker",
    "trackers",
    multiple=True,
    envvar="MESHNET_TRACKER_URL",
    default=("http://127.0.0.1:8080",),
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Base URL of the Tracker; of several over one database give each, repeated or with commas "
    "between: where one fails, the next is called.",
)
@click.option(
    "--vram",
    default="auto",
    show_default=True,
    help="Memory to lend: auto (90% of what is free on a CUDA device, half of the available RAM "
    "on a CPU-only host), a share such as 80%, or a size such as 10GiB.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7000,
    show_default=True,
    help="Port for links and clients; 0 picks one.",
)
@click.option(
    "--advertise-url",
    default=None,
    help="URL under which other Workers reach this one.  [default: where it listens]",
)
@click.option(
    "--region",
    default="",
    help="Where this Worker is, such as eu-west: those that say the same are taken to be near each "
    "other, unless they measure otherwise.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="cpu, cuda, cuda:1, or auto: the first CUDA device, else the CPU.",
)
@click.option(
    "--threads",
    default="auto",
    show_default=True,
    help="CPU threads of the engine; auto shares the cores among this host's Workers.",
)
@click.option(
    "--decode-groups",
    type=click.IntRange(1, 64),
    default=DECODE_GROUPS,
    show_default=True,
    help="As a Head Worker, keep Sessions in so many groups: as many Hops are busy at once.",
)
@click.option(
    "--compile/--no-compile",
    default=True,
    show_default=True,
    help="Compile Decode Steps in the background, once they are many, where that gains speed.",
)
@click.option(
    "--tracker-mode",
    is_flag=True,
    help="Pin this Worker's Layers to start at 0, so that it is a Head Worker.",
)
@click.option(
    "--chunk-tokens",
    type=click.IntRange(1, 2048),
    default=128,
    show_default=True,
    help="Positions of a prompt that are sent on together.",
)
@click.option(
    "--kv-wait-seconds",
    type=FiniteRange(min=0),
    default=KV_WAIT_SECONDS,
    show_default=True,
    help="How long an answer may wait for KV memory before it ends with an error.",
)
@click.option(
    "--grace-seconds",
    type=FiniteRange(min=0),
    default=GRACE_SECONDS,
    show_default=True,
    help="How long a Worker that is told to stop may hand over or finish the answers that it works "
    "on; 0 ends at once, and so does a second signal.",
)
@click.option(
    "--weights-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for weights that are fetched; the Workers of a host may share it.  "
    "[default: the user's cache folder]",
)
@click.option(
    "--disk-budget",
    default=None,
    help="What fetched weights may take there, such as 100GB; what was used longest ago goes "
    "first.  [default: all that is free]",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder for this Worker's identity.  [default: the user's state folder]",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write the base URL into this file once the Tracker has registered this Worker.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least important messages to print.",
)
def start(**chosen: Any) -> None:
    """Join the Mesh and serve until Ctrl-C or SIGTERM, then finish what is under way."""
    with lasting_imports():
        from meshnet_common.edge.logs import configure_logging
        from meshnet_common.edge.running import run_main
        from meshnet_worker.daemon import run_worker

    configure_logging(chosen["log_level"])
    run_main("meshnet-worker", run_worker(_options(chosen)))


def _options(chosen: dict[str, Any]) -> WorkerOptions:
    return WorkerOptions(
        tracker_urls=_trackers(chosen["trackers"]),
        vram=_vram(chosen["vram"]),
        host=chosen["host"],
        port=chosen["port"],
        advertised_url=_advertised(chosen["advertise_url"]),
        device=_device(chosen["device"]),
        threads=_threads(chosen["threads"]),
        tracker_mode=chosen["tracker_mode"],
        state_folder=chosen["state_dir"] or user_state_path("meshnet"),
        ready_file=chosen["ready_file"],
        chunk_tokens=chosen["chunk_tokens"],
        weights_folder=chosen["weights_dir"] or user_cache_path("meshnet") / "weights",
        decode_groups=chosen["decode_groups"],
        compiles=chosen["compile"],
        disk_budget_bytes=_disk_budget(chosen["disk_budget"]),
        kv_wait_seconds=chosen["kv_wait_seconds"],
        grace_seconds=chosen["grace_seconds"],
        region=_region(chosen["region"]),
    )


def _url(option: str, text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", text):
        raise click.BadParameter(f"{text!r} is not like http://HOST:PORT", param_hint=option)
    return text


def _trackers(texts: tuple[str, ...]) -> tuple[str, ...]:
    urls = split_urls(texts)
    if not urls:
        raise click.BadParameter("it names no URL", param_hint="--tracker")
    return tuple(_url("--tracker", url) for url in urls)


def _advertised(text: str | None) -> str | None:
    return None if text is None else _url("--advertise-url", text)


def _region(text: str) -> str:
    if len(text) > MAX_REGION_CHARACTERS:
        facts = f"it is longer than {MAX_REGION_CHARACTERS} characters"
        raise click.BadParameter(facts, param_hint="--region")
    return text


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise click.BadParameter(
            f"{text!r} is not auto, cpu, cuda or cuda:N", param_hint="--device"
        )
    return text


def _vram(text: str) -> Vram:
    try:
        return parse_vram(text)
    except SizeOptionError as error:
        raise click.BadParameter(str(error), param_hint="--vram") from error


def _disk_budget(text: str | None) -> int | None:
    try:
        return None if text is None else parse_size(text)
    except SizeOptionError as error:
        raise click.BadParameter(str(error), param_hint="--disk-budget") from error


def _threads(text: str) -> int | None:
    if text == "auto":
        return None
    # By its length first: Python reads no number of thousands of digits.
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= MAX_THREADS:
        facts = f"{text[:20]!r} is neither auto nor a number from 1 to {MAX_THREADS}"
        raise click.BadParameter(facts, param_hint="--threads")
    return int(text)
