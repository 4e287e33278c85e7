"""Memory of a server that runs for long: what a player's world leaves behind goes back to the system.

glibc gives threads heaps of their own, up to eight a core, and never lends what is free at the end of one to another;
nor does `malloc_trim` touch it. A world is built and traced on threads that come and go, so that each visit could leave
up to 64 MiB at the end of another heap: resident memory grew for hours, and nothing was in use. With one heap all that
is freed is found again, or given back.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
"""glibc's number for how many heaps there may be (malloc.h)."""


def keep_one_heap() -> None:
    """Threads share one heap from now on, where the C library has several; for a process that serves and nothing else.

    Call it before threads are started: heaps that are there already stay in use.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_M_ARENA_MAX, 1)


def return_memory() -> None:
    """Gives freed memory back to the system, where the C library can: after each world it would keep more of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
