"""Newer versions of Potluck: found, verified, put beside the one that runs, tried, switched to, and left again.

1. A release publishes `release.json`, an envelope that only the holder of the project's key can make (`envelope.py`):
   it names a version and its packages, each with size and SHA-256 (`release.py`). Where it comes from is never
   trusted, neither a server nor a computer of the home.
2. A package lies in the store of the engine's wheels, comes from the home or the Internet as these do, and counts only
   with the hash that the envelope names (`cluster/updating/`).
3. The .tar.xz of a user is unpacked beside the version in use (`archive.py`) and tried as a process (`trial.py`).
   `versions.py` points the link `tree` at it. Whoever starts Potluck then counts its starts: one that does not come up
   is left, and the version before is used again. A version that came up is marked as good.
4. Its owner may bring one as a file, an AppImage: it goes the same way, if it is newer (`carried.py`).
5. Other kinds are not replaced by Potluck: the file is fetched and verified, and the system's own way is named
   (`ways.py`).
"""
