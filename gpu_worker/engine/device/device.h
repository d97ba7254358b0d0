// Device: where a model computes. Plan: a model compiled for a device. The one interface of all
// back ends.
//
// A plan computes the gradient of one lane, or the sum of the gradients of an aligned block of
// lanes. It knows no step and no service. It is compiled once per (graph, layout, options). After
// the first call of each kind, our code allocates nothing in a step.
//
// Numbers: float32. The flat vectors of weights and gradients have the places of
// training::FlatLayout and the canonical layouts of training::Graph. The layouts inside a device
// are its own choice. Infinities and NaNs are data: they appear in loss and gradient and are never
// an error. Equal bits (rule R5): on CPUs result and gradient are a function of (graph, weights,
// batch, loss_scale) alone. They do not depend on threads, max_batch, earlier calls or the
// instruction set.
//
// At the places of a running statistic the gradient contains the batch's own statistic, times its
// samples and loss_scale (rule R3).
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

inline constexpr int64_t kByteValues = 256;  // values that a byte can have

// Samples of one lane or evaluation block, in host memory. Borrowed for the call. Any alignment
// that the types need.
struct SampleBatch {
  const float* images = nullptr;    // [count, input shape of the graph], row-major: NCHW
  const int32_t* labels = nullptr;  // [count], each of [0, classes)
  // 1 to PlanOptions::max_lane, or to max_batch in evaluation. 0: one of several lanes that has no
  // samples.
  int64_t count = 0;
  // [count], places of Plan::KeepImages. If set, images are not read.
  const int32_t* kept = nullptr;
  // What random draws depend on (rule R4). Only read by ComputeLane, for a graph that draws.
  const int64_t* ids = nullptr;  // [count], places in the data set of the job, each of [0, 2^48)
  uint64_t seed = 0;             // of the job
  uint32_t epoch = 0;
  // [count, Graph::target_size()], for a graph whose loss takes numbers. Then labels are not read.
  const float* targets = nullptr;
  // Like images with one byte per number, for a plan that takes bytes. If set, images are not read.
  // A byte b stands for byte_values[t][b]. The tables t share the input's elements evenly, in their
  // order: one table for all, or one for each channel.
  const uint8_t* bytes = nullptr;
  const float* byte_values = nullptr;  // [byte_tables, 256]
  int64_t byte_tables = 0;             // >= 1, divides the elements
};

// Sums over the samples of a lane.
struct LaneResult {
  int64_t samples = 0;
  double loss_sum = 0;  // of the samples, a cross-entropy in nats; neither scaled nor averaged
  // Samples whose largest logit is that of the label. The first of equal logits counts. A row with
  // a NaN is never correct. 0 where targets are numbers.
  int64_t correct = 0;
  // Part of the time of ComputeLane for the forward pass and the loss, 0 to 1; -1: the device does
  // not know. Not part of the result.
  double forward_share = -1;
};

// The precision of the factors of multiplications. Weights, gradients, sums and the loss are always
// float32.
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
  int64_t max_lanes = 1;      // most lanes in a call of ComputeLanes, 1 to kMostLanesAtOnce
  int threads = 1;            // CPU threads, including the caller; 1 to 1024
  bool deterministic = true;  // kernels by fixed rules; false permits a device to time them
  // Compile returns Unimplemented if the device does not support it.
  Precision precision = Precision::kFp32;
  // Measures each kernel (Plan::kernel_times), at the cost of a clock reading per kernel and pass.
  // No result depends on it. Compile returns Unimplemented if the device cannot do it.
  bool time_kernels = false;
};

// Times of a kernel, which computes one node of the graph or a run of nodes.
struct KernelTime {
  std::string name;    // "conv1", or "conv1 to pool1"
  std::string kernel;  // how it is computed: "direct, with pooling"
  // Nodes of the graph. -1: the work in front of all nodes.
  int first = -1, last = -1;
  // By the clock, from the end of the kernel before it. Exactly 0: the kernel has nothing to do.
  double load_seconds = 0;      // in the last LoadWeights
  double forward_seconds = 0;   // in the last ComputeLane or ComputeLanes
  double backward_seconds = 0;  // of the same call; that of the loss is part of its forward pass
};

// A step of the backward pass.
struct BackwardStage {
  std::string node;
  // Once the stage is done, [0, ready_floats) of the gradient is final. A multiple of 16, never
  // falling.
  int64_t ready_floats = 0;
};

// The decisions of Compile.
struct PlanInfo {
  int64_t arena_bytes = 0;     // activations, their gradients and scratch, of all threads
  int64_t weight_bytes = 0;    // the plan's copies of the weights, in the layouts of its kernels
  int64_t gradient_bytes = 0;  // gradients of blocks that wait to be added
  int64_t block_samples = 0;   // samples computed at a time; 0: the whole lane
  int64_t max_lanes = 1;       // most lanes for ComputeLanes: as requested, or 1
  std::vector<BackwardStage> backward;  // in the order of execution: the last layer first
  std::vector<std::string> kernels;     // "conv1 to pool1: direct, with pooling, avx512", for logs
  int64_t planned_bytes() const { return arena_bytes + weight_bytes + gradient_bytes; }
};

class Plan {
 public:
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Sets the weights for the following calls and copies them into the layouts of the kernels. Call
  // it once per version of the weights, not per lane. `weights` is the flat vector,
  // layout.total_floats() long, and may be changed or freed after the return.
  virtual absl::Status LoadWeights(const float* weights) = 0;

  // Forward, loss and backward of a lane. Writes all layout.total_floats() of `gradient`, with
  // zeros between the tensors: the gradient of loss_scale * loss_sum. `loss_scale` is 1 / (true
  // samples of the whole step), over all lanes (rule R2), times the dynamic scale if there is one.
  // FailedPrecondition: LoadWeights was not called. InvalidArgument: bytes that the plan does not
  // take, tables that do not fit the input, a count out of range, a label outside [0, classes),
  // missing targets where the loss takes numbers, or, if the graph draws random numbers, missing
  // ids or one out of range (the message gives its place). `gradient` is then unchanged.
  virtual absl::StatusOr<LaneResult> ComputeLane(const SampleBatch& batch, double loss_scale,
                                                 float* gradient) = 0;

  // The lanes of an aligned block of the tree over the lanes (rule R1), without those after the
  // last one. `gradient` gets the bits that ComputeLane of each lane and the sums of the tree would
  // give. results[i] is the result of lanes[i], with samples 0 if that lane has none. seed and
  // epoch must be the same in all. Errors as ComputeLane. Also InvalidArgument: no lane has
  // samples, the number of results differs, or there are more lanes than info().max_lanes.
  virtual absl::Status ComputeLanes(absl::Span<const SampleBatch> lanes, double loss_scale,
                                    float* gradient, absl::Span<LaneResult> results);

  // Forward and loss only. Draws nothing and needs no ids. Other errors as ComputeLane. count is 1
  // to max_batch, even if a lane has fewer samples.
  virtual absl::StatusOr<LaneResult> Evaluate(const SampleBatch& batch) = 0;

  // Writes the logits of each sample's answer, [count, classes]: the input of the loss, of a
  // sequence those of its last position. Does not read batch.labels. Errors as
  // ComputeLane.
  virtual absl::Status Predict(const SampleBatch& batch, float* logits) = 0;

  // Whether a batch may contain bytes. Results have the bits that the images would give.
  virtual bool takes_bytes() const { return false; }

  // Keeps images [first, first + count) of `whole` on the device, so that a batch names places
  // instead of bringing images. Results have the same bits. Call it in rising order, beginning with
  // first == 0. The images may be used once all are there. Unimplemented: the device has no memory
  // of its own, so there is no gain. ResourceExhausted: they do not fit; nothing is kept, and the
  // plan stays usable.
  virtual absl::Status KeepImages(const float* images, int64_t first, int64_t count, int64_t whole);

  virtual const PlanInfo& info() const = 0;

  // In forward order: the batch's way into the device's layout, each kernel, the loss. Empty
  // without PlanOptions::time_kernels. Valid as long as the plan; later calls change the times.
  virtual absl::Span<const KernelTime> kernel_times() const { return {}; }

 protected:
  Plan() = default;
  static absl::Status CheckLanes(absl::Span<const SampleBatch> lanes,
                                 absl::Span<const LaneResult> results, int64_t max_lanes);
  // Labels in [0, classes), or targets where `target_size`, Graph::target_size(), is above 0.
  static absl::Status CheckLabels(const SampleBatch& batch, int64_t classes, int64_t target_size);
  // For a graph that draws: checks that the batch's ids exist and are in range.
  static absl::Status CheckIds(const SampleBatch& batch, const std::string& graph);
};

class PlanGroup;  // group.h
struct GroupOptions;

inline absl::Status Plan::KeepImages(const float*, int64_t, int64_t, int64_t) {
  return absl::UnimplementedError("images lie in the device's memory already");
}

// What a device can do at most, as it was measured.
struct DeviceLimits {
  std::string processor;        // its name, as the system says: "Intel(R) Xeon(R) Processor"
  std::string instruction_set;  // of the kernels: "avx512"
  // Operations of fused multiply-adds in float32 on numbers in registers; each counts as 2.
  double flops_per_second = 0;
  // Copied between two places in memory; each byte counts twice, as it is read and written.
  double memory_bytes_per_second = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // "cpu", "cpu:1", "cuda:0".
  virtual const std::string& name() const = 0;
  // Libraries and instruction set, for logs: "own kernels, avx512".
  virtual const std::string& description() const = 0;
  // The UUID of a card, the same in every process of its host: "GPU-1f2e..."; empty if unknown.
  virtual std::string uuid() const { return ""; }

  // `layout` holds the parameters of `graph` under their names. Both are only read during the call.
  // InvalidArgument: layout and graph disagree, or an option is out of range. Unimplemented, by
  // name: an operator or attribute that the device does not support. ResourceExhausted: the
  // device lacks memory. Aborted, for every call of a device with its own memory: the host lacks
  // memory.
  virtual absl::StatusOr<std::unique_ptr<Plan>> Compile(const training::Graph& graph,
                                                        const training::FlatLayout& layout,
                                                        const PlanOptions& options) = 0;

  // Joins plans that devices of this kind compiled alike; they must outlive the group.
  // InvalidArgument: a plan of another kind of device, or of another model. Unimplemented: a device
  // whose lanes are summed on the host. Unavailable: a library is missing. ResourceExhausted: as
  // Compile.
  virtual absl::StatusOr<std::unique_ptr<PlanGroup>> MakeGroup(const std::vector<Plan*>& plans,
                                                               const GroupOptions& options);

  // Measures with `threads` threads, 1 to 1024, in about a second; the device should be idle.
  // InvalidArgument: another number of threads. ResourceExhausted: no memory. Unimplemented, by
  // name: the device cannot be measured.
  virtual absl::StatusOr<DeviceLimits> MeasureLimits(int threads);

 protected:
  Device() = default;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_DEVICE_DEVICE_H_
