# SPDX-License-Identifier: Apache-2.0
"""troupe as a Conan 2 package. This is the one list of the libraries that troupe needs.

deps=system  Debian packages; works with no Conan remote at all (use -nr)
deps=conan   packages of a Conan remote
"""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.gnu import PkgConfigDeps
from conan.tools.files import copy, load, save
from conan.tools.system.package_manager import Apt

required_conan_version = ">=2.25"

LIBRARIES = ["libcaf-dev", "libfmt-dev", "libspdlog-dev", "nlohmann-json3-dev", "libcereal-dev",
             "libcurl4-openssl-dev", "libssl-dev", "libpugixml-dev",  # checkpoints on S3
             "pkg-config", "libzip-dev"]  # .pt files
DEVELOPMENT = ["libcli11-dev", "doctest-dev"]  # examples, benchmarks, tests
TORCH = ["libgloo-dev"]  # headers: the wheel holds Gloo itself but not these
SYSTEM_TORCH = ["libtorch-dev", "libgoogle-glog-dev", "libopenblas0-openmp"]
PUBLIC_REFERENCES = ["fmt/10.2.1", "nlohmann_json/3.11.3", "cereal/1.3.2"]  # our public headers include theirs
# ConanCenter drops old versions of libcurl and OpenSSL; spdlog's recipe asks for that very fmt.
REFERENCES = ["caf/1.1.0", "spdlog/1.14.1", "libcurl/[>=8.10 <9]", "openssl/[>=3 <4]", "pugixml/1.14", "libzip/1.11.4"]

DEVELOPMENT_REFERENCES = ["cli11/2.4.2", "doctest/2.4.11"]


class TroupeConan(ConanFile):
    name = "troupe"
    description = "Trains models on many workers from plain C++"
    license = "Apache-2.0"
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "deps": ["system", "conan"],
        "torch": ["wheel", "system", "off"],
        "with_nccl": [True, False],
    }
    default_options = {"deps": "system", "torch": "wheel", "with_nccl": False}
    exports_sources = (
        "CMakeLists.txt", "LICENSE", "cmake/*", "runtime/*", "checkpoint/*", "backends/*", "callbacks/*", "actors/*",
    )

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "runtime", "base", "troupe", "version.hpp"))
        self.version = re.search(r'TROUPE_VERSION "([^"]+)"', header).group(1)

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("troupe runs on Linux only (fork server, pidfd, futex)")

    def layout(self):
        cmake_layout(self)

    def system_packages(self):
        libraries = LIBRARIES + (DEVELOPMENT if self._in_source_tree() else [])
        # What comes with libtorch is nowhere but in Debian.
        return ((libraries if self.options.deps == "system" else []) + (TORCH if self.options.torch != "off" else [])
                + (SYSTEM_TORCH if self.options.torch == "system" else []))

    def system_requirements(self):
        packages = self.system_packages()
        if packages:
            Apt(self).install(packages, update=True, check=True)

    def requirements(self):
        if self.options.deps == "conan":
            self.output.info(f"deps=conan: {', '.join(PUBLIC_REFERENCES + REFERENCES)} come from a Conan remote. Where none is configured or "
                             "reachable (or with -nr) this fails; Debian's packages do without one: deps=system")
            for reference in PUBLIC_REFERENCES:
                self.requires(reference, transitive_headers=True, transitive_libs=True)
            for reference in REFERENCES:
                self.requires(reference)

    def build_requirements(self):
        if self.options.deps == "conan" and self._in_source_tree():
            for reference in DEVELOPMENT_REFERENCES:
                self.test_requires(reference)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables["TROUPE_TORCH"] = str(self.options.torch)
        toolchain.cache_variables["TROUPE_WITH_NCCL"] = bool(self.options.with_nccl)
        if not self._in_source_tree():
            for part in ("TESTS", "EXAMPLES", "BENCH"):
                toolchain.cache_variables[f"TROUPE_BUILD_{part}"] = False
        toolchain.generate()
        if self.options.deps == "conan":
            CMakeDeps(self).generate()
            PkgConfigDeps(self).generate()  # libzip is found by pkg-config
        save(self, os.path.join(self.generators_folder, "system_packages.txt"), "\n".join(self.system_packages()) + "\n")

    def build(self):
        if self.options.torch == "wheel":
            self.run(os.path.join(self.source_folder, "cmake", "fetch_torch.sh"))
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # Our own installed troupeConfig.cmake is the truth, for users with and without Conan.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "troupe")]

    def _in_source_tree(self):
        # Tests, examples and benchmarks are not exported: a package is made without them, and without their libraries.
        return os.path.isdir(os.path.join(self.recipe_folder, "test"))
