#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Conan package with Debian's libraries and no remote, and runs its consumer: conan_create.py CONAN ROOT"""
import os
import pathlib
import subprocess
import sys
import tempfile


def main():
    conan, root = (pathlib.Path(argument) for argument in sys.argv[1:])
    if os.environ.get("CI") != "true":
        print("SKIPPED: it compiles the whole library once more; it runs in CI, or with CI=true. Status: SUCCESS!")
        return
    if not conan.is_file():
        print(f"SKIPPED: there is no Conan at {conan}, where ./dev installs it. Status: SUCCESS!")
        return
    with tempfile.TemporaryDirectory(prefix="troupe-conan-") as home:
        environment = {**os.environ, "CONAN_HOME": home, "TMPDIR": home}
        for command in (["profile", "detect"],
                        ["create", root, "-pr:a", root / "profiles/linux", "-s:a", "build_type=Debug", "-nr"]):
            print("+ conan", *command, flush=True)
            subprocess.run([conan, *command], env=environment, check=True)


if __name__ == "__main__":
    main()
