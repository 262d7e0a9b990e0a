"""A layout against one device: `meshkit verify`.

verify.py trains both and reports, shrink.py makes a model small enough, one_device.py is the plain step beside it,
compare.py says how far apart the two may be, uneven.py what stages of unequal length cost.
"""
