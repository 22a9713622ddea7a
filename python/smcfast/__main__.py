"""``python -m smcfast``."""

from smcfast.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
