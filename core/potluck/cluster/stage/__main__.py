"""The process that computes, started by the node, never by a person: `python -m potluck.cluster.stage`."""

import gc

gc.disable()  # nothing that is imported becomes garbage, and to look for it takes a sixth of the start

from potluck.cluster.stage.process import main  # noqa: E402

gc.freeze()  # nor later: a pass over all of torch would take as long as some tokens
gc.enable()

if __name__ == "__main__":
    main()
