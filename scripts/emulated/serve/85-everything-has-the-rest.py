#!/usr/bin/env python3
"""With a policy that gives the rest to everything, systemd's own sandboxed services come onto the rest, and the machine works on."""

from checks import member, policy, require, run, shown, started, status, wait

NAMES = ("systemd-journal", "systemd-udevd", "dbus-daemon", "systemd-logind")

started(policy(others='{ unit = "*" }'))


def there():
    found = {one["name"]: one for each in (status() or {"classes": []})["classes"] for one in each["members"]}
    return all(name in found and found[name]["seconds_to_colors"] is not None and not found[name]["trouble"] for name in NAMES)


wait(f"on the rest: {', '.join(NAMES)}", 150, there)
print(run("isochrome", "policy", "status"))
require(member(1) == (None, None), "process 1 is left alone")
require(shown("ActiveState", "systemd-journald.service") == "active", "the journal is written")
started(policy())
