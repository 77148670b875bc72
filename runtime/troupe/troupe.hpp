// SPDX-License-Identifier: Apache-2.0
// Everything a program needs, for applications; our own code includes what it uses.
#pragma once

#include <troupe/backend.hpp>
#include <troupe/call.hpp>
#include <troupe/callback.hpp>
#include <troupe/error.hpp>
#include <troupe/fn.hpp>
#include <troupe/init.hpp>
#include <troupe/json.hpp>
#include <troupe/json_logger_callback.hpp>
#include <troupe/options.hpp>
#include <troupe/print_callback.hpp>
#include <troupe/pytorch_trainer.hpp>
#include <troupe/run_config.hpp>
#include <troupe/run_iterator.hpp>
#include <troupe/run_results.hpp>
#include <troupe/sgd.hpp>
#include <troupe/torch_trainer.hpp>
#include <troupe/train.hpp>
#include <troupe/trainer.hpp>
#include <troupe/version.hpp>
#include <troupe/worker_group.hpp>
