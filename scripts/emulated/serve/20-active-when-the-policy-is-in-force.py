#!/usr/bin/env python3
"""The service is active from when its policy is in force, not before, and fails with a policy that cannot be used."""

import os
import subprocess

from checks import POLICY, SERVICE, colors, journal, policy, require, run, shown, state, status, stopped, wait

POLICY.parent.mkdir(exist_ok=True)
stopped()
POLICY.unlink(missing_ok=True)
# The server waits for its policy as long as nobody writes it.
os.mkfifo(POLICY)
run("systemctl", "start", "--no-block", SERVICE)
wait("the service is being started", 30, lambda: state() == "activating" and shown("MainPID") != "0")
done = subprocess.run(["systemctl", "is-active", SERVICE], capture_output=True, text=True)
require(done.stdout.strip() == "activating" and status() is None, "without a policy it is not active, and nobody answers")
POLICY.write_text(policy())
wait("it is active", 60, lambda: state() == "active")
require(colors("control") == "0-3" and colors("batch") == "4-15", "what it answers is the policy")

stopped()
POLICY.unlink()
POLICY.write_text(policy("0-16"))
run("systemctl", "start", SERVICE, fails=True)
require(state() in ("failed", "activating"), "with a policy that cannot be used it is not active")
print(journal(3))
stopped()
POLICY.write_text(policy())
run("systemctl", "start", SERVICE)
require(state() == "active" and colors("control") == "0-3", "once `systemctl start` returns, the policy is in force")
require(shown("NRestarts") == "0", "it was not restarted")
