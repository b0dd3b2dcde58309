"""`python -m twr` is `twr`."""

from twr.cli import main

if __name__ == "__main__":
    main()
