"""Training scripts as people have them, at their smallest; :mod:`bench.switch` changes two lines of each.

Each has ``make_loader(args)``, which is what the public script does, and a loop of a small model around it.
"""
