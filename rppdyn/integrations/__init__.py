"""Symmetry specs in other trainers: `rsl_rl`, `isaac_lab`, `mjlab`, `holosoma`; none is imported before it is used."""
