#include <cmath>

#include "training/ops/pool/pool.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

// Calls visit(plane, p, q, y) for every output of a batch. `plane` is the start of its channel in
// x, and y is its own index.
template <typename Visit>
void ForPoolOutputs(const OpInstance& op, int64_t count, Visit visit) {
  const Shape& x = op.x[0].shape;
  const Shape& y = op.inferred.output.shape;
  int64_t at = 0;
  for (int64_t channel = 0; channel < count * x[0]; ++channel) {
    for (int64_t p = 0; p < y[1]; ++p) {
      for (int64_t q = 0; q < y[2]; ++q) visit(channel * x[1] * x[2], p, q, at++);
    }
  }
}

// The index of the first largest element in a window, or of its first NaN.
template <typename T>
int64_t Largest(const OpInstance& op, const Window& window, const T* x, int64_t plane, int64_t p,
                int64_t q) {
  int64_t largest = -1;
  ForWindow(window, op.x[0].shape[1], op.x[0].shape[2], p, q, [&](int64_t h, int64_t w, int64_t) {
    const int64_t at = plane + h * op.x[0].shape[2] + w;
    if (largest < 0 || x[at] > x[largest] || (std::isnan(x[at]) && !std::isnan(x[largest]))) {
      largest = at;
    }
  });
  return largest;
}

// The divisor of a window's mean.
double Divisor(const OpInstance& op, const AveragePool& pool, int64_t p, int64_t q) {
  if (pool.count_include_pad) {
    return static_cast<double>(pool.window.kernel_shape[0] * pool.window.kernel_shape[1]);
  }
  double covered = 0;
  ForWindow(pool.window, op.x[0].shape[1], op.x[0].shape[2], p, q,
            [&](int64_t, int64_t, int64_t) { ++covered; });
  return covered;
}

int64_t InputSize(const OpInstance& op, int64_t count) { return count * Elements(op.x[0].shape); }

}  // namespace

template <typename T>
void MaxPoolForward(const ForwardCall<T>& call) {
  const Window window = ReadWindow(call.op.attributes);
  ForPoolOutputs(call.op, call.samples.count, [&](int64_t plane, int64_t p, int64_t q, int64_t y) {
    call.y[y] = call.x[0][Largest(call.op, window, call.x[0], plane, p, q)];
  });
}

template <typename T>
void MaxPoolBackward(const BackwardCall<T>& call) {
  const Window window = ReadWindow(call.op.attributes);
  SumOver<T> dx(call.dx[0], InputSize(call.op, call.samples.count));
  ForPoolOutputs(call.op, call.samples.count, [&](int64_t plane, int64_t p, int64_t q, int64_t y) {
    dx.Add(Largest(call.op, window, call.x[0], plane, p, q), call.dy[y]);
  });
}

template <typename T>
void AveragePoolForward(const ForwardCall<T>& call) {
  const AveragePool pool = AveragePool::Read(call.op.attributes);
  const Shape& x = call.op.x[0].shape;
  ForPoolOutputs(call.op, call.samples.count, [&](int64_t plane, int64_t p, int64_t q, int64_t y) {
    double sum = 0;
    ForWindow(pool.window, x[1], x[2], p, q,
              [&](int64_t h, int64_t w, int64_t) { sum += call.x[0][plane + h * x[2] + w]; });
    call.y[y] = static_cast<T>(sum / Divisor(call.op, pool, p, q));
  });
}

template <typename T>
void AveragePoolBackward(const BackwardCall<T>& call) {
  const AveragePool pool = AveragePool::Read(call.op.attributes);
  const Shape& x = call.op.x[0].shape;
  SumOver<T> dx(call.dx[0], InputSize(call.op, call.samples.count));
  ForPoolOutputs(call.op, call.samples.count, [&](int64_t plane, int64_t p, int64_t q, int64_t y) {
    const double d = call.dy[y] / Divisor(call.op, pool, p, q);
    ForWindow(pool.window, x[1], x[2], p, q,
              [&](int64_t h, int64_t w, int64_t) { dx.Add(plane + h * x[2] + w, d); });
  });
}

template void MaxPoolForward(const ForwardCall<float>&);
template void MaxPoolForward(const ForwardCall<double>&);
template void MaxPoolBackward(const BackwardCall<float>&);
template void MaxPoolBackward(const BackwardCall<double>&);
template void AveragePoolForward(const ForwardCall<float>&);
template void AveragePoolForward(const ForwardCall<double>&);
template void AveragePoolBackward(const BackwardCall<float>&);
template void AveragePoolBackward(const BackwardCall<double>&);

}  // namespace capstan::training
