"""Share the tests' files among processes, so that one that dies costs the test it ran and nothing else.

pytest-xdist's own scheduler runs that test again, in every process that replaces a dead one, and raises KeyError if one
of these begins while another still collects its tests.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling


class Scheduler(LoadFileScheduling):
    def remove_node(self, node: Any) -> str | None:
        """Take a process that ended off the list. Return the test that it was running, which counts as run."""
        units = self.assigned_work.pop(node)
        crashed = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        for unit in units.values():
            if crashed in unit:
                unit[crashed] = True
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        if node in self.registered_collections:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config, log):
    return Scheduler(config, log) if config.getvalue("dist") == "loadfile" else None
