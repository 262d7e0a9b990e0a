"""`meshkit view`: 3D parallelism that one can see. Python computes every number; the page draws them.

world.py is what there is to choose from, setting.py what a setting of the page's controls is and when it is legal,
choices.py what each control offers around it, words.py Python's sentences in the page's two languages. devices.py,
weights.py, schedules.py, storyboard.py, perceptron.py, performance.py and sweeps.py each answer a part of the page
for a setting; payload.py names the parts, code.py the code that the page points at. server.py serves them on
localhost, export.py puts a precomputed set into one file. page/ is the page's source (TypeScript), docs/learn*.md the
text of its chapters, static/ the committed build of both (`make page`). No JAX until weights are asked for, and never
a backend.
"""
