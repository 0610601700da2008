"""``python -m seepage`` is the command ``seepage``."""

from seepage.cli import main

if __name__ == "__main__":
    main()
