"""Who computes what: measuring, planning, and putting a plan into force on the computers there are."""
