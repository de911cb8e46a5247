"""`python -m ml_pipeline`: the same as `ml-pipeline`."""

import sys

from ml_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
