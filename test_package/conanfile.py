# SPDX-License-Identifier: Apache-2.0
"""A consumer of the package: find_package(troupe), and a function on two workers."""
import io
import os
import tempfile

from conan import ConanFile
from conan.errors import ConanException
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout


class TestPackage(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "PkgConfigDeps"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if not can_run(self):
            return
        output = io.StringIO()
        with tempfile.TemporaryDirectory() as logdir:
            self.run(f"{os.path.join(self.cpp.build.bindir, 'consumer')} {logdir}", stdout=output, env="conanrun")
        if not output.getvalue().endswith("[0,1]\n"):
            raise ConanException(f"the consumer printed {output.getvalue()!r}, expected [0,1]")
