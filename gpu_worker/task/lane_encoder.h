// What a task does with a lane's gradient before it is sent, if the job compresses gradients: it
// encodes each chunk of weights by itself, and keeps what the encoding left out.
//
// Error feedback (training/compress/gradient_format.h): what a lane's step left out, its residual,
// is added to the gradient of the lane's next step. It counts only if the step was applied. After a
// step that was skipped, the residual is the one from before.
//
// A residual belongs to one lane, one lineage and one task. With Residuals::kDropped, the first step
// of a lane at a task begins and ends without one: of that step, shards may have counted another
// task's copy, which left out other numbers. With kKept, a lane begins with the residual that the
// lineage's checkpoint has, and any two copies of a contribution are equal. Only the first step of
// the job leaves none.
//
// Threads: none of its own; the owner serialises.
#ifndef CAPSTAN_GPU_WORKER_TASK_LANE_ENCODER_H_
#define CAPSTAN_GPU_WORKER_TASK_LANE_ENCODER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "exchange/float_buffer.h"
#include "training/chunks/flat_layout.h"
#include "training/compress/gradient_layout.h"

namespace capstan::gpu_worker {

// A lane's step, and the factors of its gradient.
struct LaneStep {
  int64_t step = 0;
  int64_t step_before = -1;  // the lane's last one with samples; -1: none
  int32_t lane = 0;
  double loss_scale = 1;  // a power of two; in the gradient, and not in the residual
  int64_t samples = 1;    // by which the gradient was divided
};

enum class Residuals {
  kDropped,  // lost with the task or the lineage
  kKept,     // in checkpoints; Begin gives them back
};

class LaneEncoder {
 public:
  // Borrows layout.
  LaneEncoder(const training::FlatLayout& layout, const training::GradientFormat& format,
              Residuals residuals = Residuals::kDropped);

  // kKept: the residual of the lane where the lineage begins. Null: zeros. size() ==
  // layout.total_floats(). Encode needs it.
  void Begin(int32_t lane, std::shared_ptr<exchange::FloatBuffer> residual);
  // The lane's residual now, without the loss scale. Does not change any more. Null: it has none.
  std::shared_ptr<const exchange::FloatBuffer> Residual(int32_t lane) const;

  // The words to send (training/compress/gradient_layout.h). A lane's steps rise.
  // gradient.size() == layout.total_floats().
  std::shared_ptr<exchange::FloatBuffer> Encode(const LaneStep& at,
                                                absl::Span<const float> gradient);
  // What a shard makes of them. out.size() == layout.total_floats().
  void Decode(const exchange::FloatBuffer& encoded, absl::Span<float> out) const;

  // The step was not applied, to any lane or to one.
  void Skipped(int64_t step);
  void Skipped(const LaneStep& at);

  // Forgets the residuals of other lanes than these.
  void KeepLanes(const std::function<bool(int32_t lane)>& keep);
  // kDropped: the Euclidean norm of all residuals, without the loss scale.
  double Norm() const;
  // Forgets all residuals.
  void Forget() { residuals_.clear(); }

 private:
  struct OfLane {
    int64_t step = -1;  // of the last encoding
    bool first = true;  // of the lane at this task
    bool applied = true;
    double squares_before = 0;  // kDropped: the sums of squares of the two
    double squares_after = 0;
    std::shared_ptr<exchange::FloatBuffer> before;  // that encoding, and
    std::shared_ptr<exchange::FloatBuffer> after;   // somebody may read what Residual gave out

    const std::shared_ptr<exchange::FloatBuffer>& now() const { return applied ? after : before; }
  };

  // The lane's residual for this step, with the current one in `before`.
  OfLane& At(const LaneStep& at);

  const training::FlatLayout& layout_;
  const training::GradientLayout gradients_;
  const Residuals kept_;
  exchange::BufferPool encoded_;
  exchange::BufferPool after_;           // kKept: of OfLane
  std::map<int32_t, OfLane> residuals_;  // by lane; empty without error feedback
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_LANE_ENCODER_H_
