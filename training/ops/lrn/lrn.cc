#include "training/ops/lrn/lrn.h"

#include <algorithm>
#include <limits>

#include "training/math/portable_math.h"
#include "training/ops/infer.h"
#include "training/ops/places.h"

namespace capstan::training {
namespace {

constexpr double kMostBeta = 100;

absl::StatusOr<Inference> InferLrn(absl::Span<const ValueType> x, Attributes& attributes) {
  constexpr double kMost = std::numeric_limits<float>::max();
  absl::Status status = CheckAtLeast("attribute size:", attributes.Int("size"), 1);
  if (status.ok()) status = CheckNumber(attributes, "alpha", 0, kMost);
  if (status.ok()) status = CheckNumber(attributes, "beta", 0, kMostBeta);
  // Above 0, so that no sum is 0.
  if (status.ok()) {
    status = CheckNumber(attributes, "bias", std::numeric_limits<float>::min(), kMost);
  }
  if (!status.ok()) return status;
  return InferSameShape(x, attributes);
}

// The neighbours of one place in all channels. `x` is the first channel's number.
template <typename T>
class ChannelLine {
 public:
  ChannelLine(const OpInstance& op, int64_t pixels, const T* x)
      : lrn_(LRN::Read(op.attributes)), channels_(op.x[0].shape[0]), pixels_(pixels), x_(x) {}

  double X(int64_t channel) const { return static_cast<double>(x_[channel * pixels_]); }
  // bias + alpha / size * sum of squares around a channel
  double Sum(int64_t channel) const {
    const int64_t last = std::min(channels_ - 1, channel + Behind());
    double sum = 0;
    for (int64_t i = std::max<int64_t>(0, channel - Before()); i <= last; ++i) sum += X(i) * X(i);
    return lrn_.bias + lrn_.alpha / static_cast<double>(lrn_.size) * sum;
  }
  // The gradient by a channel's x, of y's gradient `dy` of the first channel.
  double Gradient(int64_t channel, const T* dy) const {
    // Its neighbours are the channels that have it as a neighbour.
    const int64_t last = std::min(channels_ - 1, channel + Before());
    double others = 0;
    for (int64_t i = std::max<int64_t>(0, channel - Behind()); i <= last; ++i) {
      others += static_cast<double>(dy[i * pixels_]) * X(i) * PortablePow(Sum(i), -lrn_.beta - 1);
    }
    return static_cast<double>(dy[channel * pixels_]) * PortablePow(Sum(channel), -lrn_.beta) -
           2 * lrn_.alpha * lrn_.beta / static_cast<double>(lrn_.size) * X(channel) * others;
  }
  double Y(int64_t channel) const { return X(channel) * PortablePow(Sum(channel), -lrn_.beta); }

 private:
  // How many channels before and behind a channel are its neighbours; never more than there are.
  int64_t Before() const { return std::min(channels_, (lrn_.size - 1) / 2); }
  int64_t Behind() const { return std::min(channels_, lrn_.size / 2); }

  const LRN lrn_;
  const int64_t channels_, pixels_;
  const T* const x_;
};

// Calls visit(line, channel, place of its first channel, place) for each number of a batch.
template <typename T, typename Visit>
void ForLrn(const OpInstance& op, int64_t count, const T* x, Visit visit) {
  const Shape& shape = op.x[0].shape;
  const int64_t pixels = ElementsBetween(shape, 1, shape.size());
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      const int64_t first = n * shape[0] * pixels + pixel;
      const ChannelLine<T> line(op, pixels, x + first);
      for (int64_t c = 0; c < shape[0]; ++c) visit(line, c, first, first + c * pixels);
    }
  }
}

template <typename T>
void LrnForward(const ForwardCall<T>& call) {
  ForLrn(call.op, call.samples.count, call.x[0],
         [&](const ChannelLine<T>& line, int64_t channel, int64_t, int64_t at) {
           call.y[at] = static_cast<T>(line.Y(channel));
         });
}

template <typename T>
void LrnBackward(const BackwardCall<T>& call) {
  ForLrn(call.op, call.samples.count, call.x[0],
         [&](const ChannelLine<T>& line, int64_t channel, int64_t first, int64_t at) {
           call.dx[0][at] = static_cast<T>(static_cast<double>(call.dx[0][at]) +
                                           line.Gradient(channel, call.dy + first));
         });
}

}  // namespace

const OpDef& LRNOp() {
  static const OpDef& op =
      *new OpDef{.name = LRN::kName,
                 .attributes = {{"alpha", LRN().alpha},
                                {"beta", LRN().beta},
                                {"bias", LRN().bias},
                                {"size", LRN().size, /*required=*/true}},
                 .infer = InferLrn,
                 .reads = {.x = true},
                 .reference = {LrnForward<float>, LrnBackward<float>},
                 .reference_double = {LrnForward<double>, LrnBackward<double>}};
  return op;
}

}  // namespace capstan::training
