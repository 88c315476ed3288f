#!/usr/bin/env python3
"""`systemctl reload` puts a new policy in force; one that cannot be used is refused with a reason, and the old one stays in force."""

from checks import POLICY, SERVICE, Holder, colors, is_on, journal, policy, require, run, server, started, state, wait

started()
pid = server()
with Holder("robot-arm") as unit:
    wait("the service is on its colors", 30, lambda: is_on(unit.pid, "control"))
    POLICY.write_text(policy("8-11"))
    run("systemctl", "reload", SERVICE)
    require(colors("control") == "8-11" and colors("batch") == "0-7,12-15", "the new policy is in force when the reload has ended")
    wait("the service is on its new colors", 30, lambda: is_on(unit.pid, "control"))
    for name, text, reason in (
        ("more colors than there are", policy("8-16"), "16"),
        ("a word that no policy has", policy() + "speed = 3\n", "speed"),
        ("no policy at all", "[class", "line 1"),
    ):
        POLICY.write_text(text)
        run("systemctl", "reload", SERVICE, fails=True)
        wait(f"refused: {name}", 10, lambda: "the old policy stays in force" in journal(6) and reason in journal(6))
        print(journal(6))
        require(state() == "active" and server() == pid and colors("control") == "8-11", "the old one stays in force")
    unit.works()
    require(is_on(unit.pid, "control"), "the service stays on its colors")
    POLICY.write_text(policy())
    run("systemctl", "reload", SERVICE)
    require(colors("control") == "0-3", "the usual policy is in force again")
