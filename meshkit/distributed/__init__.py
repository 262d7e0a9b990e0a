"""Several processes as one: found, joined, agreed, watched, stopped together.

launchers.py says which process this is, rendezvous.py finds the way to process 0, processes.py joins the others;
agreement.py compares them before the first step, watchdog.py ends one that hangs, preemption.py agrees on a last step.
"""
