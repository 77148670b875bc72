// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace troupe {

struct InitOptions {
  /// Ctrl-C and SIGTERM end an active run in good order. The handlers are installed while a run is active, and the
  /// previous ones are restored after it. False: both are left alone. SIGPIPE is ignored from init() on either way.
  bool signal_handlers = true;
  /// OpenMP's threads sleep while they wait (OMP_WAIT_POLICY=PASSIVE in this program's environment, unless that has a
  /// policy): for workers of several threads each that share cores. Workers are then forked from a copy of this program
  /// that is run anew, since OpenMP reads its policy when it is loaded.
  bool passive_threads = false;
};

/// First line of main(), needed for process placement. In the user's program it returns at once; worker processes and
/// the fork server never return from it.
void init(int argc, char** argv, InitOptions options = {});

/// Whether init() was called.
bool initialized();

}  // namespace troupe
