import gc
import socket
import subprocess
import sys

from meshnet_worker.engine.main import make_engine


def test_it_is_deaf_to_ctrl_c_before_anything_slow_is_imported() -> None:
    told = (
        "import meshnet_worker.engine.main, sys; print({'torch', 'transformers'} & {*sys.modules})"
    )
    ended = subprocess.run((sys.executable, "-c", told), check=True, capture_output=True)
    assert ended.stdout.strip() == b"set()"


def test_modules_are_never_looked_through_for_garbage() -> None:
    before = gc.get_freeze_count()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        make_engine(theirs, "cpu")
    assert gc.get_freeze_count() > before
    assert gc.isenabled()
