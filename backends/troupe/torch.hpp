// SPDX-License-Identifier: Apache-2.0
// Training with libtorch: everything under train::torch, for applications.
#pragma once

#include <troupe/torch_amp.hpp>
#include <troupe/torch_autocast.hpp>
#include <troupe/torch_checkpoint.hpp>
#include <troupe/torch_collectives.hpp>
#include <troupe/torch_config.hpp>
#include <troupe/torch_creators.hpp>
#include <troupe/torch_data.hpp>
#include <troupe/torch_grad_scaler.hpp>
#include <troupe/torch_json.hpp>
#include <troupe/torch_metrics.hpp>
#include <troupe/torch_model.hpp>
#include <troupe/torch_recoverable.hpp>
#include <troupe/torch_reproducibility.hpp>
#include <troupe/torch_sampler.hpp>
#include <troupe/torch_schedulers.hpp>
