// SPDX-License-Identifier: Apache-2.0
// The Store actor: the StoreTable behind messages.
#include <map>
#include <utility>

#include "actors/protocols.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/store_table.hpp"

namespace troupe {
namespace {

using engine::Clock;

class StoreState {
public:
  static inline const char* const name = "troupe.store";
  StoreState() = default;

  StoreActor::behavior_type run(StoreActor::pointer self) {
    self_ = self;
    compat::on_down(self, [this](const caf::down_msg& down) { client_ended(down); });
    compat::on_exception(self, [](const char* text) { log_error("store failed: {}", text); });
    return {
        [this](const wire::StoreRequest& request) { handle(request); },
        [this](atom::tick) {
          armed_.reset();
          answer(table_.tick(Clock::now()));
        },
    };
  }

private:
  void handle(const wire::StoreRequest& request) {
    if (!clients_.contains(request.token)) {
      auto worker = caf::actor_cast<WorkerActor>(self_->current_sender());
      compat::watch(self_, worker);
      clients_.emplace(request.token, std::move(worker));
    }
    answer(table_.handle({request.token, request.id, static_cast<engine::StoreOperation>(request.operation),
                          request.keys, request.value, request.amount, engine::Duration(request.timeout_ms)},
                         Clock::now()));
  }

  void answer(const std::vector<engine::StoreAnswer>& answers) {
    for (const auto& one : answers)
      if (auto client = clients_.find(one.client); client != clients_.end())
        compat::tell(self_, client->second, wire::StoreAnswer{one.id, one.failed, one.value, one.number});
    const auto next = table_.deadline();
    if (!next || (armed_ && *armed_ <= *next)) return;
    armed_ = next;
    compat::remind(self_, std::max<Clock::duration>(*next - Clock::now(), Clock::duration::zero()), atom::tick_v);
  }

  void client_ended(const caf::down_msg& down) {
    for (auto client = clients_.begin(); client != clients_.end(); ++client)
      if (client->second.address() == down.source) {
        table_.forget(client->first);
        clients_.erase(client);
        return;
      }
  }

  StoreActor::pointer self_ = nullptr;
  engine::StoreTable table_;
  std::map<std::uint64_t, WorkerActor> clients_;
  std::optional<engine::Time> armed_;
};

StoreActor::behavior_type store(StoreActor::stateful_pointer<StoreState> self, compat::NoArgument) {
  return compat::state_of(self).run(self);
}

}  // namespace

StoreActor spawn_store(caf::actor_system& system) { return system.spawn(store, compat::NoArgument{}); }

}  // namespace troupe
