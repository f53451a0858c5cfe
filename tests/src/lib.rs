//! Whole-system suites against the real binary; see `tests/`.
