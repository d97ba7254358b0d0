// Runs any operator by its reference: converts a batch to canonical order, computes on one thread,
// and converts back.
#include <algorithm>
#include <utility>

#include "gpu_worker/engine/cpu/blocked/kernel.h"

namespace capstan::engine {
namespace {

// [blocks][elements][16] to [count][elements].
void ToCanonical(int64_t count, int64_t elements, const float* from, float* to) {
  for (int64_t n = 0; n < count; ++n) {
    const float* const block = from + n / kSideBySide * elements * kSideBySide + n % kSideBySide;
    for (int64_t e = 0; e < elements; ++e) to[n * elements + e] = block[e * kSideBySide];
  }
}

// The reverse; missing samples get zeros. With `add`, adds to the old values.
void FromCanonical(int64_t count, int64_t elements, const float* from, bool add, float* to) {
  const int64_t places = CeilDivide(count, kSideBySide) * kSideBySide;
  for (int64_t n = 0; n < places; ++n) {
    float* const block = to + n / kSideBySide * elements * kSideBySide + n % kSideBySide;
    for (int64_t e = 0; e < elements; ++e) {
      const float value = n < count ? from[n * elements + e] : 0;
      block[e * kSideBySide] = add ? block[e * kSideBySide] + value : value;
    }
  }
}

class ReferenceKernel {
 public:
  ReferenceKernel(const training::Graph& graph, int node, const NodePlaces& places)
      : op_(graph.instance(node)),
        reference_(graph.def(node).reference),
        places_(places),
        y_elements_(training::Elements(op_.inferred.output.shape)) {
    for (const training::ValueType& x : op_.x) x_elements_.push_back(training::Elements(x.shape));
  }

  absl::Status Make(NodePhases& phases, const std::shared_ptr<ReferenceKernel>& self) {
    phases.kernel = "reference";
    phases.one_lane = true;
    const int64_t samples = places_.max_blocks * kSideBySide;
    for (const int64_t elements : x_elements_) {
      for (std::vector<float*>* const list : {&x_, &dx_}) {
        absl::StatusOr<float*> memory =
            KernelMemory(phases, samples * elements, phases.scratch_bytes);
        if (!memory.ok()) return memory.status();
        list->push_back(*memory);
      }
    }
    for (float** const place : {&y_, &dy_}) {
      absl::StatusOr<float*> memory =
          KernelMemory(phases, samples * y_elements_, phases.scratch_bytes);
      if (!memory.ok()) return memory.status();
      *place = *memory;
    }
    phases.forward.push_back(
        {0, FixedPieces(1), [self](const BatchRun& run, int64_t, char*) { self->Forward(run); }});
    if (places_.backward) {
      phases.backward.push_back({0, FixedPieces(1), [self](const BatchRun& run, int64_t, char*) {
                                   self->Backward(run);
                                 }});
    }
    return absl::OkStatus();
  }

 private:
  bool statistic(size_t parameter) const { return op_.inferred.parameters[parameter].statistic; }

  template <typename Call>
  void SetInputs(const BatchRun& run, Call& call) {
    for (size_t i = 0; i < x_.size(); ++i) {
      ToCanonical(run.samples.count, x_elements_[i], places_.x[i], x_[i]);
      call.x.push_back(x_[i]);
    }
    for (const int64_t offset : places_.parameters) call.parameters.push_back(run.weights + offset);
  }

  void Forward(const BatchRun& run) {
    training::ForwardCall<float> call{op_, run.samples};
    SetInputs(run, call);
    call.y = y_;
    call.saved = places_.saved;
    for (size_t i = 0; i < places_.parameters.size(); ++i) {
      const bool wanted = statistic(i) && run.gradient != nullptr;
      call.statistics.push_back(wanted ? run.gradient + places_.parameters[i] : nullptr);
    }
    reference_.forward(call);
    FromCanonical(run.samples.count, y_elements_, y_, /*add=*/false, places_.y);
    const auto share = static_cast<float>(static_cast<double>(run.samples.count) * run.loss_scale);
    for (size_t i = 0; i < call.statistics.size(); ++i) {
      if (call.statistics[i] == nullptr) continue;
      const int64_t size = training::Elements(op_.inferred.parameters[i].shape);
      for (int64_t e = 0; e < size; ++e) call.statistics[i][e] *= share;
    }
  }

  void Backward(const BatchRun& run) {
    training::BackwardCall<float> call{op_, run.samples};
    SetInputs(run, call);
    ToCanonical(run.samples.count, y_elements_, places_.y, y_);
    ToCanonical(run.samples.count, y_elements_, places_.dy, dy_);
    call.y = y_;
    call.dy = dy_;
    for (float* const saved : places_.saved) call.saved.push_back(saved);
    for (size_t i = 0; i < dx_.size(); ++i) {
      std::fill_n(dx_[i], run.samples.count * x_elements_[i], 0.0f);
      call.dx.push_back(places_.dx[i].data != nullptr ? dx_[i] : nullptr);
    }
    for (size_t i = 0; i < places_.parameters.size(); ++i) {
      call.dparameters.push_back(statistic(i) ? nullptr : run.gradient + places_.parameters[i]);
    }
    reference_.backward(call);
    for (size_t i = 0; i < dx_.size(); ++i) {
      if (call.dx[i] == nullptr) continue;
      FromCanonical(run.samples.count, x_elements_[i], dx_[i], places_.dx[i].add,
                    places_.dx[i].data);
    }
  }

  const training::OpInstance& op_;
  const training::Reference<float> reference_;
  const NodePlaces places_;
  const int64_t y_elements_;
  std::vector<int64_t> x_elements_;
  std::vector<float*> x_, dx_;
  float* y_ = nullptr;
  float* dy_ = nullptr;
};

}  // namespace

absl::StatusOr<NodePhases> MakeReferencePhases(const training::Graph& graph, int node,
                                               const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<ReferenceKernel>(graph, node, places);
  const absl::Status status = kernel->Make(phases, kernel);
  if (!status.ok()) return status;
  return phases;
}

}  // namespace capstan::engine
