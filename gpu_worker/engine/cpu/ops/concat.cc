// Concat: copies runs that are contiguous in both an input and the output.
#include "training/ops/concat/concat.h"

#include <algorithm>
#include <memory>

#include "gpu_worker/engine/cpu/blocked/kernel.h"

namespace capstan::engine {
namespace {

class ConcatKernel {
 public:
  ConcatKernel(const training::OpInstance& op, const NodePlaces& places) : places_(places) {
    const auto axis = static_cast<size_t>(training::Concat::Read(op.attributes).axis) - 1;
    for (size_t i = 0; i < axis; ++i) runs_ *= op.x[0].shape[i];
    for (const training::ValueType& x : op.x) {
      starts_.push_back(row_);
      row_ += training::Elements(x.shape) / runs_ * kSideBySide;
    }
    starts_.push_back(row_);
  }

  // Backward has a phase for each input, because one value may be several inputs.
  void Make(NodePhases& phases, const std::shared_ptr<ConcatKernel>& self) const {
    phases.kernel = "runs";
    const int64_t inputs = static_cast<int64_t>(places_.x.size());
    phases.forward.push_back(
        {0, [self, inputs](const BatchRun& run) { return run.blocks * inputs * self->Cuts(); },
         [self, inputs](const BatchRun&, int64_t piece, char*) {
           const int64_t input = piece / self->Cuts() % inputs;
           const float* const x = self->places_.x[input];
           self->ForRuns(piece / self->Cuts() / inputs, input, piece % self->Cuts(),
                         [&](int64_t at, int64_t place, int64_t size) {
                           self->places_.math->copy(size, x + at, self->places_.y + place,
                                                    /*add=*/false);
                         });
         }});
    if (!places_.backward) return;
    for (int64_t input = 0; input < inputs; ++input) {
      if (places_.dx[input].data == nullptr) continue;
      phases.backward.push_back(
          {0, [self](const BatchRun& run) { return run.blocks * self->Cuts(); },
           [self, input](const BatchRun&, int64_t piece, char*) {
             const NodePlaces::Gradient& dx = self->places_.dx[input];
             self->ForRuns(piece / self->Cuts(), input, piece % self->Cuts(),
                           [&](int64_t at, int64_t place, int64_t size) {
                             self->places_.math->copy(size, self->places_.dy + place, dx.data + at,
                                                      dx.add);
                           });
           }});
    }
  }

 private:
  static constexpr int64_t kCutFloats = int64_t{1} << 15;

  // Number of cuts of an output's block. Runs are cut if there are few of them.
  int64_t Cuts() const { return CeilDivide(runs_ * row_, kCutFloats); }

  // Calls visit(place in the input, place in the output, floats) for a share of an input's runs in
  // a block.
  template <typename Visit>
  void ForRuns(int64_t block, int64_t input, int64_t cut, Visit visit) const {
    const int64_t size = starts_[input + 1] - starts_[input];
    const int64_t vectors = runs_ * size / kSideBySide;
    int64_t at = vectors * cut / Cuts() * kSideBySide;
    const int64_t last = vectors * (cut + 1) / Cuts() * kSideBySide;
    while (at < last) {
      const int64_t run = at / size, offset = at % size;
      const int64_t floats = std::min(size - offset, last - at);
      visit(block * runs_ * size + at, (block * runs_ + run) * row_ + starts_[input] + offset,
            floats);
      at += floats;
    }
  }

  const NodePlaces places_;
  int64_t runs_ = 1;             // of each input in a block
  int64_t row_ = 0;              // floats of one run of each input
  std::vector<int64_t> starts_;  // of the inputs in a row, and the row's end
};

}  // namespace

absl::StatusOr<NodePhases> MakeConcatPhases(const training::Graph& graph, int node,
                                            const NodePlaces& places) {
  NodePhases phases;
  const auto kernel = std::make_shared<ConcatKernel>(graph.instance(node), places);
  kernel->Make(phases, kernel);
  return phases;
}

}  // namespace capstan::engine
