"""Measure headlab against stock fairseq: python scripts/benchmark.py --help        (make benchmark).

Everything is in benchmarking/: the processes that are measured import this file, so it must not load anything.
"""

import sys

if __name__ == "__main__":
    from benchmarking.command import main

    sys.exit(main())
