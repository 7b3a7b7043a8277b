"""Fails unless the installed packages are the ones that requirements.txt pins: goldens of other versions are others."""

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def main():
    faults = []
    for line in (Path(__file__).parent / "requirements.txt").read_text().splitlines():
        pin = re.fullmatch(r"([\w-]+)(?:\[\w+\])?==(\S+)", line)
        if not pin:
            continue
        name, wanted = pin.groups()
        try:
            found = version(name).partition("+")[0]
        except PackageNotFoundError:
            found = "nothing"
        if found != wanted:
            faults.append(f"{name}: expected {wanted}, found {found}")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
