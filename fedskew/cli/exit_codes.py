"""The exit codes of every command; docs/scripting.md shows this table."""

from __future__ import annotations

EXIT_CODES = {
    0: "the command did what was asked; a run that stopped after `--until ROUND`, too",
    1: "it began and could not do it: a run failed, every trial of a sweep failed, a check failed, "
    "`doctor` found something wrong, `claims --check` found a page out of date",
    2: "it was refused before it began: wrong words, a key or value, a data set, a folder, too few resources",
    3: "a process that it needs has died (Ray's server, a node, the driver); the last line says how to go on",
    129: "stopped by SIGHUP; what was done is kept",
    130: "stopped by Ctrl-C (SIGINT); what was done is kept",
    137: "its process was killed (SIGKILL), perhaps for want of memory",
    143: "stopped by SIGTERM; what was done is kept",
}
