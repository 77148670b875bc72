// SPDX-License-Identifier: Apache-2.0
// Where a Trainer and its runs keep their files.
#pragma once

#include <filesystem>

namespace troupe::detail {

/// Makes the folder of a Trainer and returns its absolute path. An absolute option is taken as it is ("~" is the home
/// folder), a relative one lies in ~/troupe_results, an empty one is ~/troupe_results/train_<date>, with _2, _3 ...
/// when that exists. Throws io.
std::filesystem::path make_logdir(const std::filesystem::path& option);
/// A new folder train_<date> in `parent`, which is understood like the option above. Throws io.
std::filesystem::path make_dated_logdir(const std::filesystem::path& parent);

/// Makes the folder of the next run, run_001, run_002 ..., one above the highest there, with its logs/. Throws io.
/// Two callers never get the same one.
std::filesystem::path make_run_dir(const std::filesystem::path& logdir);

/// The folder of the latest run in there; empty when there is none.
std::filesystem::path latest_run_dir(const std::filesystem::path& logdir);

}  // namespace troupe::detail
