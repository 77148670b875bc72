#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom: a folder may use only what its README allows, and public headers show no inner library.

check_includes.py ROOT       checks the tree
check_includes.py --test     checks the checker: every rule must refuse its bad example
"""
import pathlib
import re
import sys
import tempfile

# What each layer may include of the others. The longest matching folder names a file's layer.
ALLOWED = {
    "runtime/base": set(),
    "runtime/engine": {"runtime/base"},
    "checkpoint": {"runtime/base"},
    "runtime/session": {"runtime/base", "checkpoint"},
    "backends": {"runtime/base", "runtime/session", "checkpoint"},
    "callbacks": {"runtime/base", "checkpoint"},
    "actors": {"runtime/base", "runtime/engine", "runtime/session", "checkpoint", "backends", "callbacks"},
    "runtime": {"runtime/base", "runtime/engine", "runtime/session", "checkpoint", "backends", "callbacks", "actors"},
}
# Libraries by the first part of the include's path, and the layers that may use them.
LIBRARIES = {
    "fmt": set(ALLOWED),
    "nlohmann": set(ALLOWED),
    "spdlog": {"runtime/base"},
    "cereal": {"checkpoint"},
    "curl": {"checkpoint"},
    "openssl": {"checkpoint"},
    "pugixml.hpp": {"checkpoint"},
    "zip.h": {"checkpoint"},
    "caf": {"actors", "runtime"},
    "CLI": {"runtime"},
    "torch": {"backends"},
    "ATen": {"backends"},
    "c10": {"backends"},
    "gloo": {"backends"},
    "nccl.h": {"backends"},
}
# Includes that a public header must not show, and the headers that may.
HIDDEN = {"caf": set(), "gloo": set(), "nccl.h": set(), "spdlog": set(), "CLI": set(), "cereal": {"cereal.hpp"},
          "curl": set(), "openssl": set(), "pugixml.hpp": set(), "zip.h": set()}
TORCH = {"torch", "ATen", "c10"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
BARE_TORCH = re.compile(r"(?<![\w:/<\"])torch::(?!$)")


def layer_of(path):
    """The layer a repo-relative path lies in, or None (examples, tests, ...)."""
    folders = [layer for layer in ALLOWED if path.startswith(layer + "/")]
    return max(folders, key=len, default=None)


def public_headers(root):
    """Name as users include it ("troupe/json.hpp") -> repo-relative path."""
    found = {}
    for layer in ALLOWED:
        for header in sorted((root / layer / "troupe").glob("*.hpp")):
            found["troupe/" + header.name] = header.relative_to(root).as_posix()
    return found


def code_lines(text):
    """Lines without comments; numbers stay right."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
    for number, line in enumerate(text.split("\n"), 1):
        yield number, re.sub(r"//.*", "", line)


def check_file(path, text, headers):
    """Yields (line number, sentence) for each breach in one file; `path` is repo-relative."""
    layer = layer_of(path)
    is_header = path.endswith(".hpp")
    is_public = "/troupe/" in path
    name = path.rsplit("/", 1)[-1]
    for number, line in code_lines(text):
        match = INCLUDE.match(line)
        if not match:
            # The backends live where troupe::train::torch is near, so the library's namespace is spelled ::torch.
            bare = BARE_TORCH.search(re.sub(r'"(\\.|[^"\\])*"', '""', line))
            if layer and bare and "namespace" not in line:
                yield number, "library code writes ::torch::..., since troupe::train::torch exists"
            continue
        quote, target = match.groups()
        yield from ((number, text) for text in check_include(path, layer, is_header, is_public, name, quote, target, headers))


def check_include(path, layer, is_header, is_public, name, quote, target, headers):
    library = target.split("/")[0]
    if is_header and target == "torch/torch.h":
        yield "torch/torch.h costs 20 s a file; no header may include it"
    if target.startswith("troupe/"):
        if quote == '"':
            yield f'public headers are included as <{target}>'
        if target not in headers:
            yield f"there is no public header {target}"
            return
        target_layer = layer_of(headers[target])
    elif quote == '"':
        target_layer = layer_of(target)
        if "/troupe/" in target:
            yield f"public headers are included as <troupe/{target.rsplit('/', 1)[-1]}>"
        if is_public:
            yield f"a public header includes the private {target}"
        if path.startswith(("examples/", "bench/")) and target_layer:
            yield f"{path.split('/')[0]} use public headers only, not {target}"
        if layer and target_layer is None:
            yield f'private headers are included repo-relative ("actors/node/node.hpp"), not "{target}"'
    else:
        target_layer = None
        if layer and library in LIBRARIES and layer not in LIBRARIES[library]:
            yield f"{layer} must not use {library}"
        if is_public and name not in HIDDEN.get(library, {name}):
            yield f"a public header must not show {library}"
        if is_public and library in TORCH and not name.startswith("torch"):
            yield "torch appears only in public headers named torch*"
    if layer and target_layer and target_layer != layer and target_layer not in ALLOWED[layer]:
        yield f"{layer} must not include {target} of {target_layer}"


def check_tree(root):
    headers = public_headers(root)
    breaches = []
    for folder in [*ALLOWED, "examples", "bench"]:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".hpp", ".cpp"):
                path = file.relative_to(root).as_posix()
                if folder not in (layer_of(path), path.split("/")[0]):
                    continue  # counted with the inner layer
                for number, sentence in check_file(path, file.read_text(), headers):
                    breaches.append(f"{path}:{number}: {sentence}")
    return sorted(set(breaches))


BAD = [  # (path, line that must be refused, a part of the sentence)
    ("runtime/base/x.cpp", '#include "actors/worker.hpp"', "must not include"),
    ("runtime/engine/x.cpp", "#include <caf/all.hpp>", "must not use caf"),
    ("runtime/engine/x.hpp", "#include <troupe/trainer.hpp>", "must not include"),
    ("checkpoint/x.cpp", '#include "backends/registry.hpp"', "must not include"),
    ("callbacks/x.cpp", '#include "runtime/session/session.hpp"', "must not include"),
    ("actors/x.cpp", "#include <torch/torch.h>", "must not use torch"),
    ("actors/x.cpp", '#include "runtime/trainer.hpp"', "must not include"),
    ("actors/x.cpp", '#include "worker.hpp"', "repo-relative"),
    ("backends/x.hpp", "#include <torch/torch.h>", "no header"),
    ("backends/x.cpp", "auto x = torch::zeros(1);", "::torch"),
    ("backends/troupe/x.hpp", "#include <ATen/ATen.h>", "torch*"),
    ("runtime/troupe/x.hpp", "#include <caf/actor.hpp>", "must not show caf"),
    ("runtime/troupe/x.hpp", '#include "runtime/base/log.hpp"', "private"),
    ("checkpoint/troupe/x.hpp", "#include <cereal/cereal.hpp>", "must not show cereal"),
    ("examples/x.cpp", '#include "actors/worker.hpp"', "public headers only"),
    ("runtime/x.cpp", "#include <troupe/nowhere.hpp>", "no public header"),
]
GOOD = [
    ("actors/x.cpp", '#include "runtime/engine/run_machine.hpp"'),
    ("actors/x.cpp", "// #include <torch/torch.h>"),
    ("backends/x.cpp", "auto x = ::torch::zeros(1);"),
    ("backends/x.cpp", 'auto x = "link troupe::torch or torch::y";'),
    ("backends/x.cpp", "#include <torch/torch.h>"),
    ("backends/x.cpp", "train::torch::prepare();"),
    ("checkpoint/troupe/cereal.hpp", "#include <cereal/cereal.hpp>"),
    ("runtime/troupe/x.hpp", "#include <fmt/ostream.h>"),
    ("runtime/x.cpp", "#include <troupe/trainer.hpp>"),
]


def check_checker():
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "runtime/troupe").mkdir(parents=True)
        (root / "runtime/troupe/trainer.hpp").touch()
        headers = public_headers(root)
    for path, line, part in BAD:
        found = [sentence for _, sentence in check_file(path, line, headers)]
        if not any(part in sentence for sentence in found):
            failures += 1
            print(f"not refused: {path}: {line} (got {found})")
    for path, line in GOOD:
        for _, sentence in check_file(path, line, headers):
            failures += 1
            print(f"refused without reason: {path}: {line}: {sentence}")
    return failures


def main():
    if sys.argv[1:] == ["--test"]:
        failures = check_checker()
        print(f"{len(BAD)} bad and {len(GOOD)} good examples, {failures} failures")
        return 1 if failures else 0
    breaches = check_tree(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(breaches) or "include directions are in order")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
