#include "training/ops/gelu/gelu.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/math/portable_math.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferGelu(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const std::string& approximate = attributes.Text("approximate");
  if (approximate != "none" && approximate != "tanh") {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute approximate: '", approximate, "', want none or tanh"));
  }
  Inference inferred;
  inferred.output = x[0];
  return inferred;
}

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

// Phi(x) and its derivative.
struct GeluPhi {
  GeluPhi(double x, bool tanh_form) {
    if (tanh_form) {
      // (1 + tanh u) / 2 = 1 / (1 + e^-2u), which stays accurate where tanh u is near -1.
      const double u = kSqrtTwoOverPi * x * (1 + kCubic * x * x);
      value = 1 / (1 + PortableExp(-2 * u));
      const double du = kSqrtTwoOverPi * (1 + 3 * kCubic * x * x);
      slope = value > 0 && value < 1 ? 2 * value * (1 - value) * du : 0;
    } else {
      value = 0.5 * PortableErfc(-x * kSqrtHalf);
      slope = 0.5 * kSqrtTwoOverPi * PortableExp(-0.5 * x * x);
    }
  }
  double value = 0, slope = 0;
};

template <typename Visit>
void ForGelu(const OpInstance& op, const SampleInfo& samples, Visit visit) {
  const bool tanh_form = op.attributes.Text("approximate") == "tanh";
  const int64_t size = samples.count * Elements(op.x[0].shape);
  for (int64_t i = 0; i < size; ++i) visit(i, tanh_form);
}

template <typename T>
void GeluForward(const ForwardCall<T>& call) {
  ForGelu(call.op, call.samples, [&](int64_t i, bool tanh_form) {
    const double x = static_cast<double>(call.x[0][i]);
    call.y[i] = static_cast<T>(x * GeluPhi(x, tanh_form).value);
  });
}

template <typename T>
void GeluBackward(const BackwardCall<T>& call) {
  ForGelu(call.op, call.samples, [&](int64_t i, bool tanh_form) {
    const double x = static_cast<double>(call.x[0][i]);
    const GeluPhi phi(x, tanh_form);
    const double d = (phi.value + x * phi.slope) * static_cast<double>(call.dy[i]);
    call.dx[0][i] = static_cast<T>(static_cast<double>(call.dx[0][i]) + d);
  });
}

}  // namespace

const OpDef& GeluOp() {
  static const OpDef& op =
      *new OpDef{.name = Gelu::kName,
                 .attributes = {{"approximate", Gelu().approximate}},
                 .infer = InferGelu,
                 .reads = {.x = true},
                 .in_place = InPlace::kOutput,
                 .reference = {GeluForward<float>, GeluBackward<float>},
                 .reference_double = {GeluForward<double>, GeluBackward<double>}};
  return op;
}

}  // namespace capstan::training
