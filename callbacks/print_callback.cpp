// SPDX-License-Identifier: Apache-2.0
#include <troupe/print_callback.hpp>

#include <iostream>
#include <string>

namespace troupe {

PrintCallback::PrintCallback() : out_(&std::cout) {}

void PrintCallback::handle_result(const std::vector<Json>& results, const ResultInfo& /*info*/) {
  auto text = Json(results).dump(4, ' ', false, Json::error_handler_t::replace);
  text += '\n';
  // One write, so that lines of other threads do not end up inside. A reader that went away (`| head`) is no reason
  // to end a training, hence no check.
  out_->write(text.data(), static_cast<std::streamsize>(text.size())).flush();
}

}  // namespace troupe
