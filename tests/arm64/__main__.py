"""The kernels and a whole guide on emulated arm64 processors: `python tests/arm64 FOLDER`. Linux, root.

    apt-get install debootstrap qemu-user-static
    python tests/arm64 /var/tmp/arm64                        everything, on all three processors
    python tests/arm64 /var/tmp/arm64 --processor dotprod    on a processor like that of a Raspberry Pi 5
    python tests/arm64 /var/tmp/arm64 --only guide           the guide's answers, compared with those of this computer

The first start makes an arm64 Debian with its Python and the wheels of what the engine needs in the folder (300 MB to
download, 1.1 GB on the disk); later ones use it. A processor's kernel tests, some 520, take ten minutes on one core, its guide two;
`--tests FILES` runs a part of them, where a machine is not to be blocked for so long.
A processor counts as wrong if it takes another path than it should, if a test fails, or if the guide answers with other tokens
than here; differences of hidden states and log-probabilities are printed. The exit status is 1 if one is wrong.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

if __name__ == "__main__":
    from arm64.running import main

    sys.exit(main())
