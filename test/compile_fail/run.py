#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles one file that must be refused: run.py FILE COMPILER [flags...]

The compiler's output must contain the text behind `// EXPECT: `. A file that says `// COMPILES` instead must compile: it
shows that the others fail for their own reason and not for a wrong flag.
"""
import pathlib
import re
import subprocess
import sys


def main():
    file, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
    text = file.read_text()
    expected = re.findall(r"^// EXPECT: (.*)$", text, re.M)
    result = subprocess.run([*command, "-fmessage-length=0", "-S", "-O0", "-o", "/dev/null", str(file)],
                            capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    if re.search(r"^// COMPILES$", text, re.M):
        sys.exit(f"{file.name} must compile:\n{result.stderr}" if result.returncode else 0)
    if not expected:
        sys.exit(f"{file.name}: neither // EXPECT: nor // COMPILES")
    if result.returncode == 0:
        sys.exit(f"{file.name} compiles, but must not")
    for part in expected:
        if part not in result.stderr:
            sys.exit(f"{file.name}: the compiler does not say: {part}\n{result.stderr}")
    print(f"refused with: {expected[0]}")


if __name__ == "__main__":
    main()
