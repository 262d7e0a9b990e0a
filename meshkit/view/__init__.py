"""`meshkit view`: 3D parallelism that one can see. Python computes every number; the page draws them.

setting.py says what can be chosen and what is legal; each of devices.py, weights.py, schedules.py,
storyboard.py, performance.py answers one part of the page for a setting; payload.py names the parts;
server.py serves them on localhost, export.py puts a precomputed set into one file. page/ is the page's source
(TypeScript), static/ its committed build. No JAX until weights are asked for, and never a backend.
"""
