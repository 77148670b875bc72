// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/keeper.hpp"

#include <algorithm>
#include <ctime>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "checkpoint/file.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/scan.hpp"
#include "checkpoint/shard_writer.hpp"
#include "checkpoint/storage/mirror.hpp"
#include "runtime/base/log.hpp"

namespace troupe::detail {

namespace fs = std::filesystem;

namespace {

constexpr const char* iteration_key = "_training_iteration";

}  // namespace

CheckpointKeeper::CheckpointKeeper(KeeperOptions options)
    : options_(std::move(options)), retention_(options_.strategy) {
  if (!options_.storage_path.empty()) {
    if (!on_disk())
      throw Error(ErrorCode::invalid_option,
                  "storage_path needs checkpoints on disk, which are copied there: num_to_keep must not be 0");
    const auto run = options_.directory.parent_path().filename() / options_.directory.filename();
    mirror_ = std::make_unique<storage::CheckpointMirror>(
        storage::open_storage(options_.storage_path), run.string(), [this](const std::string& text) {
          std::lock_guard lock(storage_mutex_);
          if (std::find(storage_errors_.begin(), storage_errors_.end(), text) != storage_errors_.end()) return;
          log_warning("{}", text);
          storage_errors_.push_back(text);
        });
  }
  if (options_.resume) adopt_existing();
}

CheckpointKeeper::~CheckpointKeeper() = default;

fs::path CheckpointKeeper::folder() const { return options_.directory / "checkpoints"; }

// ---- attempts -------------------------------------------------------------------------------------------------------

/// What an earlier program has left: committed ones are taken over, all else goes.
void CheckpointKeeper::adopt_existing() {
  fetch_if_empty();
  for (const auto& place : {folder(), spare_folder()}) {
    sweep(place);
    std::vector<std::string> damaged;
    for (auto& found : scan(place, &damaged)) {
      auto& entry = entries_[found.manifest.id];
      entry.metrics = found.manifest.metrics;
      entry.folder = found.path;
      entry.source.id = found.manifest.id;
      entry.source.iteration = entry.metrics.value(iteration_key, std::int64_t{0});
      entry.source.folder = found.path.string();
    }
    for (const auto& text : damaged) note_error(text);
    // A damaged one stays for people to look at, so its number is taken too.
    std::error_code none;
    for (const auto& child : fs::directory_iterator(place, none))
      next_id_ = std::max(next_id_, checkpoint_id(child.path().filename().string()).value_or(0) + 1);
  }
  if (entries_.empty()) return;
  latest_ = entries_.rbegin()->first;
  pass_over_damaged();
  std::vector<std::uint64_t> ids;
  std::set<std::string> names;
  for (const auto& [id, entry] : entries_) {
    ids.push_back(id);
    names.insert(checkpoint_name(id));
  }
  if (mirror_) mirror_->adopt(std::move(names));
  for (auto id : ids) rank_and_evict(id);
  // With another strategy, one that was only the latest may be among the best.
  for (auto id : retention_.kept())
    if (entries_.at(id).folder.parent_path() == spare_folder()) try_to_move(folder(), id);
  std::error_code ignored;
  fs::remove(spare_folder(), ignored);  // if nothing is left in it
}

void CheckpointKeeper::fetch_if_empty() {
  if (!mirror_ || !scan(folder()).empty() || !scan(spare_folder()).empty()) return;
  sweep(folder());  // what was not finished must not be in the way
  const auto fetched = mirror_->fetch_latest(folder());
  // The names of those that were not whole are taken, too: nothing in storage is overwritten.
  if (fetched) next_id_ = std::max(next_id_, checkpoint_id(fetched->newest).value_or(0) + 1);
}

CheckpointSetup CheckpointKeeper::begin_attempt(std::uint64_t generation) {
  std::lock_guard lock(mutex_);
  forget_parts();
  if (is_ours()) {
    release_start();
    try_to_sweep();  // of attempts that did not get that far
  }
  generation_ = generation;
  first_id_ = next_id_;
  next_number_ = 1;
  pass_over_damaged();
  start_ = latest_;
  CheckpointSetup setup{generation, first_id_, on_disk() ? folder().string() : std::string(), {}, next_results()};
  setup.start = latest_ ? entries_.at(*latest_).source : start_source();
  return setup;
}

/// What an attempt that failed has returned is of no use. A name is not used twice: ranks left behind may still write.
std::string CheckpointKeeper::next_results() {
  if (!on_disk()) return {};
  std::error_code ignored;
  if (attempts_ > 0) fs::remove_all(results_, ignored);
  do {
    results_ = options_.directory / (++attempts_ == 1 ? "results" : fmt::format("results_{}", attempts_));
  } while (fs::exists(results_, ignored));
  return results_.string();
}

/// One that does not verify is not where the ranks go on: the one before it is.
void CheckpointKeeper::pass_over_damaged() {
  while (latest_ && !entries_.at(*latest_).folder.empty()) {
    try {
      return CheckpointFolder::open(entries_.at(*latest_).folder)->verify();
    } catch (const std::exception& error) {
      note_error(fmt::format("checkpoint {} is passed over: {}", *latest_, error.what()));
    }
    retention_.forget(*latest_);
    unranked_.erase(*latest_);
    damaged_.insert(*latest_);
    entries_.erase(*latest_);
    latest_ = entries_.empty() ? std::nullopt : std::optional(entries_.rbegin()->first);
  }
}

CheckpointSource CheckpointKeeper::start_source() {
  CheckpointSource source;
  if (!options_.start) return source;
  if (const auto path = options_.start->path(); !path.empty()) {
    source.folder = path.string();
  } else if (options_.start->bytes() <= small_checkpoint_bytes) {
    source.bytes = encode(*options_.start);
  } else {
    if (!start_memory_) start_memory_.emplace(*options_.start, 0, 0);
    source.files = {start_memory_->path()};
  }
  return source;
}

void CheckpointKeeper::close() {
  {
    std::lock_guard lock(mutex_);
    forget_parts();
    generation_ = 0;  // nothing more is accepted
    if (!is_ours()) return;
    release_start();
    try_to_sweep();
    mirror();  // tries again what has failed
  }
  if (mirror_) mirror_->finish();
}

void CheckpointKeeper::forget_parts() {
  pending_.clear();
  mixed_.clear();
  given_up_.clear();
}

/// What stays now is in nobody's way: it goes next time.
void CheckpointKeeper::try_to_sweep() {
  try {
    sweep(folder());
  } catch (const std::exception& error) {
    note_error(fmt::format("what was not finished in {} could not be removed: {}", folder().string(), error.what()));
  }
}

std::vector<CheckpointKeeper::Over> CheckpointKeeper::add(SavedPart part) {
  std::lock_guard lock(mutex_);
  if (part.generation != generation_) return {};
  // Who took a lost rank's place makes a save again that was decided before, and waits for the answer.
  if (part.number < next_number_) return {Over{{generation_, part.number, {}, {}}, {}}};
  auto& parts = pending_[part.number];
  if (!parts.empty() && parts.begin()->second.parts != part.parts) mixed_.insert(part.number);
  // A rank that took a lost one's place cannot save what that one has saved already.
  if (part.error.empty() || !parts.contains(part.rank)) parts.insert_or_assign(part.rank, std::move(part));
  return finish_in_order();
}

std::vector<CheckpointKeeper::Over> CheckpointKeeper::give_up_parts(std::uint64_t generation, std::int32_t rank,
                                                                    Saves saves) {
  std::lock_guard lock(mutex_);
  if (generation != generation_) return {};
  auto& known = given_up_[rank];
  std::erase_if(known, [this](const Saves& decided) { return decided.up_to < next_number_; });
  known.push_back(saves);
  return finish_in_order();
}

/// In order: the latest one is the one that was saved last.
std::vector<CheckpointKeeper::Over> CheckpointKeeper::finish_in_order() {
  std::vector<Over> decided;
  for (;;) {
    const auto next = pending_.find(next_number_);
    const bool complete = mixed_.contains(next_number_) ||
                          (next != pending_.end() &&
                           static_cast<std::int32_t>(next->second.size()) >= next->second.begin()->second.parts);
    const auto missing = complete ? std::nullopt : missing_for_good(next_number_);
    if (!complete && !missing) return decided;
    Parts parts = next == pending_.end() ? Parts() : std::move(next->second);
    if (missing) parts[*missing].error = "it was lost, or lost its group, before it had saved";
    decided.push_back(finish(next_number_, parts));
    mixed_.erase(next_number_);
    pending_.erase(next_number_++);
  }
}

/// A rank whose part that save needs, has not got, and does not get.
std::optional<std::int32_t> CheckpointKeeper::missing_for_good(std::uint64_t number) const {
  const auto found = pending_.find(number);
  for (const auto& [rank, ranges] : given_up_) {
    const bool waits = std::none_of(ranges.begin(), ranges.end(), [number](const Saves& saves) {
      return number > saves.after && number <= saves.up_to;
    });
    if (waits || (found != pending_.end() && found->second.contains(rank))) continue;
    // Of a save that nobody has told of yet, only the first rank's part is needed for sure.
    const auto parts = found == pending_.end() ? 1 : found->second.begin()->second.parts;
    if (rank < parts) return rank;
  }
  return std::nullopt;
}

CheckpointKeeper::Over CheckpointKeeper::finish(std::uint64_t number, const Parts& parts) {
  const auto id = first_id_ + number - 1;
  next_id_ = id + 1;
  Over over{{generation_, number, {}, {}}, {}};
  try {
    // Ranks that were ahead of the others when workers were lost or came have saved for a group that is gone.
    if (mixed_.contains(number))
      throw Error(ErrorCode::io, "its parts are of two groups: the number of workers changed while it was saved");
    for (const auto& [rank, part] : parts)
      if (!part.error.empty()) throw Error(ErrorCode::io, fmt::format("rank {}: {}", rank, part.error), rank);
    auto entry = on_disk() ? commit_to_disk(id, parts) : commit_to_memory(parts);
    const auto& first = parts.begin()->second;
    entry.source.id = id;
    entry.source.iteration = first.iteration;
    if (parts.size() == 1) entry.source.bytes = first.bytes;
    entries_[id] = std::move(entry);
  } catch (const std::exception& error) {
    over.result.error = fmt::format("checkpoint {} was not saved: {}", id, error.what());
    note_error(over.result.error);
    over.fatal = options_.why_lost();
    // The other ranks' shards, which nobody will read. If the run has another driver, so may the folder.
    std::error_code ignored;
    if (on_disk() && over.fatal.empty()) fs::remove_all(folder() / checkpoint_name(id), ignored);
    return over;
  }
  // It is safe: what goes wrong from here on is told, and training goes on.
  committed_ += 1;
  try {
    options_.on_commit(generation_, id, entries_.at(id).source.iteration);
  } catch (const std::exception& error) {
    note_error(fmt::format("checkpoint {} is saved, but is not in the run's journal: {}", id, error.what()));
  }
  replace_latest(id);
  over.fatal = rank_and_evict(id);
  over.result.source = entries_.at(id).source;  // now that it lies where it stays
  mirror();
  return over;
}

/// Storage gets what is here.
void CheckpointKeeper::mirror() {
  if (!mirror_) return;
  storage::CheckpointMirror::Wanted wanted;
  for (const auto& [id, entry] : entries_) wanted.emplace(checkpoint_name(id), entry.folder);
  for (auto id : damaged_) wanted.emplace(checkpoint_name(id), fs::path());  // the copy there may be the only good one
  mirror_->want(std::move(wanted));
}

CheckpointKeeper::Entry CheckpointKeeper::commit_to_disk(std::uint64_t id, const Parts& parts) {
  const auto& first = parts.begin()->second;
  Entry entry;
  entry.folder = folder() / checkpoint_name(id);
  entry.source.folder = entry.folder.string();
  Manifest manifest;
  manifest.id = id;
  manifest.generation = generation_;
  manifest.timestamp = std::time(nullptr);
  if (first.metrics.is_object()) manifest.metrics = first.metrics;
  manifest.metrics[iteration_key] = first.iteration;
  make_folder(entry.folder);
  for (const auto& [rank, part] : parts) {
    manifest.has_files |= part.has_files;
    manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    if (part.shard)
      manifest.shards.push_back(*part.shard);
    else if (!part.bytes.empty())
      manifest.shards.push_back(write_shard(entry.folder / shard_name(rank, generation_), decode(part.bytes),
                                            {.rank = rank, .generation = generation_}));
  }
  commit(entry.folder, manifest, [this] {
    if (auto why = options_.why_lost(); !why.empty()) throw Error(ErrorCode::invalid_state, why);
  });
  entry.metrics = std::move(manifest.metrics);
  return entry;
}

CheckpointKeeper::Entry CheckpointKeeper::commit_to_memory(const Parts& parts) {
  Entry entry;
  const auto& first = parts.begin()->second;
  if (first.metrics.is_object()) entry.metrics = first.metrics;
  if (parts.size() == 1 && first.memory.empty()) return entry;  // by value
  for (const auto& [rank, part] : parts) {
    if (part.memory.empty())
      entry.memory.emplace_back(decode(part.bytes), rank, generation_);
    else
      entry.memory.emplace_back(part.memory);
    entry.source.files.push_back(entry.memory.back().path());
  }
  return entry;
}

// ---- which stay -----------------------------------------------------------------------------------------------------

std::string CheckpointKeeper::rank_and_evict(std::uint64_t id) {
  double score = std::numeric_limits<double>::quiet_NaN();
  try {
    if (!retention_.by_age()) score = score_of(entries_.at(id));
  } catch (const std::exception& error) {
    // Nobody knows which is the worse one: it stays where it is, and none goes for it.
    if (on_disk()) unranked_.insert(id);
    const auto why = fmt::format("checkpoint {} is saved, but cannot be ranked: {}", id, error.what());
    note_error(why);
    const auto* known = dynamic_cast<const Error*>(&error);
    return known && known->code() == ErrorCode::invalid_option ? why : std::string();  // not for a failing disk
  }
  for (auto dropped : retention_.add(id, score)) {
    if (dropped != latest_)
      remove(dropped);
    else if (on_disk())
      try_to_move(spare_folder(), dropped);  // not among the best, but where a run that is started again goes on
  }
  return {};
}

/// One that cannot be moved is as safe where it is.
void CheckpointKeeper::try_to_move(const fs::path& parent, std::uint64_t id) {
  try {
    auto& entry = entries_.at(id);
    const auto place = parent / entry.folder.filename();
    make_folder(parent);
    as_io_errors([&] { fs::rename(entry.folder, place); });
    entry.folder = place;  // from here on, whether or not that is durable already
    entry.source.folder = place.string();
    sync_folder(parent);
  } catch (const std::exception& error) {
    note_error(fmt::format("checkpoint {} could not be moved to {}: {}", id, parent.string(), error.what()));
  }
}

double CheckpointKeeper::score_of(const Entry& entry) const {
  const auto& attribute = options_.strategy.checkpoint_score_attribute;
  const auto checkpoint = open(entry);
  Json value;
  if (const auto* item = checkpoint.find(attribute); item && item->is_number())
    value = item->to_json();
  else if (!item && entry.metrics.is_object() && entry.metrics.contains(attribute))
    value = entry.metrics.at(attribute);
  else if (!item)
    throw Error(ErrorCode::invalid_option,
                fmt::format("neither it nor the metrics reported with it have \"{}\" "
                            "(CheckpointStrategy.checkpoint_score_attribute): save it, or rank by another one",
                            attribute));
  if (!value.is_number())
    throw Error(ErrorCode::invalid_option,
                fmt::format("its \"{}\" (CheckpointStrategy.checkpoint_score_attribute) is not a number", attribute));
  return value.get<double>();
}

/// The one before goes if it was kept only for being the latest.
void CheckpointKeeper::replace_latest(std::uint64_t id) {
  const auto before = std::exchange(latest_, id);
  if (!before) return;
  const auto kept = retention_.kept();
  const bool stays = unranked_.contains(*before) || std::find(kept.begin(), kept.end(), *before) != kept.end();
  if (!stays) return remove(*before);
  entries_.at(*before).source.bytes.clear();  // on disk; by value it is needed only as the latest
}

void CheckpointKeeper::release_start() {
  const auto start = std::exchange(start_, std::nullopt);
  if (std::exchange(start_goes_, false)) remove(*start);
}

void CheckpointKeeper::remove(std::uint64_t id) {
  if (id == start_) {
    start_goes_ = true;
    return;
  }
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  try {
    if (!found->second.folder.empty()) remove_checkpoint(found->second.folder);
  } catch (const std::exception& error) {
    note_error(fmt::format("checkpoint {} could not be removed: {}", id, error.what()));
  }
  entries_.erase(found);
}

// ---- for the driver's own threads -----------------------------------------------------------------------------------

Checkpoint CheckpointKeeper::open(const Entry& entry) const { return open_source(entry.source); }

std::optional<Checkpoint> CheckpointKeeper::latest() const {
  std::lock_guard lock(mutex_);
  return latest_ ? open(entries_.at(*latest_)) : options_.start;
}

fs::path CheckpointKeeper::latest_path() const {
  std::lock_guard lock(mutex_);
  return latest_ ? entries_.at(*latest_).folder : fs::path();
}

fs::path CheckpointKeeper::best_path() const {
  std::lock_guard lock(mutex_);
  const auto best = retention_.best();
  return best ? entries_.at(*best).folder : fs::path();
}

std::vector<std::pair<Checkpoint, Json>> CheckpointKeeper::best() const {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<Checkpoint, Json>> kept;
  for (auto id : retention_.kept()) {
    const auto& entry = entries_.at(id);
    auto metrics = entry.metrics;
    if (metrics.is_object()) metrics.erase(iteration_key);
    kept.emplace_back(open(entry), std::move(metrics));
  }
  return kept;
}

std::uint64_t CheckpointKeeper::committed() const {
  std::lock_guard lock(mutex_);
  return committed_;
}

std::vector<std::string> CheckpointKeeper::errors() const {
  std::vector<std::string> all;
  {
    std::lock_guard lock(mutex_);
    all = errors_;
  }
  std::lock_guard lock(storage_mutex_);
  all.insert(all.end(), storage_errors_.begin(), storage_errors_.end());
  return all;
}

void CheckpointKeeper::drop_spare_latest() {
  std::lock_guard lock(mutex_);
  if (!latest_ || entries_.at(*latest_).folder.parent_path() != spare_folder()) return;
  if (unranked_.contains(*latest_)) return;
  remove(*std::exchange(latest_, std::nullopt));
  std::error_code ignored;
  fs::remove(spare_folder(), ignored);
}

void CheckpointKeeper::note_error(const std::string& text) {
  log_warning("{}", text);
  errors_.push_back(text);
}

}  // namespace troupe::detail
