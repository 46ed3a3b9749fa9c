"""The command line of the Tracker: one group, whose commands lie in this room's modules."""

import click

from meshnet_tracker.cli.api_keys import key
from meshnet_tracker.cli.mesh import backup, coverage, doctor, workers
from meshnet_tracker.cli.naming import alias
from meshnet_tracker.cli.options import PROGRAM
from meshnet_tracker.cli.pinning import drain, pin
from meshnet_tracker.cli.planning import plan
from meshnet_tracker.cli.presets import preset
from meshnet_tracker.cli.serving import migrate, serve
from meshnet_tracker.cli.signing import keys


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="meshnet", prog_name=PROGRAM)
def main() -> None:
    """Run a meshnet Tracker.

    It knows every Worker, plans who serves which Layers, and proxies chat requests. It never loads
    weights.
    """


for _command in (
    *(serve, migrate, preset, alias, pin, drain, key, keys),
    *(workers, coverage, plan, doctor, backup),
):
    main.add_command(_command)
