#include "training/ops/mat_mul/mat_mul.h"

#include <array>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/broadcast.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

// The axes in front of the matrices.
Shape FrontOf(const Shape& shape) { return {shape.begin(), shape.end() - 2}; }

absl::StatusOr<Inference> InferMatMul(absl::Span<const ValueType> x, Attributes&) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  for (size_t i = 0; i < 2; ++i) {
    if (x[i].shape.size() >= 2) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("input ", i, ": ", ShapeToString(x[i].shape), ", want at least two axes"));
  }
  const Shape &a = x[0].shape, &b = x[1].shape;
  std::optional<Shape> shape = BroadcastShape(FrontOf(a), FrontOf(b));
  if (!shape.has_value() || b[b.size() - 2] != a.back()) {
    return absl::InvalidArgumentError(
        absl::StrCat("input 1: ", ShapeToString(b), ", want [..., ", a.back(),
                     ", N] with axes in front like those of input 0, ", ShapeToString(a)));
  }
  shape->push_back(a[a.size() - 2]);
  shape->push_back(b.back());
  const absl::StatusOr<int64_t> elements = ElementCount(*shape, "output");
  if (!elements.ok()) return elements.status();
  Inference inferred;
  inferred.flops = TwiceProduct(*elements, a.back());
  inferred.output.shape = *std::move(shape);
  return inferred;
}

struct MatMulSizes {
  explicit MatMulSizes(const OpInstance& op)
      : m(op.inferred.output.shape.end()[-2]),
        n(op.inferred.output.shape.back()),
        k(op.x[0].shape.back()) {}
  int64_t m, n, k;
};

// Calls visit({first element in a, in b, in y}) for each product of matrices over a batch.
template <typename Visit>
void ForMatrices(const OpInstance& op, int64_t count, Visit visit) {
  const MatMulSizes sizes(op);
  const Shape front = FrontOf(op.inferred.output.shape);
  std::array<Strides, 3> strides = {BroadcastStrides(FrontOf(op.x[0].shape), front),
                                    BroadcastStrides(FrontOf(op.x[1].shape), front),
                                    StridesOf(front)};
  const int64_t matrices[] = {sizes.m * sizes.k, sizes.k * sizes.n, sizes.m * sizes.n};
  for (size_t i = 0; i < 3; ++i) {
    for (int64_t& stride : strides[i]) stride *= matrices[i];
  }
  for (int64_t n = 0; n < count; ++n) {
    ForPlaces<3>(front, strides,
                 {n * Elements(op.x[0].shape), n * Elements(op.x[1].shape),
                  n * Elements(op.inferred.output.shape)},
                 visit);
  }
}

template <typename T>
void MatMulForward(const ForwardCall<T>& call) {
  const MatMulSizes sizes(call.op);
  ForMatrices(call.op, call.samples.count, [&](const std::array<int64_t, 3>& at) {
    const T* const a = call.x[0] + at[0];
    const T* const b = call.x[1] + at[1];
    for (int64_t i = 0; i < sizes.m; ++i) {
      for (int64_t j = 0; j < sizes.n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < sizes.k; ++k) {
          sum += static_cast<double>(a[i * sizes.k + k]) * static_cast<double>(b[k * sizes.n + j]);
        }
        call.y[at[2] + i * sizes.n + j] = static_cast<T>(sum);
      }
    }
  });
}

// da = dy b^T, db = a^T dy
template <typename T>
void MatMulBackward(const BackwardCall<T>& call) {
  const MatMulSizes sizes(call.op);
  SumOver<T> da(call.dx[0], call.samples.count * Elements(call.op.x[0].shape));
  SumOver<T> db(call.dx[1], call.samples.count * Elements(call.op.x[1].shape));
  ForMatrices(call.op, call.samples.count, [&](const std::array<int64_t, 3>& at) {
    for (int64_t i = 0; i < sizes.m; ++i) {
      for (int64_t j = 0; j < sizes.n; ++j) {
        const double dy = static_cast<double>(call.dy[at[2] + i * sizes.n + j]);
        for (int64_t k = 0; k < sizes.k; ++k) {
          const int64_t in_a = at[0] + i * sizes.k + k, in_b = at[1] + k * sizes.n + j;
          da.Add(in_a, dy * static_cast<double>(call.x[1][in_b]));
          db.Add(in_b, dy * static_cast<double>(call.x[0][in_a]));
        }
      }
    }
  });
}

}  // namespace

const OpDef& MatMulOp() {
  static const OpDef& op =
      *new OpDef{.name = MatMul::kName,
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = InferMatMul,
                 .reads = {.x = true},
                 .reference = {MatMulForward<float>, MatMulBackward<float>},
                 .reference_double = {MatMulForward<double>, MatMulBackward<double>}};
  return op;
}

}  // namespace capstan::training
