"""What a step really did: profiler.py records it, measured.py reads actions out of it, trace_file.py draws them."""
