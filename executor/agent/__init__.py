"""The far half: what runs inside the box as process 1.

Standard library only, and nothing of the host package is imported from here: the
files of this folder are copied into the runtime volume and run there on their own.
"""
