#include <cmath>

#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

// The numbers of one channel in a batch.
class BatchChannels {
 public:
  BatchChannels(const OpInstance& op, const SampleInfo& samples)
      : channels(op.x[0].shape[0]),
        pixels_(Elements(op.x[0].shape) / channels),
        count_(samples.count) {}

  // Calls visit(place) for each number of a channel, sample by sample.
  template <typename Visit>
  void ForPlaces(int64_t channel, Visit visit) const {
    for (int64_t n = 0; n < count_; ++n) {
      const int64_t first = (n * channels + channel) * pixels_;
      for (int64_t i = 0; i < pixels_; ++i) visit(first + i);
    }
  }
  int64_t size() const { return count_ * pixels_; }  // of one channel

  const int64_t channels;

 private:
  const int64_t pixels_;
  const int64_t count_;
};

struct Moments {
  double mean = 0;
  double variance = 0;  // biased
};

template <typename T>
Moments MomentsOf(const BatchChannels& batch, int64_t channel, const T* x) {
  const double n = static_cast<double>(batch.size());
  Moments moments;
  batch.ForPlaces(channel, [&](int64_t at) { moments.mean += static_cast<double>(x[at]); });
  moments.mean /= n;
  batch.ForPlaces(channel, [&](int64_t at) {
    const double distance = static_cast<double>(x[at]) - moments.mean;
    moments.variance += distance * distance;
  });
  moments.variance /= n;
  return moments;
}

}  // namespace

template <typename T>
void BatchNormalizationForward(const ForwardCall<T>& call) {
  using Op = BatchNormalization;
  const BatchChannels batch(call.op, call.samples);
  const double epsilon = Op::Read(call.op.attributes).epsilon;
  for (int64_t c = 0; c < batch.channels; ++c) {
    Moments moments;
    if (call.samples.training) {
      moments = MomentsOf(batch, c, call.x[0]);
      const double n = static_cast<double>(batch.size());
      call.statistics[Op::kRunningMean][c] = static_cast<T>(moments.mean);
      call.statistics[Op::kRunningVar][c] =
          static_cast<T>(n > 1 ? moments.variance * (n / (n - 1)) : moments.variance);
    } else {
      moments.mean = static_cast<double>(call.parameters[Op::kRunningMean][c]);
      moments.variance = static_cast<double>(call.parameters[Op::kRunningVar][c]);
    }
    const double scale = 1 / std::sqrt(moments.variance + epsilon);
    if (call.samples.training) {
      call.saved[Op::kSavedMean][c] = static_cast<T>(moments.mean);
      call.saved[Op::kSavedScale][c] = static_cast<T>(scale);
    }
    const double weight = static_cast<double>(call.parameters[Op::kWeight][c]);
    const double bias = static_cast<double>(call.parameters[Op::kBias][c]);
    batch.ForPlaces(c, [&](int64_t at) {
      const double x = static_cast<double>(call.x[0][at]);
      call.y[at] = static_cast<T>(weight * ((x - moments.mean) * scale) + bias);
    });
  }
}

// With z = (x - mean) * scale: dbias = sum dy, dweight = sum dy * z, and
// dx = weight * scale * (dy - dbias / n - z * dweight / n).
template <typename T>
void BatchNormalizationBackward(const BackwardCall<T>& call) {
  using Op = BatchNormalization;
  const BatchChannels batch(call.op, call.samples);
  const double n = static_cast<double>(batch.size());
  SumOver<T> dweight(call.dparameters[Op::kWeight], batch.channels);
  SumOver<T> dbias(call.dparameters[Op::kBias], batch.channels);
  for (int64_t c = 0; c < batch.channels; ++c) {
    const double mean = static_cast<double>(call.saved[Op::kSavedMean][c]);
    const double scale = static_cast<double>(call.saved[Op::kSavedScale][c]);
    const double weight = static_cast<double>(call.parameters[Op::kWeight][c]);
    const auto normal = [&](int64_t at) {
      return (static_cast<double>(call.x[0][at]) - mean) * scale;
    };
    double sum = 0, product = 0;
    batch.ForPlaces(c, [&](int64_t at) {
      sum += static_cast<double>(call.dy[at]);
      product += static_cast<double>(call.dy[at]) * normal(at);
    });
    dbias.Add(c, sum);
    dweight.Add(c, product);
    if (call.dx[0] == nullptr) continue;
    batch.ForPlaces(c, [&](int64_t at) {
      const double d =
          weight * scale * (static_cast<double>(call.dy[at]) - sum / n - normal(at) * product / n);
      call.dx[0][at] = static_cast<T>(static_cast<double>(call.dx[0][at]) + d);
    });
  }
}

template void BatchNormalizationForward(const ForwardCall<float>&);
template void BatchNormalizationForward(const ForwardCall<double>&);
template void BatchNormalizationBackward(const BackwardCall<float>&);
template void BatchNormalizationBackward(const BackwardCall<double>&);

}  // namespace capstan::training
