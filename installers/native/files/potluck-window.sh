#!/bin/sh
# The window of Potluck, wherever this tree lies. Python's own variables are another Python's.
me=$(readlink -f -- "$0") || exit 1
unset PYTHONHOME PYTHONPATH PYTHONSAFEPATH PYTHONSTARTUP PYTHONINSPECT PYTHONOPTIMIZE PYTHONUSERBASE
export PYTHONNOUSERSITE=1
exec "${me%/bin/*}/python/bin/python3" -P -m potluck_app "$@"
