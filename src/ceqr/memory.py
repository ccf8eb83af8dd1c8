"""How much memory there is: asked before any is taken."""

import os
from pathlib import Path

GIB = 2**30
MEMINFO = Path("/proc/meminfo")


def machine_memory() -> int | None:
    """Bytes of memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def free_memory() -> int | None:
    """Bytes that are free, or can be freed; all of the machine's where it does not tell."""
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return machine_memory()
    told = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(told[0]) * 2**10 if told else machine_memory()
