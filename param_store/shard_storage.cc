#include "param_store/shard_storage.h"

#include <algorithm>
#include <utility>

#include "services/check/check.h"
#include "training/codec/crc32c.h"
#include "training/fold/add.h"

namespace capstan::param_store {

using training::ChunkRun;
using training::ChunkSum;
using training::FlatRange;

ShardStorage::ShardStorage(const training::FlatLayout& layout, const training::SamplePlan& samples,
                           const training::Optimizer& optimizer)
    : layout_(layout), samples_(samples), optimizer_(optimizer) {
  CAPSTAN_CHECK(optimizer.state_floats_per_weight() <= 1);
}

std::shared_ptr<client::FloatBuffer> ShardStorage::MakeBuffer(const training::FlatLayout& layout,
                                                              const ChunkRun& run) {
  return std::make_shared<client::FloatBuffer>(training::RangeOf(layout, run).size);
}

void ShardStorage::Begin(const ChunkRun& run, int64_t version,
                         std::shared_ptr<client::FloatBuffer> weights, std::vector<float> state) {
  const FlatRange range = training::RangeOf(layout_, run);
  CAPSTAN_CHECK(weights->size() == range.size);
  run_ = run;
  first_float_ = range.offset;
  pool_.emplace(range.size);
  previous_ = {};
  sums_.clear();
  auto crcs = std::make_shared<std::vector<uint32_t>>(run.chunk_count);
  const training::LaneTree tree = samples_.StepTree(version);
  for (int32_t i = 0; i < run.chunk_count; ++i) {
    const FlatRange local = LocalRange(i);
    sums_.emplace_back(tree, static_cast<size_t>(local.size));
    (*crcs)[i] = training::Crc32c(weights->data() + local.offset, local.size * sizeof(float));
  }
  const size_t state_floats = optimizer_.state_floats_per_weight() * range.size;
  CAPSTAN_CHECK(state.empty() || state.size() == state_floats);
  state_ = std::move(state);
  state_.resize(state_floats, 0.0f);
  base_version_ = version;
  current_ = {version, std::move(weights), std::move(crcs)};
}

FlatRange ShardStorage::LocalRange(int32_t index) const {
  FlatRange range = layout_.ChunkRange(run_.first_chunk + index);
  range.offset -= first_float_;
  return range;
}

std::vector<bool> ShardStorage::Verify(int32_t first_chunk, absl::Span<const uint32_t> crcs,
                                       wire::Pieces payload) const {
  std::vector<bool> intact(crcs.size());
  wire::PayloadReader reader(payload);
  std::vector<absl::string_view> chunk;
  for (size_t i = 0; i < crcs.size(); ++i) {
    const int64_t floats = layout_.ChunkRange(first_chunk + static_cast<int32_t>(i)).size;
    CAPSTAN_CHECK(reader.Next(floats * sizeof(float), &chunk));
    intact[i] = wire::Crc32cOf(chunk) == crcs[i];
  }
  return intact;
}

void ShardStorage::Fold(const core::FoldFrame& effect, wire::Pieces payload) {
  wire::PayloadReader reader(payload);
  std::vector<absl::string_view> chunk;
  for (size_t i = 0; i < effect.outcomes.size(); ++i) {
    ChunkSum& sum = sums_[effect.first_chunk - run_.first_chunk + i];
    CAPSTAN_CHECK(reader.Next(sum.size() * sizeof(float), &chunk));
    if (effect.outcomes[i] != core::FrameOutcome::kStored) continue;
    const size_t held = sum.held_count();
    const auto outcome = sum.AddBytes(effect.node, chunk);
    CAPSTAN_CHECK(outcome.ok() && *outcome == training::Outcome::kStored);
    // Values are copied where no sibling was held, and added in place otherwise.
    if (sum.held_count() > held || held == 0) wire::CountCopied(sum.size() * sizeof(float));
  }
}

bool ShardStorage::RootsFinite() const {
  return std::all_of(sums_.begin(), sums_.end(),
                     [](const ChunkSum& sum) { return training::AllFinite(sum.Root()); });
}

void ShardStorage::Apply(const training::Decision& decision) {
  CAPSTAN_CHECK(decision.step == current_.version);
  previous_ = current_;
  ++current_.version;
  if (decision.apply) {
    std::shared_ptr<client::FloatBuffer> next = pool_->Lend();
    auto crcs = std::make_shared<std::vector<uint32_t>>(run_.chunk_count);
    for (int32_t i = 0; i < run_.chunk_count; ++i) {
      const FlatRange range = LocalRange(i);
      const absl::Span<float> root = sums_[i].MutableRoot();
      if (decision.clip_scale != 1) {
        for (float& value : root) value *= static_cast<float>(decision.clip_scale);
      }
      float* const state = state_.empty() ? nullptr : state_.data() + range.offset;
      float* const out = next->data() + range.offset;
      optimizer_.Apply(out, previous_.floats->data() + range.offset, root.data(), state,
                       root.size(), decision.learning_rate);
      (*crcs)[i] = training::Crc32c(out, root.size() * sizeof(float));
    }
    current_.floats = std::move(next);
    current_.crcs = std::move(crcs);
  }
  const training::LaneTree tree = samples_.StepTree(current_.version);
  for (ChunkSum& sum : sums_) sum.Reset(tree);
}

void ShardStorage::Retire(int64_t version) {
  if (previous_.version == version) previous_ = {};
}

ShardSnapshot ShardStorage::Snapshot() const {
  ShardSnapshot snapshot;
  snapshot.run = run_;
  snapshot.weights = current_;
  snapshot.state = state_;
  return snapshot;
}

ShardStorage::Bytes ShardStorage::ResidentBytes() const {
  Bytes bytes;
  if (current_.floats == nullptr) return bytes;
  bytes.weights = weight_buffers() * current_.floats->size() * static_cast<int64_t>(sizeof(float));
  bytes.optimizer = static_cast<int64_t>(state_.size() * sizeof(float));
  for (const ChunkSum& sum : sums_) bytes.pending += static_cast<int64_t>(sum.allocated_bytes());
  return bytes;
}

int64_t ShardStorage::weight_buffers() const {
  // The base is not of the pool, and goes with its version.
  return pool_.has_value() ? pool_->allocated() + (current_.version == base_version_ ? 1 : 0) : 0;
}

}  // namespace capstan::param_store
