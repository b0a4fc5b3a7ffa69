"""Multi-camera tracking on attnops: tracklets of several cameras in, global identities out.

Run ``python -m examples.mtmc demo --out out/mtmc`` or ``python -m examples.mtmc track --help``.
"""
