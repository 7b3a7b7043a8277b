"""Packs a folder as a wheel: wheel.py FOLDER PROJECT VERSION PLATFORM OUTPUT SUMMARY [PROGRAM].

With PROGRAM the folder has a program and its libraries, and `pip install` makes a command that replaces itself by the
program. Without, the files are installed as they are in the folder.
"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

folder, project, version, platform, output, summary = Path(sys.argv[1]), *sys.argv[2:7]
program = sys.argv[7] if len(sys.argv) > 7 else None

PACKAGE = project.replace("-", "_")
MAIN = f'''"""The program {program} and its libraries."""

import os
import sys

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program", {program!r})


def main():
    os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
'''
METADATA = f"""Metadata-Version: 2.1
Name: {project}
Version: {version}
Summary: {summary}
Home-page: https://github.com/mlx-rust/mlx-rust
License: MIT OR Apache-2.0
Requires-Python: >=3.8
"""
WHEEL = f"""Wheel-Version: 1.0
Generator: mlx-rust dist
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""
INFO = f"{PACKAGE}-{version}.dist-info"
RECORD = f"{INFO}/RECORD"

records = []
with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as wheel:

    def add(name, content, mode=0o644):
        # A fixed time: the same files make the same wheel.
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100000 | mode) << 16
        wheel.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        records.append(f"{name},sha256={digest},{len(content)}")

    if program:
        add(f"{PACKAGE}/__init__.py", MAIN.encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            place = path.relative_to(folder).as_posix()
            name = place
            if program:
                name = f"{INFO}/{place}" if place.startswith("licenses/") else f"{PACKAGE}/program/{place}"
            add(name, path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
    add(f"{INFO}/METADATA", METADATA.encode())
    add(f"{INFO}/WHEEL", WHEEL.encode())
    if program:
        add(f"{INFO}/entry_points.txt", f"[console_scripts]\n{program} = {PACKAGE}:main\n".encode())
    records.append(f"{RECORD},,")
    wheel.writestr(zipfile.ZipInfo(RECORD, (1980, 1, 1, 0, 0, 0)), "\n".join(records) + "\n")
