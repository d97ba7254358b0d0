#include "param_store/shard_storage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "services/check/check.h"
#include "training/codec/crc32c.h"
#include "training/optim/apply.h"
#include "training/optim/trust_rule.h"

namespace capstan::param_store {

constexpr int64_t kFreeBuffers = 1;  // that are kept for the next version

using training::ChunkRun;
using training::ChunkSum;
using training::FlatRange;

ShardStorage::ShardStorage(const training::FlatLayout& layout, const training::Optimizer& optimizer,
                           Options options)
    : layout_(layout),
      optimizer_(optimizer),
      norms_(layout),
      pieces_(training::PiecesFor(optimizer, layout)),
      gradients_(layout, options.format),
      replicas_(options.replicas) {}

std::shared_ptr<exchange::FloatBuffer> ShardStorage::MakeBuffer(const training::FlatLayout& layout,
                                                                const ChunkRun& run) {
  return std::make_shared<exchange::FloatBuffer>(training::RangeOf(layout, run).size);
}

void ShardStorage::Begin(const ChunkRun& run, int64_t version,
                         std::shared_ptr<exchange::FloatBuffer> weights, std::vector<float> state) {
  const FlatRange range = training::RangeOf(layout_, run);
  CAPSTAN_CHECK(weights->size() == range.size);
  run_ = run;
  first_float_ = range.offset;
  pool_.emplace(range.size, kFreeBuffers);
  if (replicas_) sums_pool_.emplace(range.size, kFreeBuffers);
  step_sums_ = {};
  copies_.clear();
  previous_ = held_ = {};
  making_.reset();
  own_.reset();
  own_crcs_.reset();
  sums_.clear();
  auto crcs = std::make_shared<std::vector<uint32_t>>(run.chunk_count);
  for (int32_t i = 0; i < run.chunk_count; ++i) {
    const FlatRange local = LocalRange(i);
    sums_.emplace_back(static_cast<size_t>(local.size));
    (*crcs)[i] = training::Crc32c(weights->data() + local.offset, local.size * sizeof(float));
  }
  const size_t state_floats = optimizer_.state_floats_per_weight() * range.size;
  CAPSTAN_CHECK(state.empty() || state.size() == state_floats);
  state_ = std::move(state);
  state_.resize(state_floats, 0.0f);
  Note(weights, made_);
  current_ = {version, std::move(weights), std::move(crcs)};
}

void ShardStorage::Note(const std::shared_ptr<const exchange::FloatBuffer>& buffer, Made& made) {
  std::erase_if(made, [](const auto& one) { return one.expired(); });
  made.push_back(buffer);
}

FlatRange ShardStorage::LocalRange(int32_t index) const {
  FlatRange range = layout_.ChunkRange(run_.first_chunk + index);
  range.offset -= first_float_;
  return range;
}

std::vector<bool> ShardStorage::Verify(int32_t first_chunk, absl::Span<const uint32_t> crcs,
                                       exchange::wire::Pieces payload) {
  std::vector<bool> intact(crcs.size());
  exchange::wire::PayloadReader reader(payload);
  std::vector<absl::string_view> chunk;
  for (size_t i = 0; i < crcs.size(); ++i) {
    const int32_t number = first_chunk + static_cast<int32_t>(i);
    CAPSTAN_CHECK(reader.Next(gradients_.ChunkRange(number).size * sizeof(float), &chunk));
    intact[i] = exchange::wire::Crc32cOf(chunk) == crcs[i];
    if (intact[i] && gradients_.FormatOf(number).can_be_malformed()) {
      intact[i] = training::IsWellFormed(gradients_.FormatOf(number), Words(chunk),
                                         layout_.ChunkRange(number).size);
    }
  }
  return intact;
}

absl::Span<const float> ShardStorage::Words(exchange::wire::Pieces encoded) {
  words_.resize(exchange::wire::TotalBytes(encoded) / sizeof(float));
  char* to = reinterpret_cast<char*>(words_.data());
  for (const absl::string_view piece : encoded) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  return words_;
}

exchange::wire::Pieces ShardStorage::Floats(int32_t index, exchange::wire::Pieces encoded) {
  const training::GradientFormat& format = gradients_.FormatOf(run_.first_chunk + index);
  if (format.encoding == training::GradientEncoding::kNone) return encoded;
  decoded_.resize(sums_[index].size());
  training::Decode(format, Words(encoded), absl::MakeSpan(decoded_));
  if (format.fills_padding()) {
    training::ClearPadding(gradients_.Padding(run_.first_chunk + index), absl::MakeSpan(decoded_));
  }
  decoded_bytes_ = absl::string_view(reinterpret_cast<const char*>(decoded_.data()),
                                     decoded_.size() * sizeof(float));
  return absl::MakeConstSpan(&decoded_bytes_, 1);
}

void ShardStorage::Fold(const exchange::shard::FoldFrame& effect, exchange::wire::Pieces payload) {
  exchange::wire::PayloadReader reader(payload);
  std::vector<absl::string_view> chunk;
  for (size_t i = 0; i < effect.commands.size(); ++i) {
    const training::FoldCommands& commands = effect.commands[i];
    const auto index = static_cast<int32_t>(effect.first_chunk - run_.first_chunk + i);
    ChunkSum& sum = sums_[index];
    CAPSTAN_CHECK(
        reader.Next(gradients_.ChunkRange(run_.first_chunk + index).size * sizeof(float), &chunk));
    if (commands.empty()) continue;
    sum.Do(commands, Floats(index, chunk));
    if (commands[0].kind == training::FoldCommand::Kind::kTake) {
      exchange::wire::CountCopied(sum.size() * sizeof(float));
    }
  }
}

void ShardStorage::MakeOwn() {
  if (own_ != nullptr) return;
  own_ = pool_->Lend();
  Note(own_, made_);
  const absl::Span<const float> from = current_.floats->span();
  std::copy(from.begin(), from.end(), own_->data());
  own_crcs_ = std::make_shared<std::vector<uint32_t>>(*current_.crcs);
  current_.floats = own_;
  current_.crcs = own_crcs_;
}

void ShardStorage::ApplyFrame(const exchange::shard::ApplyFrame& effect,
                              exchange::wire::Pieces payload) {
  MakeOwn();
  exchange::wire::PayloadReader reader(payload);
  std::vector<absl::string_view> chunk;
  for (size_t i = 0; i < effect.updates.size(); ++i) {
    const auto index = static_cast<int32_t>(effect.first_chunk - run_.first_chunk + i);
    ChunkSum& gradient = sums_[index];
    CAPSTAN_CHECK(
        reader.Next(gradients_.ChunkRange(run_.first_chunk + index).size * sizeof(float), &chunk));
    if (effect.updates[i] < 0) continue;
    gradient.Do({{training::FoldCommand::Kind::kTake, 0}}, Floats(index, chunk));
    exchange::wire::CountCopied(gradient.size() * sizeof(float));
    const FlatRange range = LocalRange(index);
    float* const weights = own_->data() + range.offset;
    training::ApplyVersion(
        layout_, layout_.ChunkRange(run_.first_chunk + index), optimizer_,
        {.learning_rate = effect.learning_rate, .applied_steps = effect.updates[i]},
        Vectors(index, *own_, weights));
    (*own_crcs_)[index] = training::Crc32c(weights, range.size * sizeof(float));
    gradient.Reset();
  }
}

training::VersionVectors ShardStorage::Vectors(int32_t index, const exchange::FloatBuffer& weights,
                                               float* out) {
  const int64_t offset = LocalRange(index).offset;
  const int states = optimizer_.state_floats_per_weight();
  return {.out = out,
          .in = weights.data() + offset,
          .sum = sums_[index].Last().data(),
          .state = state_.empty() ? nullptr : state_.data() + offset * states};
}

training::RootReport ShardStorage::CheckRoots(const exchange::shard::CheckRoots& effect) {
  training::RootReport report =
      training::ReportRoots(layout_, run_, effect.norms ? &norms_ : nullptr,
                            [this](int32_t i) { return sums_[i].Last(); });
  if (pieces_ == nullptr || !report.finite) return report;
  const training::VersionUpdate update{.gradient_scale = effect.gradient_scale,
                                       .applied_steps = effect.applied_steps};
  for (int32_t i = 0; i < run_.chunk_count; ++i) {
    training::MeasureChunk(layout_, *pieces_, run_.first_chunk + i, optimizer_, update,
                           Vectors(i, *current_.floats, nullptr), &report.pieces);
  }
  return report;
}

void ShardStorage::BeginVersion(const training::Decision& decision, int64_t held_version) {
  CAPSTAN_CHECK(decision.step == current_.version && !making_.has_value());
  if (held_version == current_.version) {
    held_ = current_;
  } else if (held_version != held_.version) {
    held_ = {};
  }
  previous_ = current_;
  ++current_.version;
  if (replicas_) step_sums_ = {.version = current_.version};
  if (!decision.apply) {
    for (ChunkSum& sum : sums_) sum.Reset();
    return;
  }
  VersionUnderWay& making = making_.emplace();
  making.update = {.learning_rate = decision.learning_rate,
                   .gradient_scale = decision.gradient_scale,
                   .clip_factor = decision.clip_factor,
                   .applied_steps = decision.applied_steps};
  if (pieces_ != nullptr) {
    making.trust_ratios =
        training::TrustRatios(layout_, optimizer_, making.update, decision.tensor_norms);
    making.update.trust_ratios = making.trust_ratios;
  }
  if (replicas_) {
    step_sums_.update = making.update;
    step_sums_.update.trust_ratios = {};
    step_sums_.trust_ratios = making.trust_ratios;
    step_sums_.floats = sums_pool_->Lend();
    step_sums_.crcs.resize(static_cast<size_t>(run_.chunk_count));
    Note(step_sums_.floats, made_sums_);
  }
  making.floats = pool_->Lend();
  Note(making.floats, made_);
  making.crcs = std::make_shared<std::vector<uint32_t>>(run_.chunk_count);
  making.made.resize(static_cast<size_t>(run_.chunk_count));
  making.missing = run_.chunk_count;
  current_.floats = making.floats;
  current_.crcs = making.crcs;
}

void ShardStorage::MakeChunks(const ChunkRun& run) {
  if (!making_.has_value()) return;
  for (int32_t i = run.first_chunk - run_.first_chunk; i < run.end() - run_.first_chunk; ++i) {
    if (making_->made[i]) continue;
    const FlatRange range = LocalRange(i);
    float* const out = making_->floats->data() + range.offset;
    if (replicas_) KeepSum(i);
    training::ApplyVersion(layout_, layout_.ChunkRange(run_.first_chunk + i), optimizer_,
                           making_->update, Vectors(i, *previous_.floats, out));
    (*making_->crcs)[i] = training::Crc32c(out, range.size * sizeof(float));
    sums_[i].Reset();
    making_->made[i] = true;
    --making_->missing;
  }
  if (making_->missing == 0) making_.reset();
}

// The room of a sum is used again by the next step, while slices of this one may still be in sockets.
void ShardStorage::KeepSum(int32_t index) {
  const FlatRange range = LocalRange(index);
  const absl::Span<const float> sum = sums_[index].Last();
  float* const to = step_sums_.floats->data() + range.offset;
  std::copy(sum.begin(), sum.end(), to);
  step_sums_.crcs[index] = training::Crc32c(to, range.size * sizeof(float));
}

std::shared_ptr<const StateCopy> ShardStorage::CopyState(const ChunkRun& run) {
  std::erase_if(copies_, [](const auto& one) { return one.expired(); });
  for (const std::weak_ptr<const StateCopy>& known : copies_) {
    std::shared_ptr<const StateCopy> shared = known.lock();
    if (shared != nullptr && shared->version == current_.version && shared->run == run) {
      return shared;
    }
  }
  auto copy = std::make_shared<StateCopy>();
  copy->version = current_.version;
  copy->run = run;
  const int64_t each = states();
  copy->floats.reserve(static_cast<size_t>(each * training::RangeOf(layout_, run).size));
  for (int32_t i = run.first_chunk - run_.first_chunk; i < run.end() - run_.first_chunk; ++i) {
    const FlatRange range = LocalRange(i);
    const auto first = state_.begin() + each * range.offset;
    copy->floats.insert(copy->floats.end(), first, first + each * range.size);
    copy->crcs.push_back(
        training::Crc32c(&*first, static_cast<size_t>(each * range.size) * sizeof(float)));
  }
  copies_.push_back(copy);
  return copy;
}

void ShardStorage::Apply(const training::Decision& decision, int64_t held_version) {
  BeginVersion(decision, held_version);
  MakeChunks(run_);
}

void ShardStorage::Retire(int64_t version) {
  if (previous_.version == version) previous_ = {};
}

const VersionWeights* ShardStorage::Find(int64_t version) {
  if (version < 0) return nullptr;
  own_.reset();
  own_crcs_.reset();
  if (current_.version == version) return &current_;
  return held_.version == version ? &held_ : nullptr;
}

int64_t ShardStorage::RenewSums(int64_t version) {
  int64_t wrong = 0;
  for (VersionWeights* const weights : {&current_, &previous_, &held_}) {
    if (version < 0 || weights->version != version) continue;
    auto crcs = std::make_shared<std::vector<uint32_t>>(run_.chunk_count);
    wrong = 0;
    for (int32_t i = 0; i < run_.chunk_count; ++i) {
      const FlatRange local = LocalRange(i);
      (*crcs)[i] =
          training::Crc32c(weights->floats->data() + local.offset, local.size * sizeof(float));
      if ((*crcs)[i] != (*weights->crcs)[i]) ++wrong;
    }
    weights->crcs = std::move(crcs);
  }
  own_.reset();
  own_crcs_.reset();
  return wrong;
}

ShardSnapshot ShardStorage::Snapshot() {
  own_.reset();
  own_crcs_.reset();
  ShardSnapshot snapshot;
  snapshot.run = run_;
  snapshot.weights = current_;
  snapshot.state = state_;
  return snapshot;
}

ShardStorage::Bytes ShardStorage::ResidentBytes(int64_t loading, int64_t snapshots) const {
  Bytes bytes;
  const int64_t floats = training::RangeOf(layout_, run_).size;
  const int64_t state = floats * optimizer_.state_floats_per_weight();
  const auto size = static_cast<int64_t>(sizeof(float));
  bytes.weights =
      (InUse(made_) + FreeIn(pool_) + InUse(made_sums_) + FreeIn(sums_pool_) + loading) * floats *
      size;
  bytes.optimizer = (static_cast<int64_t>(state_.size()) + (loading + snapshots) * state) * size;
  for (const std::weak_ptr<const StateCopy>& one : copies_) {
    if (const auto copy = one.lock(); copy != nullptr) {
      bytes.optimizer += static_cast<int64_t>(copy->floats.size()) * size;
    }
  }
  for (const ChunkSum& sum : sums_) bytes.pending += static_cast<int64_t>(sum.allocated_bytes());
  return bytes;
}

int64_t ShardStorage::InUse(const Made& made) {
  return std::count_if(made.begin(), made.end(), [](const auto& one) { return !one.expired(); });
}

int64_t ShardStorage::FreeIn(const std::optional<exchange::BufferPool>& pool) {
  return pool.has_value() ? pool->allocated() - pool->lent() : 0;
}

int64_t ShardStorage::weight_buffers() const { return InUse(made_) + FreeIn(pool_); }

int64_t ShardStorage::weight_buffers_in_use() const {
  return std::max(InUse(made_), InUse(made_sums_));
}

void ShardStorage::WaitForReturn(absl::Duration timeout) {
  if (pool_.has_value()) pool_->WaitForReturn(timeout);
}

}  // namespace capstan::param_store
