#include "training/ops/dropout/dropout.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/dropout/dropout_rule.h"
#include "training/ops/infer.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

constexpr int64_t kMaxDropoutElements = int64_t{1} << 34;

absl::StatusOr<Inference> InferDropout(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const double ratio = Dropout::Read(attributes).ratio;
  if (!(ratio >= 0 && ratio < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute ratio: ", ratio, ", want at least 0 and less than 1"));
  }
  const absl::StatusOr<int64_t> elements = ElementCount(x[0].shape, "input");
  if (!elements.ok()) return elements.status();
  if (*elements > kMaxDropoutElements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "input ", ShapeToString(x[0].shape), ", want at most ", kMaxDropoutElements, " elements"));
  }
  Inference inferred;
  inferred.output = x[0];
  return inferred;
}

// Calls visit(place, factor) for every element of a batch in training; the factor is 0 or 1 / (1 -
// ratio).
template <typename T, typename Visit>
void ForMask(const OpInstance& op, const SampleInfo& samples, Visit visit) {
  const double ratio = Dropout::Read(op.attributes).ratio;
  const uint32_t threshold = DropoutThreshold(ratio);
  const T kept = static_cast<T>(1 / (1 - ratio));
  const Philox philox(samples.seed, Purpose::kDropout);
  const int64_t elements = Elements(op.x[0].shape);
  for (int64_t n = 0; n < samples.count; ++n) {
    for (int64_t first = 0; first < elements; first += 4) {
      const PhiloxBlock block =
          philox.Block(DropoutCounter(first / 4, samples.ids[n], samples.epoch, op.index));
      for (int64_t i = 0; i < std::min<int64_t>(4, elements - first); ++i) {
        visit(n * elements + first + i, DropoutKeeps(block[i], threshold) ? kept : T{0});
      }
    }
  }
}

template <typename T>
void DropoutForward(const ForwardCall<T>& call) {
  if (!call.samples.training) return CopyForward(call);
  ForMask<T>(call.op, call.samples, [&](int64_t at, T factor) {
    call.y[at] = factor == 0 ? T{0} : call.x[0][at] * factor;
  });
}

template <typename T>
void DropoutBackward(const BackwardCall<T>& call) {
  ForMask<T>(call.op, call.samples, [&](int64_t at, T factor) {
    if (factor != 0) call.dx[0][at] += call.dy[at] * factor;
  });
}

}  // namespace

uint32_t DropoutThreshold(double ratio) { return static_cast<uint32_t>(std::ceil(ratio * 0x1p24)); }

PhiloxCounter DropoutCounter(int64_t block, int64_t id, uint32_t epoch, int node) {
  uint32_t counter[4] = {};
  SetDropoutCounter(block, id, epoch, node, counter);
  return {counter[0], counter[1], counter[2], counter[3]};
}

const OpDef& DropoutOp() {
  static const OpDef& op =
      *new OpDef{.name = Dropout::kName,
                 .attributes = {{"ratio", Dropout().ratio}},
                 .infer = InferDropout,
                 .in_place = InPlace::kOutput,
                 .random = true,
                 .reference = {DropoutForward<float>, DropoutBackward<float>},
                 .reference_double = {DropoutForward<double>, DropoutBackward<double>}};
  return op;
}

}  // namespace capstan::training
