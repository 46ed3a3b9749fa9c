"""`keys`: the keys that sign Route Tickets."""

import click

from meshnet_tracker.cli.options import database_option, log_level_option, run_printing


@click.group()
def keys() -> None:
    """Manage the keys that sign Route Tickets.

    These commands work on the database, also while a Tracker runs on it; it follows in seconds.
    """


@keys.command("rotate")
@click.option("--revoke", is_flag=True, help="Forget the older keys: one may be in wrong hands.")
@database_option
@log_level_option
def rotate_keys(database: str, log_level: str, revoke: bool) -> None:
    """Sign with a new key from now on.

    Nothing is interrupted: the older keys verify until no Session that they admitted can be renewed
    any more, which is a day after their last ticket. With --revoke such Sessions end at a fault.
    """
    from meshnet_tracker import keyring

    rotate = keyring.revoke_keys if revoke else keyring.rotate_keys
    run_printing(rotate(database), log_level)


@keys.command("list")
@database_option
@log_level_option
def list_keys(database: str, log_level: str) -> None:
    """List the keys, newest first: name, age, and until when each one verifies."""
    from meshnet_tracker.keyring import list_keys as list_all

    run_printing(list_all(database), log_level)
