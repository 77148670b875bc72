// SPDX-License-Identifier: Apache-2.0
// What travels between the driver and its workers. Append only: fields and types are never reordered. Every message is
// bound to one worker process by its token, and those of a run to one attempt by its generation; stale ones are
// dropped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <troupe/fn.hpp>

#include "actors/caf_compat.hpp"

namespace troupe {
namespace wire {

using detail::FunctionId;

/// Refused unless equal on both sides.
inline constexpr const char* protocol_version = "troupe/1";
/// No message is larger; larger values travel in parts before it.
inline constexpr std::size_t max_message_bytes = std::size_t{256} << 10;

/// Bytes that may be too large for one message: `bytes` holds them, or parts with this id came before.
struct Blob {
  std::uint64_t id = 0;
  std::uint64_t size = 0;
  std::string bytes;

  bool operator==(const Blob&) const = default;
};

/// One piece of a Blob.
struct BlobPart {
  std::uint64_t token = 0;
  std::uint64_t id = 0;
  std::string bytes;

  bool operator==(const BlobPart&) const = default;
};

/// Worker to group, first of all.
struct Registration {
  std::uint64_t token = 0;
  std::string version;
  std::string build;
  std::int32_t pid = 0;

  bool operator==(const Registration&) const = default;
};

/// A rank's place in the world of the moment: a detail::RankInfo.
struct Ranks {
  std::int32_t world_rank = 0;
  std::int32_t local_rank = 0;
  std::int32_t node_rank = 0;
  std::int32_t world_size = 1;
  std::int32_t local_world_size = 1;

  bool operator==(const Ranks&) const = default;
};

/// Group to worker: who you are and what to prepare.
struct Setup {
  Ranks ranks;
  std::int32_t threads = 1;
  std::vector<std::string> environment;  ///< NAME=value to set, NAME to unset
  std::string working_directory;
  std::string backend;
  std::string backend_options;
  FunctionId hook;    ///< no build id: none
  FunctionId object;  ///< likewise
  Blob object_arguments;

  bool operator==(const Setup&) const = default;
};

struct SetupDone {
  std::uint64_t token = 0;
  std::uint8_t failed = 0;
  std::uint8_t code = 0;
  std::string error;

  bool operator==(const SetupDone&) const = default;
};

/// Where a checkpoint can be had: a detail::CheckpointSource.
struct CheckpointPlace {
  std::uint64_t id = 0;
  std::int64_t iteration = 0;
  Blob bytes;
  std::string folder;
  std::vector<std::string> files;

  bool operator==(const CheckpointPlace&) const = default;
};

/// Group to worker: run the function.
struct RunRequest {
  std::uint64_t generation = 0;
  FunctionId function;
  Blob config;
  std::uint8_t detailed_metrics = 0;
  std::uint32_t window_reports = 0;
  std::uint64_t window_bytes = 0;
  std::uint64_t first_checkpoint = 1;  ///< its id
  std::string checkpoint_folder;       ///< empty: nothing goes to disk
  CheckpointPlace start;
  Ranks ranks;
  std::uint8_t joining = 0;  ///< the others are in the middle of the run
  std::uint8_t retry_user_errors = 0;
  std::string result_folder;  ///< empty: likewise

  bool operator==(const RunRequest&) const = default;
};

/// Worker to group: reports one after the other.
struct Reports {
  std::uint64_t token = 0;
  std::uint64_t generation = 0;
  std::vector<std::uint32_t> sizes;
  Blob bytes;
  std::int64_t origin = 0;   ///< reports made before the checkpoint that the function went on from
  std::uint8_t resumed = 0;  ///< that one is of an earlier attempt
  std::int64_t step = -1;    ///< the last one it has made; -1: none

  bool operator==(const Reports&) const = default;
};

/// Group to worker: so much was consumed.
struct Credit {
  std::uint64_t generation = 0;
  std::uint32_t reports = 0;
  std::uint64_t bytes = 0;

  bool operator==(const Credit&) const = default;
};

/// Group to worker: stop the run.
struct Halt {
  std::uint64_t generation = 0;

  bool operator==(const Halt&) const = default;
};

/// Worker to group: the function ended. `end` is an engine::RankEnd; `payload` its result, or the exception's text.
struct RankDone {
  std::uint64_t token = 0;
  std::uint64_t generation = 0;
  std::uint8_t end = 0;
  std::uint8_t code = 0;
  Blob payload;
  std::uint8_t saw_notice = 0;  ///< of a preemption

  bool operator==(const RankDone&) const = default;
};

struct Call {
  std::uint64_t id = 0;
  FunctionId function;
  Blob arguments;

  bool operator==(const Call&) const = default;
};

/// Group to worker: calls in order.
struct Calls {
  std::vector<Call> calls;

  bool operator==(const Calls&) const = default;
};

/// `payload` is the result, or the exception's text.
struct Reply {
  std::uint64_t id = 0;
  std::uint8_t failed = 0;
  std::uint8_t code = 0;
  Blob payload;

  bool operator==(const Reply&) const = default;
};

/// Worker to group.
struct Replies {
  std::uint64_t token = 0;
  std::vector<Reply> replies;

  bool operator==(const Replies&) const = default;
};

/// Worker to group: one rank's part of a checkpoint, a detail::SavedPart. Metrics and written are MessagePack.
struct CheckpointPart {
  std::uint64_t token = 0;
  std::uint64_t generation = 0;
  std::uint64_t number = 0;
  std::int32_t parts = 1;
  std::int64_t iteration = 0;
  Blob metrics;
  Blob bytes;
  std::string memory;
  Blob written;
  std::string error;
  std::int32_t rank = 0;  ///< when it was saved

  bool operator==(const CheckpointPart&) const = default;
};

/// Group to worker: what became of a checkpoint.
struct CheckpointAnswer {
  std::uint64_t generation = 0;
  std::uint64_t number = 0;
  CheckpointPlace place;
  std::string error;

  bool operator==(const CheckpointAnswer&) const = default;
};

/// Group to worker, to all at once: form the process group of that epoch.
struct Form {
  std::uint64_t epoch = 0;
  Ranks ranks;

  bool operator==(const Form&) const = default;
};

/// Worker to group: the function can go on in place when others are lost, or no longer. Group to worker: the same, now
/// that it is known.
struct Live {
  std::uint64_t token = 0;
  std::uint64_t generation = 0;
  std::uint8_t live = 0;

  bool operator==(const Live&) const = default;
};

/// Worker to group: the function waits for a new group. `saves`: checkpoints it has saved in this attempt.
struct Held {
  std::uint64_t token = 0;
  std::uint64_t generation = 0;
  std::uint64_t saves = 0;
  std::string why;
  std::uint8_t user_error = 0;  ///< its own exception
  std::int64_t step = -1;       ///< the last one it has made; -1: none

  bool operator==(const Held&) const = default;
};

/// Worker to group: the first step since the function began or went on.
struct Progress {
  std::uint64_t token = 0;
  std::uint64_t generation = 0;
  std::int64_t step = 0;

  bool operator==(const Progress&) const = default;
};

/// Worker to group: the function has been left, and what it saved is still being written. RankDone follows.
struct Saving {
  std::uint64_t token = 0;
  std::uint64_t generation = 0;

  bool operator==(const Saving&) const = default;
};

/// Worker to group: the function does nothing until a CheckpointAnswer of that number, or of a later one, comes.
struct AwaitsSave {
  std::uint64_t token = 0;
  std::uint64_t generation = 0;
  std::uint64_t number = 0;

  bool operator==(const AwaitsSave&) const = default;
};

/// Worker to group: its process got SIGTERM.
struct Preempted {
  std::uint64_t token = 0;

  bool operator==(const Preempted&) const = default;
};

/// Group to worker: that rank will be taken away.
struct PreemptionNotice {
  std::uint64_t generation = 0;
  std::int32_t rank = 0;
  std::int64_t within_ms = 0;

  bool operator==(const PreemptionNotice&) const = default;
};

/// Group to worker, when all were held: the function goes on.
struct Resume {
  std::uint64_t generation = 0;
  Ranks ranks;

  bool operator==(const Resume&) const = default;
};

struct FormDone {
  std::uint64_t token = 0;
  std::uint64_t epoch = 0;
  std::uint8_t failed = 0;
  std::uint8_t code = 0;
  std::string error;

  bool operator==(const FormDone&) const = default;
};

/// Worker to group, its answer to a ping: the worker's control thread lives, and its function stands here
/// (engine::Standing).
struct Pong {
  std::uint64_t token = 0;
  std::uint64_t generation = 0;  ///< 0: it runs no function
  std::uint64_t progress = 0;
  std::int64_t rounds = 0;
  std::int64_t compute_us = 0;
  std::uint8_t waits_for = 0;
  std::string doing;
  std::int64_t step = -1;

  bool operator==(const Pong&) const = default;
};

/// Worker to store. `operation` is an engine::StoreOperation.
struct StoreRequest {
  std::uint64_t token = 0;
  std::uint64_t id = 0;
  std::uint8_t operation = 0;
  std::vector<std::string> keys;
  std::string value;
  std::int64_t amount = 0;
  std::int64_t timeout_ms = 0;

  bool operator==(const StoreRequest&) const = default;
};

struct StoreAnswer {
  std::uint64_t id = 0;
  std::uint8_t failed = 0;
  std::string value;
  std::int64_t number = 0;

  bool operator==(const StoreAnswer&) const = default;
};

template <class Inspector>
auto inspect(Inspector& f, Blob& x) {
  return compat::describe(f, x, "troupe::wire::Blob", compat::field("id", x.id), compat::field("size", x.size),
                          compat::field("bytes", x.bytes));
}
template <class Inspector>
auto inspect(Inspector& f, BlobPart& x) {
  return compat::describe(f, x, "troupe::wire::BlobPart", compat::field("token", x.token), compat::field("id", x.id),
                          compat::field("bytes", x.bytes));
}
template <class Inspector>
auto inspect(Inspector& f, Registration& x) {
  return compat::describe(f, x, "troupe::wire::Registration", compat::field("token", x.token),
                          compat::field("version", x.version), compat::field("build", x.build),
                          compat::field("pid", x.pid));
}
template <class Inspector>
auto inspect(Inspector& f, Ranks& x) {
  return compat::describe(f, x, "troupe::wire::Ranks", compat::field("world_rank", x.world_rank),
                          compat::field("local_rank", x.local_rank), compat::field("node_rank", x.node_rank),
                          compat::field("world_size", x.world_size),
                          compat::field("local_world_size", x.local_world_size));
}
template <class Inspector>
auto inspect(Inspector& f, Setup& x) {
  return compat::describe(f, x, "troupe::wire::Setup", compat::field("ranks", x.ranks),
                          compat::field("threads", x.threads), compat::field("environment", x.environment),
                          compat::field("working_directory", x.working_directory), compat::field("backend", x.backend),
                          compat::field("backend_options", x.backend_options), compat::field("hook", x.hook),
                          compat::field("object", x.object), compat::field("object_arguments", x.object_arguments));
}
template <class Inspector>
auto inspect(Inspector& f, SetupDone& x) {
  return compat::describe(f, x, "troupe::wire::SetupDone", compat::field("token", x.token),
                          compat::field("failed", x.failed), compat::field("code", x.code),
                          compat::field("error", x.error));
}
template <class Inspector>
auto inspect(Inspector& f, CheckpointPlace& x) {
  return compat::describe(f, x, "troupe::wire::CheckpointPlace", compat::field("id", x.id),
                          compat::field("iteration", x.iteration), compat::field("bytes", x.bytes),
                          compat::field("folder", x.folder), compat::field("files", x.files));
}
template <class Inspector>
auto inspect(Inspector& f, Live& x) {
  return compat::describe(f, x, "troupe::wire::Live", compat::field("token", x.token),
                          compat::field("generation", x.generation), compat::field("live", x.live));
}
template <class Inspector>
auto inspect(Inspector& f, Held& x) {
  return compat::describe(f, x, "troupe::wire::Held", compat::field("token", x.token),
                          compat::field("generation", x.generation), compat::field("saves", x.saves),
                          compat::field("why", x.why), compat::field("user_error", x.user_error),
                          compat::field("step", x.step));
}
template <class Inspector>
auto inspect(Inspector& f, Progress& x) {
  return compat::describe(f, x, "troupe::wire::Progress", compat::field("token", x.token),
                          compat::field("generation", x.generation), compat::field("step", x.step));
}
template <class Inspector>
auto inspect(Inspector& f, Saving& x) {
  return compat::describe(f, x, "troupe::wire::Saving", compat::field("token", x.token),
                          compat::field("generation", x.generation));
}
template <class Inspector>
auto inspect(Inspector& f, AwaitsSave& x) {
  return compat::describe(f, x, "troupe::wire::AwaitsSave", compat::field("token", x.token),
                          compat::field("generation", x.generation), compat::field("number", x.number));
}
template <class Inspector>
auto inspect(Inspector& f, Preempted& x) {
  return compat::describe(f, x, "troupe::wire::Preempted", compat::field("token", x.token));
}
template <class Inspector>
auto inspect(Inspector& f, PreemptionNotice& x) {
  return compat::describe(f, x, "troupe::wire::PreemptionNotice", compat::field("generation", x.generation),
                          compat::field("rank", x.rank), compat::field("within_ms", x.within_ms));
}
template <class Inspector>
auto inspect(Inspector& f, Resume& x) {
  return compat::describe(f, x, "troupe::wire::Resume", compat::field("generation", x.generation),
                          compat::field("ranks", x.ranks));
}
template <class Inspector>
auto inspect(Inspector& f, RunRequest& x) {
  return compat::describe(
      f, x, "troupe::wire::RunRequest", compat::field("generation", x.generation),
      compat::field("function", x.function), compat::field("config", x.config),
      compat::field("detailed_metrics", x.detailed_metrics), compat::field("window_reports", x.window_reports),
      compat::field("window_bytes", x.window_bytes), compat::field("first_checkpoint", x.first_checkpoint),
      compat::field("checkpoint_folder", x.checkpoint_folder), compat::field("start", x.start),
      compat::field("ranks", x.ranks), compat::field("joining", x.joining),
      compat::field("retry_user_errors", x.retry_user_errors), compat::field("result_folder", x.result_folder));
}
template <class Inspector>
auto inspect(Inspector& f, Reports& x) {
  return compat::describe(f, x, "troupe::wire::Reports", compat::field("token", x.token),
                          compat::field("generation", x.generation), compat::field("sizes", x.sizes),
                          compat::field("bytes", x.bytes), compat::field("origin", x.origin),
                          compat::field("resumed", x.resumed), compat::field("step", x.step));
}
template <class Inspector>
auto inspect(Inspector& f, Credit& x) {
  return compat::describe(f, x, "troupe::wire::Credit", compat::field("generation", x.generation),
                          compat::field("reports", x.reports), compat::field("bytes", x.bytes));
}
template <class Inspector>
auto inspect(Inspector& f, Halt& x) {
  return compat::describe(f, x, "troupe::wire::Halt", compat::field("generation", x.generation));
}
template <class Inspector>
auto inspect(Inspector& f, RankDone& x) {
  return compat::describe(f, x, "troupe::wire::RankDone", compat::field("token", x.token),
                          compat::field("generation", x.generation), compat::field("end", x.end),
                          compat::field("code", x.code), compat::field("payload", x.payload),
                          compat::field("saw_notice", x.saw_notice));
}
template <class Inspector>
auto inspect(Inspector& f, Call& x) {
  return compat::describe(f, x, "troupe::wire::Call", compat::field("id", x.id), compat::field("function", x.function),
                          compat::field("arguments", x.arguments));
}
template <class Inspector>
auto inspect(Inspector& f, Calls& x) {
  return compat::describe(f, x, "troupe::wire::Calls", compat::field("calls", x.calls));
}
template <class Inspector>
auto inspect(Inspector& f, Reply& x) {
  return compat::describe(f, x, "troupe::wire::Reply", compat::field("id", x.id), compat::field("failed", x.failed),
                          compat::field("code", x.code), compat::field("payload", x.payload));
}
template <class Inspector>
auto inspect(Inspector& f, Replies& x) {
  return compat::describe(f, x, "troupe::wire::Replies", compat::field("token", x.token),
                          compat::field("replies", x.replies));
}

template <class Inspector>
auto inspect(Inspector& f, Form& x) {
  return compat::describe(f, x, "troupe::wire::Form", compat::field("epoch", x.epoch), compat::field("ranks", x.ranks));
}
template <class Inspector>
auto inspect(Inspector& f, FormDone& x) {
  return compat::describe(f, x, "troupe::wire::FormDone", compat::field("token", x.token),
                          compat::field("epoch", x.epoch), compat::field("failed", x.failed),
                          compat::field("code", x.code), compat::field("error", x.error));
}
template <class Inspector>
auto inspect(Inspector& f, Pong& x) {
  return compat::describe(f, x, "troupe::wire::Pong", compat::field("token", x.token),
                          compat::field("generation", x.generation), compat::field("progress", x.progress),
                          compat::field("rounds", x.rounds), compat::field("compute_us", x.compute_us),
                          compat::field("waits_for", x.waits_for), compat::field("doing", x.doing),
                          compat::field("step", x.step));
}
template <class Inspector>
auto inspect(Inspector& f, StoreRequest& x) {
  return compat::describe(f, x, "troupe::wire::StoreRequest", compat::field("token", x.token),
                          compat::field("id", x.id), compat::field("operation", x.operation),
                          compat::field("keys", x.keys), compat::field("value", x.value),
                          compat::field("amount", x.amount), compat::field("timeout_ms", x.timeout_ms));
}
template <class Inspector>
auto inspect(Inspector& f, StoreAnswer& x) {
  return compat::describe(f, x, "troupe::wire::StoreAnswer", compat::field("id", x.id),
                          compat::field("failed", x.failed), compat::field("value", x.value),
                          compat::field("number", x.number));
}
template <class Inspector>
auto inspect(Inspector& f, CheckpointPart& x) {
  return compat::describe(
      f, x, "troupe::wire::CheckpointPart", compat::field("token", x.token), compat::field("generation", x.generation),
      compat::field("number", x.number), compat::field("parts", x.parts), compat::field("iteration", x.iteration),
      compat::field("metrics", x.metrics), compat::field("bytes", x.bytes), compat::field("memory", x.memory),
      compat::field("written", x.written), compat::field("error", x.error), compat::field("rank", x.rank));
}
template <class Inspector>
auto inspect(Inspector& f, CheckpointAnswer& x) {
  return compat::describe(f, x, "troupe::wire::CheckpointAnswer", compat::field("generation", x.generation),
                          compat::field("number", x.number), compat::field("place", x.place),
                          compat::field("error", x.error));
}

}  // namespace wire

namespace detail {
template <class Inspector>
auto inspect(Inspector& f, FunctionId& x) {
  return compat::describe(f, x, "troupe::detail::FunctionId", compat::field("build", x.build),
                          compat::field("offset", x.offset));
}
}  // namespace detail
}  // namespace troupe
