"""A stage process whose sums wait as long as a busy computer may take for them: `python -m patient_stage`."""

from potluck.cluster.stage import sum_times
from potluck.cluster.stage.process import main

PATIENCE_S = 60.0

if __name__ == "__main__":
    sum_times.SUM_S = sum_times.DEADLINE_S = PATIENCE_S
    main()
