// Convolution and dense layer in plain loops: the fallback, and the whole of builds without oneDNN.
// The inner loop runs over channels that lie side by side, so that a compiler makes vectors of it.
#include <cstring>
#include <utility>

#include "gpu_worker/engine/cpu/aligned.h"
#include "gpu_worker/engine/cpu/linear.h"

namespace capstan::engine {
namespace {

// y[i] += a * x[i].
inline void AddScaled(int64_t size, float a, const float* __restrict x, float* __restrict y) {
  for (int64_t i = 0; i < size; ++i) y[i] += a * x[i];
}

class PlainLinear : public LinearKernel {
 public:
  PlainLinear(const LinearGeometry& geometry, int64_t batch, AlignedBytes weights)
      : g_(geometry), batch_(batch), weights_(std::move(weights)) {}

  // Floats of: weights [kh, kw, in, out], weights [kh, kw, out, in], bias.
  static int64_t WeightFloats(const LinearGeometry& g) {
    return 2 * g.weight_elements() + g.out_channels;
  }

  std::vector<std::string> Describe() const override { return {"all: plain loops"}; }
  int64_t scratch_bytes() const override { return g_.weight_elements() * 4; }
  int64_t weight_bytes() const override { return WeightFloats(g_) * 4; }

  absl::Status LoadWeights(const float* weight, const float* bias) override {
    const int64_t taps = g_.window.kernel_shape[0] * g_.window.kernel_shape[1];
    const int64_t in = g_.in_channels, out = g_.out_channels;
    float* const by_in = in_out();
    float* const by_out = out_in();
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        for (int64_t t = 0; t < taps; ++t) {
          const float w = weight[(o * in + i) * taps + t];
          by_in[(t * in + i) * out + o] = w;
          by_out[(t * out + o) * in + i] = w;
        }
      }
    }
    float* const own_bias = by_out + g_.weight_elements();
    if (g_.bias) std::memcpy(own_bias, bias, static_cast<size_t>(out) * sizeof(float));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<LinearCalls>> Bind(const LinearBuffers& buffers) override;

  const LinearGeometry& geometry() const { return g_; }
  int64_t batch() const { return batch_; }
  float* in_out() const { return reinterpret_cast<float*>(weights_.get()); }
  float* out_in() const { return in_out() + g_.weight_elements(); }
  const float* bias() const { return out_in() + g_.weight_elements(); }

 private:
  const LinearGeometry g_;
  const int64_t batch_;
  const AlignedBytes weights_;
};

class PlainCalls : public LinearCalls {
 public:
  PlainCalls(const PlainLinear& kernel, const LinearBuffers& buffers)
      : k_(kernel), g_(kernel.geometry()), b_(buffers) {}

  absl::Status Forward() override {
    const int64_t out = g_.out_channels;
    for (int64_t at = 0; at < k_.batch() * g_.out_h * g_.out_w; ++at) {
      if (g_.bias) {
        std::memcpy(b_.y + at * out, k_.bias(), static_cast<size_t>(out) * sizeof(float));
      } else {
        std::memset(b_.y + at * out, 0, static_cast<size_t>(out) * sizeof(float));
      }
    }
    ForTaps([this, out](int64_t x, int64_t y, int64_t tap) {
      for (int64_t i = 0; i < g_.in_channels; ++i) {
        AddScaled(out, b_.x[x + i], k_.in_out() + (tap * g_.in_channels + i) * out, b_.y + y);
      }
    });
    return absl::OkStatus();
  }

  absl::Status BackwardWeights(float* weight, float* bias) override {
    const int64_t in = g_.in_channels, out = g_.out_channels;
    const int64_t taps = g_.window.kernel_shape[0] * g_.window.kernel_shape[1];
    float* const by_in = reinterpret_cast<float*>(b_.scratch);
    std::memset(by_in, 0, static_cast<size_t>(g_.weight_elements()) * sizeof(float));
    ForTaps([this, in, out, by_in](int64_t x, int64_t y, int64_t tap) {
      for (int64_t i = 0; i < in; ++i) {
        AddScaled(out, b_.x[x + i], b_.dy + y, by_in + (tap * in + i) * out);
      }
    });
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        for (int64_t t = 0; t < taps; ++t) {
          weight[(o * in + i) * taps + t] = by_in[(t * in + i) * out + o];
        }
      }
    }
    if (bias != nullptr) {
      std::memset(bias, 0, static_cast<size_t>(out) * sizeof(float));
      for (int64_t at = 0; at < k_.batch() * g_.out_h * g_.out_w; ++at) {
        AddScaled(out, 1.0f, b_.dy + at * out, bias);
      }
    }
    return absl::OkStatus();
  }

  absl::Status BackwardData() override {
    const int64_t in = g_.in_channels, out = g_.out_channels;
    std::memset(b_.dx, 0, static_cast<size_t>(k_.batch() * g_.in_h * g_.in_w * in) * sizeof(float));
    ForTaps([this, in, out](int64_t x, int64_t y, int64_t tap) {
      for (int64_t o = 0; o < out; ++o) {
        AddScaled(in, b_.dy[y + o], k_.out_in() + (tap * out + o) * in, b_.dx + x);
      }
    });
    return absl::OkStatus();
  }

 private:
  // Calls visit(offset of the input pixel, offset of the output pixel, tap) for all pairs that
  // meet.
  template <typename Visit>
  void ForTaps(Visit visit) const {
    const training::Window& w = g_.window;
    for (int64_t n = 0; n < k_.batch(); ++n) {
      for (int64_t p = 0; p < g_.out_h; ++p) {
        for (int64_t r = 0; r < w.kernel_shape[0]; ++r) {
          const int64_t h = p * w.strides[0] + r * w.dilations[0] - w.pads[0];
          if (h < 0 || h >= g_.in_h) continue;
          for (int64_t q = 0; q < g_.out_w; ++q) {
            for (int64_t s = 0; s < w.kernel_shape[1]; ++s) {
              const int64_t v = q * w.strides[1] + s * w.dilations[1] - w.pads[1];
              if (v < 0 || v >= g_.in_w) continue;
              visit(((n * g_.in_h + h) * g_.in_w + v) * g_.in_channels,
                    ((n * g_.out_h + p) * g_.out_w + q) * g_.out_channels,
                    r * w.kernel_shape[1] + s);
            }
          }
        }
      }
    }
  }

  const PlainLinear& k_;
  const LinearGeometry& g_;
  const LinearBuffers b_;
};

absl::StatusOr<std::unique_ptr<LinearCalls>> PlainLinear::Bind(const LinearBuffers& buffers) {
  return std::make_unique<PlainCalls>(*this, buffers);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinearKernel>> MakePlainLinear(const LinearGeometry& geometry,
                                                              int64_t batch) {
  absl::StatusOr<AlignedBytes> weights =
      AllocateAligned(PlainLinear::WeightFloats(geometry) * 4, "weights");
  if (!weights.ok()) return weights.status();
  return std::make_unique<PlainLinear>(geometry, batch, *std::move(weights));
}

}  // namespace capstan::engine
