// Helpers for references: sums in double of numbers that are stored as T.
#ifndef CAPSTAN_TRAINING_OPS_REFERENCE_H_
#define CAPSTAN_TRAINING_OPS_REFERENCE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "training/ops/op.h"

namespace capstan::training {

// `size` sums, which are added to `to` on destruction. Does nothing if `to` is null.
template <typename T>
class SumOver {
 public:
  SumOver(T* to, int64_t size) : to_(to) {
    if (to != nullptr) sums_.assign(static_cast<size_t>(size), 0.0);
  }
  ~SumOver() {
    for (size_t i = 0; i < sums_.size(); ++i)
      to_[i] = static_cast<T>(static_cast<double>(to_[i]) + sums_[i]);
  }
  SumOver(const SumOver&) = delete;
  SumOver& operator=(const SumOver&) = delete;

  void Add(int64_t at, double value) {
    if (to_ != nullptr) sums_[static_cast<size_t>(at)] += value;
  }

 private:
  T* const to_;
  std::vector<double> sums_;
};

// y = x[0] in another shape, for operators that only change a shape.
template <typename T>
void CopyForward(const ForwardCall<T>& call) {
  std::copy_n(call.x[0], call.samples.count * Elements(call.op.x[0].shape), call.y);
}
template <typename T>
void AddBackward(const BackwardCall<T>& call) {
  const int64_t size = call.samples.count * Elements(call.op.x[0].shape);
  for (int64_t i = 0; i < size; ++i) call.dx[0][i] += call.dy[i];
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_REFERENCE_H_
