"""The real system, as `potluck.doctor.facts` describes it. Looks block, within deadlines, and change nothing."""
