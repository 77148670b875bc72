#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs libtorch from its PyPI wheel into the cache folder, once, and prints the torch folder.
# Without the wheel's dependencies: of several GB of CUDA libraries, two small ones are enough to link and start.
set -euo pipefail

version=2.15.0
cache=${XDG_CACHE_HOME:-~/.cache}/troupe  # ~ is known without HOME, too
folder=$cache/torch-$version

if [[ ! -d $folder ]]; then
  mkdir -p "$cache"
  exec 9>"$cache/torch-$version.lock"
  flock 9
  if [[ ! -d $folder ]]; then
    echo "fetching libtorch $version (about 550 MB) into $folder" >&2
    part=$folder.part
    rm -rf "$part"
    python=$cache/pip-venv/bin/python
    if ! "$python" -m pip --version >/dev/null 2>&1; then
      rm -rf "$cache/pip-venv"
      /usr/bin/python3 -m venv "$cache/pip-venv" >&2
    fi
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target "$part" \
      "torch==$version" nvidia-cuda-runtime==13.2.86 nvidia-cuda-cupti==13.2.86 >&2
    mv "$part" "$folder"
  fi
fi
echo "$folder/torch"
