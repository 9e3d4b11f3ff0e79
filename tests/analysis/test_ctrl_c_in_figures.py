"""Ctrl-C while figures are drawn by several processes."""

import signal

from analysis.gallery import _uninterrupted


def blocked() -> set:
    return signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_ctrl_c_is_blocked_while_processes_start_and_comes_through_afterwards():
    assert signal.SIGINT not in blocked()
    with _uninterrupted():
        assert signal.SIGINT in blocked()
    assert signal.SIGINT not in blocked()
