#include "gpu_worker/engine/cpu/blocked/graph_plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cpu/arena.h"
#include "gpu_worker/engine/cpu/blocked/squared_error.h"
#include "training/math/portable_math.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::engine {
namespace {

using training::Graph;

// How many phases, from the first on, run without a barrier between them.
size_t CountJoined(absl::Span<const Phase> phases) {
  size_t count = 1;
  while (count < phases.size() && phases[count].joins) ++count;
  return count;
}

double LabelSmoothing(const Graph& graph) {
  const auto loss = training::As<training::SoftmaxCrossEntropyLoss>(graph.nodes()[graph.loss()].op);
  return loss.has_value() ? loss->label_smoothing : 0;
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

GraphPlan::GraphPlan(const Graph& graph, int64_t total_floats, const PlanOptions& options,
                     const BlockedMath& math)
    : graph_(graph),
      total_floats_(total_floats),
      max_batch_(options.max_batch),
      max_lane_(options.max_lane > 0 ? std::min(options.max_lane, options.max_batch)
                                     : options.max_batch),
      max_lanes_(options.max_lanes),
      max_blocks_(max_lanes_ * CeilDivide(max_lane_, kSideBySide)),
      positions_(graph.value_elements(graph.logits()) / graph.num_classes()),
      target_size_(graph.target_size()),
      label_smoothing_(LabelSmoothing(graph)),
      math_(math) {
  for (int i = 0; i < graph.node_count(); ++i) random_ = random_ || graph.def(i).random;
}

absl::StatusOr<std::unique_ptr<GraphPlan>> GraphPlan::Create(const Graph& graph,
                                                             const std::vector<int64_t>& offsets,
                                                             int64_t total_floats,
                                                             const PlanOptions& options,
                                                             const BlockedMath& math) {
  auto plan = std::unique_ptr<GraphPlan>(new GraphPlan(graph, total_floats, options, math));
  const absl::Status status = plan->Build(offsets, options);
  if (!status.ok()) return status;
  if (options.max_lanes > 1 && plan->one_lane()) {
    PlanOptions one = options;
    one.max_lanes = 1;
    plan = nullptr;
    return Create(graph, offsets, total_floats, one, math);
  }
  return plan;
}

bool GraphPlan::one_lane() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const NodePhases& step) { return step.one_lane; });
}

absl::Status GraphPlan::PlaceAll() {
  program_ = MakeProgram(graph_, FusedPatterns(), ReadsParameterFromWeights);
  const int64_t places = max_blocks_ * kSideBySide;
  std::vector<ArenaBuffer> arena;
  absl::int128 all = 0;  // an upper bound of the memory
  for (const PlannedBuffer& buffer : program_.buffers) {
    const auto bytes =
        absl::int128(4) * (absl::int128(buffer.sample_elements) * places + buffer.fixed_elements);
    all += bytes;
    if (all > std::numeric_limits<int64_t>::max() / 1024) {
      return absl::ResourceExhaustedError(
          absl::StrCat("arena: a tensor of ", buffer.sample_elements, " elements for ", places,
                       " samples, with those before it, does not fit into any memory"));
    }
    arena.push_back({static_cast<int64_t>(bytes), buffer.first, buffer.last});
  }
  info_.arena_bytes = PlaceBuffers(arena);
  absl::StatusOr<AlignedBytes> memory = AllocateAligned(info_.arena_bytes, "arena");
  if (!memory.ok()) return memory.status();
  arena_ = *std::move(memory);
  for (const ArenaBuffer& buffer : arena) {
    buffers_.push_back(reinterpret_cast<float*>(arena_.get() + buffer.offset));
  }
  return absl::OkStatus();
}

NodePlaces GraphPlan::PlacesOf(const ProgramStep& step, const std::vector<int64_t>& offsets) const {
  NodePlaces places;
  places.math = &math_;
  for (size_t k = 0; k < step.inputs.size(); ++k) {
    const int input = step.inputs[k];
    const int of_weights = step.parameters[k];
    places.x.push_back(of_weights >= 0 ? nullptr : buffers_[program_.values[input]]);
    places.of_inputs.push_back(of_weights >= 0 ? offsets[graph_.parameters_of(of_weights)[0]] : -1);
    NodePlaces::Gradient gradient;
    if (step.gradients[k].wanted) {
      gradient = {buffers_[program_.gradients[input]], step.gradients[k].add};
    }
    places.dx.push_back(gradient);
  }
  places.y = buffers_[program_.values[step.output]];
  places.backward = step.backward;
  if (step.backward) places.dy = buffers_[program_.gradients[step.output]];
  for (const int saved : step.saved) places.saved.push_back(buffers_[saved]);
  for (int node = step.first; node <= step.last; ++node) {
    for (const int parameter : graph_.parameters_of(node)) {
      places.parameters.push_back(offsets[parameter]);
    }
  }
  places.max_blocks = max_blocks_;
  places.max_lanes = max_lanes_;
  return places;
}

// "conv1", or "conv1 to pool1".
std::string GraphPlan::NameOf(const ProgramStep& step) const {
  const std::string& first = graph_.nodes()[step.first].name;
  if (step.first == step.last) return first;
  return absl::StrCat(first, " to ", graph_.nodes()[step.last].name);
}

absl::Status GraphPlan::Build(const std::vector<int64_t>& offsets, const PlanOptions& options) {
  absl::Status status = PlaceAll();
  if (!status.ok()) return status;
  int64_t scratch_bytes = 0, shared_bytes = 0;
  size_t most_joined = 1;
  for (const ProgramStep& step : program_.steps) {
    if (step.last == graph_.loss()) break;
    absl::StatusOr<NodePhases> phases =
        MakeStepPhases(graph_, step.first, step.pattern, PlacesOf(step, offsets));
    if (!phases.ok()) {
      return absl::Status(phases.status().code(),
                          absl::StrCat("node ", NameOf(step), ": ", phases.status().message()));
    }
    for (const auto* const list : {&phases->load, &phases->forward, &phases->backward}) {
      for (size_t i = 0; i < list->size(); ++i) {
        scratch_bytes = std::max(scratch_bytes, (*list)[i].scratch_bytes);
        most_joined = std::max(most_joined, CountJoined(absl::MakeConstSpan(*list).subspan(i)));
      }
    }
    shared_bytes = std::max(shared_bytes, phases->shared_bytes);
    info_.weight_bytes += phases->weight_bytes;
    info_.arena_bytes += phases->scratch_bytes;
    info_.kernels.push_back(absl::StrCat(NameOf(step), ": ", phases->kernel, ", ", math_.target));
    steps_.push_back(*std::move(phases));
  }
  const int64_t flat_bytes = total_floats_ * static_cast<int64_t>(sizeof(float));
  absl::StatusOr<AlignedBytes> weights = AllocateAligned(flat_bytes, "weights");
  if (!weights.ok()) return weights.status();
  weights_ = *std::move(weights);
  info_.weight_bytes += flat_bytes;
  for (int t = 0; t < options.threads; ++t) {
    absl::StatusOr<AlignedBytes> scratch = AllocateAligned(scratch_bytes, "scratch");
    if (!scratch.ok()) return scratch.status();
    scratch_.push_back(*std::move(scratch));
    info_.arena_bytes += scratch_bytes;
  }
  absl::StatusOr<AlignedBytes> shared = AllocateAligned(shared_bytes, "shared by threads");
  if (!shared.ok()) return shared.status();
  shared_ = *std::move(shared);
  info_.arena_bytes += shared_bytes;
  pool_ = std::make_unique<ThreadPool>(options.threads);
  shares_ = std::vector<Share>(most_joined * static_cast<size_t>(options.threads));

  sums_.resize(max_blocks_);
  lanes_.reserve(max_lanes_);
  images_of_.resize(max_blocks_);
  labels_.resize(max_blocks_ * kSideBySide);
  if (random_) ids_.resize(max_blocks_ * kSideBySide);
  const auto by_block = [](const BatchRun& run) { return run.blocks; };
  images_ = {0, by_block, [this](const BatchRun&, int64_t block, char*) {
               images_of_[block].bytes != nullptr ? SetByteImages(block) : SetImages(block);
             }};
  loss_ = {0, by_block, [this](const BatchRun&, int64_t block, char*) { RunLoss(block); }};
  info_.block_samples = kSideBySide;
  info_.max_lanes = max_lanes_;
  if (options.time_kernels) SetTimes();
  FindReadyPrefixes(offsets);
  return absl::OkStatus();
}

void GraphPlan::SetTimes() {
  times_.push_back({"input", "layout"});
  for (size_t i = 0; i < steps_.size(); ++i) {
    const ProgramStep& step = program_.steps[i];
    times_.push_back({NameOf(step), steps_[i].kernel, step.first, step.last});
  }
  times_.push_back({graph_.nodes()[graph_.loss()].name, "loss", graph_.loss(), graph_.loss()});
}

void GraphPlan::Lap(size_t kernel, double KernelTime::*part) {
  const double now = Seconds();
  times_[kernel].*part = now - lap_;
  lap_ = now;
}

// Skips the first `elements` numbers of the images.
void GraphPlan::SkipElements(int64_t elements, SampleBatch& batch) {
  if (batch.bytes != nullptr) {
    batch.bytes += elements;
  } else {
    batch.images += elements;
  }
}

void GraphPlan::SetImages(int64_t block) {
  const int64_t elements = graph_.value_elements(0);
  float* const to = buffers_[program_.values[0]] + block * elements * kSideBySide;
  const int64_t there = run_.InBlock(block);
  const float* const from = images_of_[block].images;
  int64_t e = 0;
  for (; there == kSideBySide && e + kSideBySide <= elements; e += kSideBySide) {
    math_.transpose(from + e, elements, to + e * kSideBySide, kSideBySide);
  }
  for (; e < elements; ++e) {
    for (int64_t l = 0; l < kSideBySide; ++l) {
      to[e * kSideBySide + l] = l < there ? from[l * elements + e] : 0.0f;
    }
  }
}

void GraphPlan::SetByteImages(int64_t block) {
  const int64_t elements = graph_.value_elements(0);
  float* const to = buffers_[program_.values[0]] + block * elements * kSideBySide;
  const int64_t there = run_.InBlock(block);
  const SampleBatch& batch = images_of_[block];
  const uint8_t* const from = batch.bytes;
  const int64_t share = elements / batch.byte_tables;
  int64_t e = 0;
  for (int64_t table = 0; table < batch.byte_tables; ++table) {
    const float* const values = batch.byte_values + table * kByteValues;
    const int64_t end = e + share;
    // Reads runs of 16 bytes of each sample, because the samples may lie so that all of them map to
    // the same cache set.
    for (; there == kSideBySide && e + kSideBySide <= end; e += kSideBySide) {
      float square[kSideBySide * kSideBySide];
      for (int64_t l = 0; l < kSideBySide; ++l) {
        const uint8_t* const run = from + l * elements + e;
        for (int64_t i = 0; i < kSideBySide; ++i) square[l * kSideBySide + i] = values[run[i]];
      }
      math_.transpose(square, kSideBySide, to + e * kSideBySide, kSideBySide);
    }
    for (; e < end; ++e) {
      for (int64_t l = 0; l < kSideBySide; ++l) {
        to[e * kSideBySide + l] = l < there ? values[from[l * elements + e]] : 0.0f;
      }
    }
  }
}

void GraphPlan::FindReadyPrefixes(const std::vector<int64_t>& offsets) {
  std::vector<bool> done(offsets.size(), false);
  for (size_t p = 0; p < offsets.size(); ++p) done[p] = graph_.parameters()[p].statistic;
  for (auto step = program_.steps.rbegin(); step != program_.steps.rend(); ++step) {
    if (!step->backward) continue;
    for (int node = step->first; node <= step->last; ++node) {
      for (const int parameter : graph_.parameters_of(node)) done[parameter] = true;
    }
    for (const int node : step->parameters) {
      if (node >= 0) done[graph_.parameters_of(node)[0]] = true;
    }
    int64_t ready = total_floats_;
    for (size_t p = 0; p < offsets.size(); ++p) {
      if (!done[p]) ready = std::min(ready, offsets[p]);
    }
    info_.backward.push_back({graph_.nodes()[step->first].name, ready});
  }
}

absl::Status GraphPlan::CheckBatch(const SampleBatch& batch, bool labels, int64_t most) const {
  if (!weights_loaded_) {
    return absl::FailedPreconditionError("plan: no weights, want LoadWeights first");
  }
  if (batch.count < 1 || batch.count > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.count: ", batch.count, ", want 1 to ", most));
  }
  if (batch.bytes != nullptr && (batch.byte_values == nullptr || batch.byte_tables < 1 ||
                                 graph_.value_elements(0) % batch.byte_tables != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch.byte_tables: ", batch.byte_values == nullptr ? 0 : batch.byte_tables,
        " tables of bytes, want some that share ", graph_.value_elements(0), " elements evenly"));
  }
  return labels ? CheckLabels(batch, graph_.num_classes(), target_size_) : absl::OkStatus();
}

void GraphPlan::RunPhases(absl::Span<const Phase> phases) {
  while (!phases.empty()) {
    const size_t count = CountJoined(phases);
    RunJoined(phases.first(count));
    phases.remove_prefix(count);
  }
}

void GraphPlan::RunJoined(absl::Span<const Phase> phases) {
  int64_t all = 0;
  for (const Phase& phase : phases) all += phase.pieces(run_);
  if (all == 0) return;
  joined_ = phases;
  sharing_ = std::min<int64_t>(pool_->threads(), all);
  for (size_t p = 0; p < phases.size(); ++p) {
    const int64_t pieces = phases[p].pieces(run_);
    for (int64_t i = 0; i < sharing_; ++i) {
      Share& share = shares_[p * sharing_ + i];
      share.next.store(pieces * i / sharing_, std::memory_order_relaxed);
      share.end = pieces * (i + 1) / sharing_;
    }
  }
  pool_->Run(
      static_cast<int>(sharing_),
      [](void* self, int worker) { static_cast<GraphPlan*>(self)->RunShares(worker); }, this);
}

void GraphPlan::RunShares(int worker) {
  for (int64_t i = 0; i < sharing_; ++i) {
    for (size_t p = 0; p < joined_.size(); ++p) {
      Share& share = shares_[p * sharing_ + (worker + i) % sharing_];
      for (;;) {
        const int64_t piece = share.next.fetch_add(1, std::memory_order_relaxed);
        if (piece >= share.end) break;
        joined_[p].run(run_, piece, scratch_[worker].get());
      }
    }
  }
}

absl::Status GraphPlan::LoadWeights(const float* weights) {
  const bool timed = !times_.empty();
  if (timed) lap_ = Seconds();
  std::memcpy(weights_.get(), weights, static_cast<size_t>(total_floats_) * sizeof(float));
  run_ = BatchRun();
  run_.weights = reinterpret_cast<const float*>(weights_.get());
  if (timed) Lap(0, &KernelTime::load_seconds);
  for (size_t i = 0; i < steps_.size(); ++i) {
    RunPhases(steps_[i].load);
    if (timed && !steps_[i].load.empty()) Lap(i + 1, &KernelTime::load_seconds);
  }
  weights_loaded_ = true;
  return absl::OkStatus();
}

void GraphPlan::SetBatch(absl::Span<const SampleBatch> lanes, bool training) {
  run_ = BatchRun();
  lanes_.clear();
  for (const SampleBatch& lane : lanes) {
    const LaneBlocks at = {run_.blocks, CeilDivide(lane.count, kSideBySide), lane.count};
    lanes_.push_back(at);
    if (lane.count == 0) continue;
    for (int64_t i = 0; i < at.count; ++i) {
      const int64_t before = i * kSideBySide * graph_.value_elements(0);
      SampleBatch& of = images_of_[at.first + i];
      of = lane;
      SkipElements(before, of);
      if (lane.targets != nullptr) of.targets = lane.targets + i * kSideBySide * target_size_;
    }
    const int64_t place = at.first * kSideBySide;
    if (lane.labels != nullptr) std::copy_n(lane.labels, lane.count, labels_.data() + place);
    if (random_ && training) std::copy_n(lane.ids, lane.count, ids_.data() + place);
    run_.blocks += at.count;
    run_.samples.count += lane.count;
    run_.samples.seed = lane.seed;
    run_.samples.epoch = lane.epoch;
  }
  run_.lanes = lanes_;
  run_.samples.training = training;
  run_.samples.labels = labels_.data();
  run_.samples.ids = ids_.data();
  run_.shared = reinterpret_cast<float*>(shared_.get());
  run_.weights = reinterpret_cast<const float*>(weights_.get());
}

void GraphPlan::Forward() {
  const bool timed = !times_.empty() && run_.samples.training;
  RunJoined(absl::MakeConstSpan(&images_, 1));
  if (timed) Lap(0, &KernelTime::forward_seconds);
  for (size_t i = 0; i < steps_.size(); ++i) {
    RunPhases(steps_[i].forward);
    if (timed && !steps_[i].forward.empty()) Lap(i + 1, &KernelTime::forward_seconds);
  }
}

const float* GraphPlan::LogitsOf(int64_t block) const {
  const int64_t elements = graph_.value_elements(graph_.logits());
  return buffers_[program_.values[graph_.logits()]] + block * elements * kSideBySide;
}

float* GraphPlan::GradientOf(int64_t block) const {
  const int buffer = program_.gradients[graph_.logits()];
  if (run_.gradient == nullptr || buffer < 0) return nullptr;
  return buffers_[buffer] + block * graph_.value_elements(graph_.logits()) * kSideBySide;
}

void GraphPlan::RunSquaredError(int64_t block) {
  SquaredErrorCall call;
  call.outputs = target_size_;
  call.there = run_.InBlock(block);
  call.outcome = LogitsOf(block);
  call.targets = images_of_[block].targets;
  call.scale = run_.loss_scale;
  call.gradient = GradientOf(block);
  sums_[block] = {SquaredErrors(call), /*correct=*/0};
}

void GraphPlan::RunLoss(int64_t block) {
  if (target_size_ > 0) return RunSquaredError(block);
  LossAtPosition at;
  at.classes = graph_.num_classes();
  at.there = run_.InBlock(block);
  float* const gradient = GradientOf(block);
  double losses[kSideBySide] = {};
  LossSums sums;
  for (int64_t t = 0; t < positions_; ++t) {
    const int64_t first = t * at.classes * kSideBySide;
    at.logits = LogitsOf(block) + first;
    at.gradient = gradient != nullptr ? gradient + first : nullptr;
    SetTargets(block, t, at);
    RunLossAt(at, losses, sums);
  }
  for (int64_t l = 0; l < at.there; ++l) {
    sums.loss += losses[l] / static_cast<double>(positions_);
  }
  sums_[block] = sums;
  if (run_.gradient != nullptr) ClearTokenGradient(block);
}

void GraphPlan::SetTargets(int64_t block, int64_t position, LossAtPosition& at) const {
  at.last = position + 1 == positions_;
  for (int64_t l = 0; l < at.there; ++l) {
    if (at.last) {
      at.targets[l] = run_.samples.labels[block * kSideBySide + l];
      continue;
    }
    const float* const tokens = buffers_[program_.values[graph_.nodes().back().inputs[1]]];
    const float token = tokens[(block * positions_ + position + 1) * kSideBySide + l];
    at.targets[l] = static_cast<double>(training::ClassOfToken(token, at.classes));
  }
}

void GraphPlan::RunLossAt(const LossAtPosition& at, double* losses, LossSums& sums) const {
  SoftmaxRow row;
  math_.softmax_sums(at.classes, at.logits, row);
  const double other = label_smoothing_ / static_cast<double>(at.classes);
  double log_sums[kSideBySide] = {};
  for (int64_t l = 0; l < at.there; ++l) {
    const auto logit = [&](int64_t k) {
      return static_cast<double>(at.logits[k * kSideBySide + l]);
    };
    log_sums[l] = training::PortableLog(row.sum[l]) + row.largest[l];
    if (at.last) sums.correct += row.best[l] == at.targets[l];
    if (at.targets[l] < 0) continue;  // does not count
    double loss =
        (1 - label_smoothing_) * (log_sums[l] - logit(static_cast<int64_t>(at.targets[l])));
    for (int64_t k = 0; label_smoothing_ > 0 && k < at.classes; ++k) {
      loss += other * (log_sums[l] - logit(k));
    }
    losses[l] += row.best[l] < 0 ? std::numeric_limits<double>::quiet_NaN() : loss;
  }
  if (at.gradient == nullptr) return;
  SoftmaxGradientCall call;
  call.classes = at.classes;
  call.logits = at.logits;
  call.labels = at.targets;
  call.log_sums = log_sums;
  call.others = other;
  call.own = 1 - label_smoothing_;
  call.scale = run_.loss_scale / static_cast<double>(positions_);
  call.gradient = at.gradient;
  math_.softmax_gradient(call);
  for (int64_t l = 0; l < kSideBySide; ++l) {
    if (l < at.there && at.targets[l] >= 0) continue;
    for (int64_t k = 0; k < at.classes; ++k) at.gradient[k * kSideBySide + l] = 0;
  }
}

// Another node that computes the tokens gets a gradient of zeros.
void GraphPlan::ClearTokenGradient(int64_t block) {
  const ProgramStep& loss = program_.steps.back();
  if (loss.inputs.size() < 2 || !loss.gradients[1].wanted || loss.gradients[1].add) return;
  const int64_t size = positions_ * kSideBySide;
  std::fill_n(buffers_[program_.gradients[loss.inputs[1]]] + block * size, size, 0.0f);
}

void GraphPlan::AddSums(const LaneBlocks& lane, LaneResult& result) const {
  result.samples += lane.samples;
  for (int64_t block = lane.first; block < lane.first + lane.count; ++block) {
    result.loss_sum += sums_[block].loss;
    result.correct += sums_[block].correct;
  }
}

template <typename Visit>
void GraphPlan::ForwardInParts(const SampleBatch& batch, Visit visit) {
  const int64_t most = max_blocks_ * kSideBySide;
  for (int64_t first = 0; first < batch.count; first += most) {
    SampleBatch part = batch;
    SkipElements(first * graph_.value_elements(0), part);
    if (part.labels != nullptr) part.labels += first;
    if (part.targets != nullptr) part.targets += first * target_size_;
    part.count = std::min(most, batch.count - first);
    SetBatch({&part, 1}, /*training=*/false);
    Forward();
    visit(first);
  }
}

absl::StatusOr<LaneResult> GraphPlan::ComputeLane(const SampleBatch& batch, double loss_scale,
                                                  float* gradient) {
  LaneResult result;
  const absl::Status status = ComputeLanes({&batch, 1}, loss_scale, gradient, {&result, 1});
  if (!status.ok()) return status;
  return result;
}

absl::Status GraphPlan::ComputeLanes(absl::Span<const SampleBatch> lanes, double loss_scale,
                                     float* gradient, absl::Span<LaneResult> results) {
  absl::Status status = CheckLanes(lanes, results, max_lanes_);
  for (const SampleBatch& lane : lanes) {
    if (status.ok() && (lanes.size() == 1 || lane.count != 0)) {
      status = CheckBatch(lane, /*labels=*/true, max_lane_);
      if (status.ok() && random_) status = CheckIds(lane, graph_.name());
    }
  }
  if (!status.ok()) return status;
  const bool timed = !times_.empty();
  const double begin = lap_ = Seconds();
  SetBatch(lanes, /*training=*/true);
  run_.loss_scale = loss_scale;
  run_.gradient = gradient;
  std::memset(gradient, 0, static_cast<size_t>(total_floats_) * sizeof(float));
  Forward();
  RunJoined(absl::MakeConstSpan(&loss_, 1));
  const double forward_end = Seconds();
  if (timed) Lap(steps_.size() + 1, &KernelTime::forward_seconds);
  for (size_t i = steps_.size(); i-- > 0;) {
    RunPhases(steps_[i].backward);
    if (timed && !steps_[i].backward.empty()) Lap(i + 1, &KernelTime::backward_seconds);
  }
  const double whole = Seconds() - begin;
  for (size_t i = 0; i < lanes.size(); ++i) {
    results[i] = LaneResult();
    AddSums(lanes_[i], results[i]);
    if (whole > 0) results[i].forward_share = (forward_end - begin) / whole;
  }
  return absl::OkStatus();
}

absl::StatusOr<LaneResult> GraphPlan::Evaluate(const SampleBatch& batch) {
  const absl::Status status = CheckBatch(batch, /*labels=*/true, max_batch_);
  if (!status.ok()) return status;
  LaneResult result;
  ForwardInParts(batch, [&](int64_t) {
    RunJoined(absl::MakeConstSpan(&loss_, 1));
    AddSums(lanes_[0], result);
  });
  return result;
}

absl::Status GraphPlan::Predict(const SampleBatch& batch, float* logits) {
  const absl::Status status = CheckBatch(batch, /*labels=*/false, max_batch_);
  if (!status.ok()) return status;
  const int64_t classes = graph_.num_classes();
  const int64_t elements = graph_.value_elements(graph_.logits());
  const float* const from =
      buffers_[program_.values[graph_.logits()]] + graph_.answer_offset() * kSideBySide;
  ForwardInParts(batch, [&](int64_t first) {
    for (int64_t n = 0; n < run_.samples.count; ++n) {
      const float* const block = from + n / kSideBySide * elements * kSideBySide + n % kSideBySide;
      float* const to = logits + (first + n) * classes;
      for (int64_t k = 0; k < classes; ++k) to[k] = block[k * kSideBySide];
    }
  });
  return absl::OkStatus();
}

}  // namespace capstan::engine
