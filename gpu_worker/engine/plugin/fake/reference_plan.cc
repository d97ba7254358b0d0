// Computes any graph by the references of its operators, node after node, over the whole batch.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/plugin/fake/fake_plan.h"

namespace capstan::engine::cuda {
namespace {

using training::Graph;
using training::Parameter;
using training::SavedTensor;

// Number of elements that a plan holds for a batch of `count`: values, their gradients, tensors
// that forward leaves for backward, parameters and their gradients.
int64_t PlanElements(const Graph& graph, int64_t count) {
  int64_t elements = 0;
  for (int v = 0; v < graph.value_count(); ++v) elements += 2 * count * graph.value_elements(v);
  for (int i = 0; i < graph.node_count(); ++i) {
    for (const SavedTensor& tensor : graph.instance(i).inferred.saved) {
      elements += (tensor.per_sample ? count : 1) * training::Elements(tensor.shape);
    }
  }
  for (const Parameter& parameter : graph.parameters()) elements += 2 * parameter.elements;
  return elements;
}

template <typename T>
const training::Reference<T>& ReferenceOf(const training::OpDef& def) {
  if constexpr (sizeof(T) == sizeof(double)) {
    return def.reference_double;
  } else {
    return def.reference;
  }
}

template <typename T>
class ReferencePlan : public FakePlanBase {
 public:
  static constexpr T kGarbage = std::numeric_limits<T>::quiet_NaN();

  ReferencePlan(ReceivedGraph received, const capstan_compile_request& request)
      : FakePlanBase(request.device,
                     PlanElements(received.graph, request.max_batch) * int64_t{sizeof(T)},
                     request.total_floats, received.graph.value_elements(0)),
        graph_(std::move(received.graph)),
        offsets_(std::move(received.offsets)),
        saved_(graph_.node_count()) {
    for (int v = 0; v < graph_.value_count(); ++v) {
      values_.emplace_back(request.max_batch * graph_.value_elements(v), kGarbage);
    }
    gradients_ = values_;
    for (int i = 0; i < graph_.node_count(); ++i) {
      for (const SavedTensor& tensor : graph_.instance(i).inferred.saved) {
        saved_[i].emplace_back(
            (tensor.per_sample ? request.max_batch : 1) * training::Elements(tensor.shape),
            kGarbage);
      }
      absl::StrAppend(&kernels_, graph_.nodes()[i].name, ": reference\n");
    }
    for (const Parameter& parameter : graph_.parameters()) {
      parameters_.emplace_back(parameter.elements, kGarbage);
    }
    parameter_gradients_ = parameters_;
    arena_bytes_ =
        PlanElements(graph_, request.max_batch) * int64_t{sizeof(T)} - 2 * ParameterBytes();
  }

  void Info(capstan_plan_info* info) const override {
    *info = {arena_bytes_, ParameterBytes(), ParameterBytes(), 0, kernels_.c_str()};
  }

  void LoadWeights(const float* weights) override {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      std::copy_n(weights + offsets_[p], parameters_[p].size(), parameters_[p].begin());
    }
  }

  absl::Status Run(const capstan_batch& batch, double loss_scale, float* gradient, float* logits,
                   capstan_result* result) override {
    const absl::Status device = CheckDevice(/*training=*/gradient != nullptr);
    if (!device.ok()) return device;
    training::SampleInfo samples;
    samples.count = batch.count;
    samples.training = gradient != nullptr;
    samples.labels = batch.labels;
    samples.targets = batch.targets;
    samples.ids = batch.ids;
    samples.seed = batch.seed;
    samples.epoch = batch.epoch;
    LoadImages(batch);
    Forward(samples, /*loss=*/logits == nullptr);
    if (logits != nullptr) {
      const int64_t classes = graph_.num_classes();
      for (int64_t n = 0; n < batch.count; ++n) {
        const T* const answer = Answer(n);
        for (int64_t k = 0; k < classes; ++k) {
          logits[n * classes + k] = static_cast<float>(answer[k]);
        }
      }
      return absl::OkStatus();
    }
    *result = Sums(batch);
    if (gradient == nullptr) return absl::OkStatus();
    Backward(samples, loss_scale);
    std::fill_n(gradient, total_floats(), 0.0f);
    for (size_t p = 0; p < parameters_.size(); ++p) {
      // Rule R3: for a statistic, the statistic of the batch, weighted by its samples.
      const double share =
          graph_.parameters()[p].statistic ? loss_scale * static_cast<double>(batch.count) : 1;
      for (size_t i = 0; i < parameters_[p].size(); ++i) {
        gradient[offsets_[p] + i] = static_cast<float>(parameter_gradients_[p][i] * share);
      }
    }
    Overflow(loss_scale, gradient);
    return absl::OkStatus();
  }

 private:
  using Tensors = std::vector<std::vector<T>>;

  int64_t ParameterBytes() const {
    return (graph_.parameter_elements() + graph_.statistic_elements()) * int64_t{sizeof(T)};
  }

  void LoadImages(const capstan_batch& batch) {
    const int64_t size = image_elements();
    T* to = values_[0].data();
    for (int64_t n = 0; n < batch.count; ++n) {
      if (batch.image_type == CAPSTAN_IMAGE_UINT8) {
        const auto* const from = static_cast<const uint8_t*>(batch.images) + n * size;
        for (int64_t i = 0; i < size; ++i) {
          *to++ = static_cast<float>(from[i]) * batch.image_scale + batch.image_shift;
        }
        continue;
      }
      const float* const from = batch.image_type == CAPSTAN_IMAGE_KEPT
                                    ? kept() + static_cast<const int32_t*>(batch.images)[n] * size
                                    : static_cast<const float*>(batch.images) + n * size;
      to = std::copy_n(from, size, to);
    }
  }

  template <typename Call>
  void SetInputs(int node, Call& call) const {
    for (const int input : graph_.nodes()[node].inputs) call.x.push_back(values_[input].data());
    for (const int parameter : graph_.parameters_of(node)) {
      call.parameters.push_back(parameters_[parameter].data());
    }
  }

  bool IsStatistic(int parameter) const { return graph_.parameters()[parameter].statistic; }

  void Forward(const training::SampleInfo& samples, bool loss) {
    for (int i = 0; i < graph_.node_count() - (loss ? 0 : 1); ++i) {
      training::ForwardCall<T> call{graph_.instance(i), samples};
      SetInputs(i, call);
      call.y = values_[graph_.output_of(i)].data();
      for (std::vector<T>& tensor : saved_[i]) call.saved.push_back(tensor.data());
      for (const int parameter : graph_.parameters_of(i)) {
        call.statistics.push_back(IsStatistic(parameter) ? parameter_gradients_[parameter].data()
                                                         : nullptr);
      }
      ReferenceOf<T>(graph_.def(i)).forward(call);
    }
  }

  // The logits of a sample's answer, [classes].
  const T* Answer(int64_t sample) const {
    const int64_t elements = graph_.value_elements(graph_.logits());
    return values_[graph_.logits()].data() + sample * elements + graph_.answer_offset();
  }

  // The first of equal logits counts. A row with a NaN is never correct.
  capstan_result Sums(const capstan_batch& batch) const {
    capstan_result sums = {};
    const int64_t classes = graph_.num_classes();
    for (int64_t n = 0; n < batch.count; ++n) {
      sums.loss_sum += values_.back()[n];
      if (graph_.target_size() > 0) continue;
      const T* const row = Answer(n);
      const bool nan = std::any_of(row, row + classes, [](T z) { return std::isnan(z); });
      sums.correct += !nan && std::max_element(row, row + classes) - row == batch.labels[n];
    }
    return sums;
  }

  void Backward(const training::SampleInfo& samples, double loss_scale) {
    for (std::vector<T>& tensor : gradients_) std::fill(tensor.begin(), tensor.end(), T{0});
    std::fill_n(gradients_.back().begin(), samples.count, static_cast<T>(loss_scale));
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (IsStatistic(static_cast<int>(p))) continue;
      std::fill(parameter_gradients_[p].begin(), parameter_gradients_[p].end(), T{0});
    }
    for (int i = graph_.loss(); i >= 0; --i) {
      if (!graph_.needs_gradient(graph_.output_of(i))) continue;  // nothing before it is trained
      training::BackwardCall<T> call{graph_.instance(i), samples};
      SetInputs(i, call);
      call.y = values_[graph_.output_of(i)].data();
      for (const std::vector<T>& tensor : saved_[i]) call.saved.push_back(tensor.data());
      call.dy = gradients_[graph_.output_of(i)].data();
      for (const int input : graph_.nodes()[i].inputs) {
        call.dx.push_back(graph_.needs_gradient(input) ? gradients_[input].data() : nullptr);
      }
      for (const int parameter : graph_.parameters_of(i)) {
        call.dparameters.push_back(IsStatistic(parameter) ? nullptr
                                                          : parameter_gradients_[parameter].data());
      }
      ReferenceOf<T>(graph_.def(i)).backward(call);
    }
  }

  const Graph graph_;
  const std::vector<int64_t> offsets_;
  // Garbage at first, so that reads of unwritten memory show.
  Tensors values_, gradients_, parameters_, parameter_gradients_;
  std::vector<Tensors> saved_;  // by node
  int64_t arena_bytes_ = 0;
  std::string kernels_;
};

template <typename T>
absl::Status Make(ReceivedGraph received, const capstan_compile_request& request,
                  capstan_plan** plan) {
  const int64_t free = FreeBytes(request.device);
  const int64_t bytes = PlanElements(received.graph, request.max_batch) * int64_t{sizeof(T)};
  if (bytes > free) {
    const int64_t fixed = PlanElements(received.graph, 0) * int64_t{sizeof(T)};
    const int64_t sample = PlanElements(received.graph, 1) * int64_t{sizeof(T)} - fixed;
    return absl::ResourceExhaustedError(
        absl::StrCat("out of GPU memory: a plan for ", request.max_batch, " samples needs ", bytes,
                     " bytes, ", free, " of ", WholeBytes(), " are free; up to ",
                     std::max<int64_t>(0, (free - fixed) / sample),
                     " samples would fit: use a smaller batch, more lanes or more GPUs"));
  }
  *plan = new ReferencePlan<T>(std::move(received), request);
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeReferencePlan(ReceivedGraph received, const capstan_compile_request& request,
                               capstan_plan** plan) {
  if (request.precision != CAPSTAN_PRECISION_FP32 && request.precision != CAPSTAN_PRECISION_TF32) {
    return absl::UnimplementedError(
        "precision: references compute in fp32 and tf32, want one of these for a graph that is "
        "not a chain");
  }
  return Environment("CAPSTAN_FAKE_ELEMENTS", "double") == "double"
             ? Make<double>(std::move(received), request, plan)
             : Make<float>(std::move(received), request, plan);
}

}  // namespace capstan::engine::cuda
