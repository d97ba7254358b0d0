// Device: where a model computes; Plan: a model compiled for a device. The one interface of all
// back ends.
//
// A plan computes the gradient of one lane, or the sum of those of an aligned block of lanes: it knows
// no step and no service. It is compiled once per (graph, layout, options); after the first call of each
// kind a step allocates nothing of ours.
//
// Numbers: float32. The flat vectors of weights and gradients have the places of
// training::FlatLayout and the canonical layouts of training::Graph; what a device prefers inside
// is its own business. Infinities and NaNs are data: they come out in loss and gradient and are
// never an error. Equal bits (rule R5): on CPUs result and gradient are a function of (graph,
// weights, batch, loss_scale) alone: not of threads, max_batch, earlier calls or the instruction set.
//
// At the places of a running statistic the gradient has the batch's own statistic, times its samples and
// loss_scale (rule R3).
//
// Threads: a Device is thread-safe. Calls on one Plan must not overlap; different plans are
// independent.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_DEVICE_DEVICE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_DEVICE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"
#include "training/graph/graph.h"

namespace capstan::engine {

inline constexpr int64_t kByteValues = 256;  // that a byte can have

// Samples of one lane or evaluation block, in host memory. Borrowed for the call; any alignment that the types need.
struct SampleBatch {
  const float* images = nullptr;    // [count, input shape of the graph], row-major: NCHW
  const int32_t* labels = nullptr;  // [count], each of [0, classes)
  // 1 to PlanOptions::max_lane, in evaluation to max_batch; 0: a lane of several that has no samples.
  int64_t count = 0;
  // [count], places of Plan::KeepImages: these instead of images, which are not read then.
  const int32_t* kept = nullptr;
  // What random numbers are counted by (rule R4). Read by ComputeLane alone, of a graph that draws.
  const int64_t* ids = nullptr;  // [count], places in the data set of the job, each of [0, 2^48)
  uint64_t seed = 0;             // of the job
  uint32_t epoch = 0;
  // As images, a byte for each number: these instead of images, for a plan that takes bytes. A byte b stands for
  // byte_values[t][b]; the tables t share the input's elements evenly, in their order: one for all, or one for each
  // channel.
  const uint8_t* bytes = nullptr;
  const float* byte_values = nullptr;  // [byte_tables, 256]
  int64_t byte_tables = 0;             // >= 1, divides the elements
};

// Sums over the samples of a lane.
struct LaneResult {
  int64_t samples = 0;
  double loss_sum = 0;  // cross-entropy in nats, neither scaled nor averaged
  // Samples whose largest logit is the label's; the first of equal ones counts, a row with a NaN
  // never does.
  int64_t correct = 0;
  // Part of the time of ComputeLane that went into the forward pass and the loss, 0 to 1; -1: the
  // device does not tell the two apart. No part of the result.
  double forward_share = -1;
};

// The factors of multiplications. Weights, gradients, sums and the loss are float32 in all of them.
enum class Precision {
  kFp32 = 0,
  kTf32 = 1,  // factors rounded to 10 bits of fraction
  kBf16 = 2,  // activations and copies of the weights in bfloat16
  kFp16 = 3,
};

inline const char* PrecisionName(Precision precision) {
  static constexpr const char* kNames[] = {"fp32", "tf32", "bf16", "fp16"};
  return kNames[static_cast<int>(precision)];
}

inline constexpr int64_t kMostLanesAtOnce = 4096;

struct PlanOptions {
  int64_t max_batch = 1;      // samples of the largest lane or evaluation block
  int64_t max_lane = 0;       // samples of the largest lane; 0: max_batch
  int64_t max_lanes = 1;      // that ComputeLanes is given at once, 1 to kMostLanesAtOnce
  int threads = 1;            // CPU threads, the caller's among them; 1 to 1024
  bool deterministic = true;  // kernels by fixed rules; false permits a device to time them
  // A device that does not carry it out answers Compile with Unimplemented.
  Precision precision = Precision::kFp32;
};

// A step of the backward pass.
struct BackwardStage {
  std::string node;
  // Once the stage is done, [0, ready_floats) of the gradient is final: a multiple of 16, never
  // falling.
  int64_t ready_floats = 0;
};

// What Compile decided.
struct PlanInfo {
  int64_t arena_bytes = 0;     // activations, gradients by them and scratch, of all threads
  int64_t weight_bytes = 0;    // the plan's copies of the weights, in the layouts of its kernels
  int64_t gradient_bytes = 0;  // gradients of blocks that wait to be added
  int64_t block_samples = 0;   // samples that are computed at a time; 0: the whole lane
  int64_t max_lanes = 1;       // what ComputeLanes takes: as wanted, or 1
  std::vector<BackwardStage> backward;  // in the order of execution: the last layer first
  std::vector<std::string> kernels;     // "conv1 to pool1: direct, with pooling, avx512", for logs
  int64_t planned_bytes() const { return arena_bytes + weight_bytes + gradient_bytes; }
};

class Plan {
 public:
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Takes the weights for the calls that follow: copies them into the layouts of the kernels. Once
  // per version of the weights, not per lane. `weights` is the flat vector, layout.total_floats()
  // long, and may be changed or freed after the return.
  virtual absl::Status LoadWeights(const float* weights) = 0;

  // Forward, loss and backward of a lane. Writes all layout.total_floats() of `gradient`, zeros
  // between the tensors: the gradient of loss_scale * loss_sum. `loss_scale` is 1 / (true samples
  // of the whole step), over all lanes (rule R2), times the dynamic scale where there is one.
  // FailedPrecondition: no LoadWeights yet. InvalidArgument: bytes that the plan does not take, or
  // tables that do not fit the input; count out of range, a label out of
  // [0, classes), or, where the graph draws random numbers, no ids or one out of its range (the
  // message has its place); `gradient` is then as it was.
  virtual absl::StatusOr<LaneResult> ComputeLane(const SampleBatch& batch, double loss_scale,
                                                 float* gradient) = 0;

  // The lanes of an aligned block of the tree over the lanes (rule R1), those behind the last one left out:
  // `gradient` gets the bits that ComputeLane of each lane and the sums of the tree would give. results[i] is
  // that of lanes[i], of samples 0 where that has none. seed and epoch are the same in all. Errors as
  // ComputeLane; InvalidArgument, too: no lane has samples, results of another number, or more lanes than
  // info().max_lanes.
  virtual absl::Status ComputeLanes(absl::Span<const SampleBatch> lanes, double loss_scale,
                                    float* gradient, absl::Span<LaneResult> results);

  // Forward and loss alone; nothing is drawn, no ids are wanted. Errors as ComputeLane otherwise; count
  // is 1 to max_batch, be it more than a lane has.
  virtual absl::StatusOr<LaneResult> Evaluate(const SampleBatch& batch) = 0;

  // Writes the input of the loss, [count, classes]; batch.labels is not read. Errors as
  // ComputeLane.
  virtual absl::Status Predict(const SampleBatch& batch, float* logits) = 0;

  // Whether a batch may bring bytes. Results have the bits of the images that they stand for.
  virtual bool takes_bytes() const { return false; }

  // Keeps images [first, first + count) of `whole` on the device, so that a batch names places
  // instead of bringing images; results have the same bits. In rising order, first == 0 first; the
  // images may be used once all are there. Unimplemented: the device has no memory of its own, so
  // nothing is gained. ResourceExhausted: they do not fit; nothing is kept, the plan is well.
  virtual absl::Status KeepImages(const float* images, int64_t first, int64_t count, int64_t whole);

  virtual const PlanInfo& info() const = 0;

 protected:
  Plan() = default;
  static absl::Status CheckLanes(absl::Span<const SampleBatch> lanes,
                                 absl::Span<const LaneResult> results, int64_t max_lanes);
};

class PlanGroup;  // group.h
struct GroupOptions;

inline absl::Status Plan::KeepImages(const float*, int64_t, int64_t, int64_t) {
  return absl::UnimplementedError("images lie in the device's memory already");
}

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // "cpu", "cpu:1", "cuda:0".
  virtual const std::string& name() const = 0;
  // Libraries and instruction set, for logs: "own kernels, avx512".
  virtual const std::string& description() const = 0;
  // Of a card, the same in every process of its host: "GPU-1f2e..."; empty: nothing is known.
  virtual std::string uuid() const { return ""; }

  // `layout` holds the parameters of `graph` under their names; both are read during the call
  // alone. InvalidArgument: layout and graph disagree, or an option out of its range.
  // Unimplemented: an operator or attribute that the device does not carry out, by name.
  // ResourceExhausted: the device's memory is not there. Aborted, of a device with memory of its
  // own, and of every call: the host's is not there.
  virtual absl::StatusOr<std::unique_ptr<Plan>> Compile(const training::Graph& graph,
                                                        const training::FlatLayout& layout,
                                                        const PlanOptions& options) = 0;

  // Joins plans that devices of this kind compiled alike; they outlive the group. InvalidArgument: a
  // plan of another kind of device, or of another model. Unimplemented: a device whose lanes are
  // summed on the host. Unavailable: a library is missing. ResourceExhausted: as Compile.
  virtual absl::StatusOr<std::unique_ptr<PlanGroup>> MakeGroup(const std::vector<Plan*>& plans,
                                                               const GroupOptions& options);

 protected:
  Device() = default;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_DEVICE_DEVICE_H_
