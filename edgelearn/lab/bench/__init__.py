"""Measuring workloads side by side, interleaved in one run, each contender in a process of its own."""
