"""The older name of the command `ml_pipeline.experiments.walk_forward`."""

import sys

from ml_pipeline.experiments.walk_forward import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
