"""Threads share one heap, so that what one frees another finds."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, re, sys, threading
from flowshade.play.memory import keep_one_heap, return_memory

if sys.argv[1] == "one":
    keep_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
everybody = threading.Barrier(4)

def allocate():
    everybody.wait()  # a thread that ends leaves its heap to the next: these are there at once
    pieces = [libc.malloc(1000) for _ in range(8000)]
    everybody.wait()
    for piece in pieces:
        libc.free(piece)

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
return_memory()
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
out = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, out)
libc.fclose(out)
print(len(re.findall("<heap nr=", open(sys.argv[2]).read())))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc: there is one heap anyway")
def test_threads_share_one_heap(tmp_path) -> None:
    heaps = {}
    for how in ("many", "one"):
        command = [sys.executable, "-c", PROGRAM, how, str(tmp_path / how)]
        heaps[how] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert heaps["one"] == 1 < heaps["many"]
