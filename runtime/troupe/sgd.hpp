// SPDX-License-Identifier: Apache-2.0
// The names of RaySGD v2 for the same things.
#pragma once

#include <troupe/callback.hpp>
#include <troupe/run_iterator.hpp>
#include <troupe/train.hpp>
#include <troupe/trainer.hpp>

namespace troupe {

using SGDCallback = TrainingCallback;
using SGDIterator = RunIterator;
using TrainingIterator = RunIterator;

namespace sgd {
using namespace troupe::train;  // NOLINT(google-build-using-namespace): sgd is another name of train
using troupe::RunOptions;
using troupe::SGDCallback;
using troupe::SGDIterator;
using troupe::Trainer;
using troupe::TrainerOptions;
}  // namespace sgd

}  // namespace troupe
