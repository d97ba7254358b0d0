#include "tests/contract/naive_network.h"

#include <cmath>
#include <limits>
#include <variant>

namespace capstan::testing {
namespace {

using training::Graph;
using training::GraphNode;
using training::Shape;
using training::Window;

// Calls visit(h, w, tap) for what the window at (p, q) covers, row by row.
template <typename Visit>
void ForWindow(const Window& window, const Shape& x, int64_t p, int64_t q, Visit visit) {
  for (int64_t r = 0; r < window.kernel_shape[0]; ++r) {
    for (int64_t s = 0; s < window.kernel_shape[1]; ++s) {
      const int64_t h = p * window.strides[0] + r * window.dilations[0] - window.pads[0];
      const int64_t w = q * window.strides[1] + s * window.dilations[1] - window.pads[1];
      if (h >= 0 && h < x[1] && w >= 0 && w < x[2]) visit(h, w, r * window.kernel_shape[1] + s);
    }
  }
}

// Calls visit(c, p, q) for every output of shape [C, P, Q].
template <typename Visit>
void ForOutputs(const Shape& y, Visit visit) {
  for (int64_t c = 0; c < y[0]; ++c) {
    for (int64_t p = 0; p < y[1]; ++p) {
      for (int64_t q = 0; q < y[2]; ++q) visit(c, p, q);
    }
  }
}

int64_t At(const Shape& shape, int64_t c, int64_t h, int64_t w) {
  return (c * shape[1] + h) * shape[2] + w;
}

// One node on one sample: forward fills y; backward adds to dx, dw and db.
class Layer {
 public:
  Layer(const Graph& graph, int index, const std::vector<Doubles>& parameters)
      : node_(graph.nodes()[index]),
        x_shape_(graph.value_shape(node_.inputs[0])),
        y_shape_(graph.value_shape(graph.output_of(index))) {
    if (graph.weight_of(index) >= 0) weight_ = &parameters[graph.weight_of(index)];
    if (graph.bias_of(index) >= 0) bias_ = &parameters[graph.bias_of(index)];
  }

  void Forward(const double* x, double* y) const {
    if (const auto* conv = std::get_if<training::Conv>(&node_.op)) {
      const int64_t taps = conv->window.kernel_shape[0] * conv->window.kernel_shape[1];
      ForOutputs(y_shape_, [&](int64_t k, int64_t p, int64_t q) {
        double sum = bias_ == nullptr ? 0 : (*bias_)[k];
        for (int64_t c = 0; c < x_shape_[0]; ++c) {
          ForWindow(conv->window, x_shape_, p, q, [&](int64_t h, int64_t w, int64_t tap) {
            sum += x[At(x_shape_, c, h, w)] * (*weight_)[(k * x_shape_[0] + c) * taps + tap];
          });
        }
        y[At(y_shape_, k, p, q)] = sum;
      });
    } else if (const auto* max_pool = std::get_if<training::MaxPool>(&node_.op)) {
      ForOutputs(y_shape_, [&](int64_t c, int64_t p, int64_t q) {
        y[At(y_shape_, c, p, q)] = x[Largest(max_pool->window, x, c, p, q)];
      });
    } else if (const auto* average_pool = std::get_if<training::AveragePool>(&node_.op)) {
      ForOutputs(y_shape_, [&](int64_t c, int64_t p, int64_t q) {
        double sum = 0;
        ForWindow(average_pool->window, x_shape_, p, q,
                  [&](int64_t h, int64_t w, int64_t) { sum += x[At(x_shape_, c, h, w)]; });
        y[At(y_shape_, c, p, q)] = sum / Covered(average_pool->window, p, q);
      });
    } else if (std::holds_alternative<training::Gemm>(node_.op)) {
      for (int64_t o = 0; o < y_shape_[0]; ++o) {
        y[o] = bias_ == nullptr ? 0 : (*bias_)[o];
        for (int64_t i = 0; i < x_shape_[0]; ++i) y[o] += (*weight_)[o * x_shape_[0] + i] * x[i];
      }
    } else {
      const bool relu = std::holds_alternative<training::Relu>(node_.op);
      for (int64_t i = 0; i < Size(x_shape_); ++i) y[i] = relu && x[i] < 0 ? 0 : x[i];
    }
  }

  void Backward(const double* x, const double* dy, double* dx, Doubles* dw, Doubles* db) const {
    if (const auto* conv = std::get_if<training::Conv>(&node_.op)) {
      const int64_t taps = conv->window.kernel_shape[0] * conv->window.kernel_shape[1];
      ForOutputs(y_shape_, [&](int64_t k, int64_t p, int64_t q) {
        const double d = dy[At(y_shape_, k, p, q)];
        if (db != nullptr) (*db)[k] += d;
        for (int64_t c = 0; c < x_shape_[0]; ++c) {
          ForWindow(conv->window, x_shape_, p, q, [&](int64_t h, int64_t w, int64_t tap) {
            const int64_t at = (k * x_shape_[0] + c) * taps + tap;
            (*dw)[at] += d * x[At(x_shape_, c, h, w)];
            dx[At(x_shape_, c, h, w)] += d * (*weight_)[at];
          });
        }
      });
    } else if (const auto* max_pool = std::get_if<training::MaxPool>(&node_.op)) {
      ForOutputs(y_shape_, [&](int64_t c, int64_t p, int64_t q) {
        dx[Largest(max_pool->window, x, c, p, q)] += dy[At(y_shape_, c, p, q)];
      });
    } else if (const auto* average_pool = std::get_if<training::AveragePool>(&node_.op)) {
      ForOutputs(y_shape_, [&](int64_t c, int64_t p, int64_t q) {
        const double d = dy[At(y_shape_, c, p, q)] / Covered(average_pool->window, p, q);
        ForWindow(average_pool->window, x_shape_, p, q,
                  [&](int64_t h, int64_t w, int64_t) { dx[At(x_shape_, c, h, w)] += d; });
      });
    } else if (std::holds_alternative<training::Gemm>(node_.op)) {
      for (int64_t o = 0; o < y_shape_[0]; ++o) {
        if (db != nullptr) (*db)[o] += dy[o];
        for (int64_t i = 0; i < x_shape_[0]; ++i) {
          (*dw)[o * x_shape_[0] + i] += dy[o] * x[i];
          dx[i] += dy[o] * (*weight_)[o * x_shape_[0] + i];
        }
      }
    } else {
      const bool relu = std::holds_alternative<training::Relu>(node_.op);
      for (int64_t i = 0; i < Size(x_shape_); ++i) dx[i] += relu && !(x[i] > 0) ? 0 : dy[i];
    }
  }

 private:
  static int64_t Size(const Shape& shape) {
    int64_t size = 1;
    for (const int64_t d : shape) size *= d;
    return size;
  }
  int64_t Largest(const Window& window, const double* x, int64_t c, int64_t p, int64_t q) const {
    int64_t largest = -1;
    ForWindow(window, x_shape_, p, q, [&](int64_t h, int64_t w, int64_t) {
      const int64_t at = At(x_shape_, c, h, w);
      if (largest < 0 || x[at] > x[largest]) largest = at;
    });
    return largest;
  }
  double Covered(const Window& window, int64_t p, int64_t q) const {
    double count = 0;
    ForWindow(window, x_shape_, p, q, [&](int64_t, int64_t, int64_t) { ++count; });
    return count;
  }

  const GraphNode& node_;
  const Shape& x_shape_;
  const Shape& y_shape_;
  const Doubles* weight_ = nullptr;
  const Doubles* bias_ = nullptr;
};

}  // namespace

NaiveResult RunNaive(const Graph& graph, const std::vector<Doubles>& parameters,
                     const Doubles& images, const std::vector<int32_t>& labels, double loss_scale) {
  NaiveResult result;
  for (const training::Parameter& parameter : graph.parameters()) {
    result.gradients.emplace_back(parameter.elements, 0.0);
  }
  const int loss = static_cast<int>(graph.nodes().size()) - 1;
  const int logits_value = graph.nodes()[loss].inputs[0];
  const int64_t classes = graph.num_classes();
  const int64_t image_size = graph.value_elements(0);
  for (size_t n = 0; n < labels.size(); ++n) {
    std::vector<Doubles> values(graph.value_count()), gradients(graph.value_count());
    for (int v = 0; v < graph.value_count(); ++v) {
      values[v].resize(graph.value_elements(v));
      gradients[v].assign(graph.value_elements(v), 0.0);
    }
    values[0].assign(images.begin() + n * image_size, images.begin() + (n + 1) * image_size);
    for (int i = 0; i < loss; ++i) {
      Layer(graph, i, parameters)
          .Forward(values[graph.nodes()[i].inputs[0]].data(), values[graph.output_of(i)].data());
    }

    const Doubles& z = values[logits_value];
    result.logits.insert(result.logits.end(), z.begin(), z.end());
    int64_t best = 0;
    for (int64_t k = 1; k < classes; ++k) best = z[k] > z[best] ? k : best;
    double sum = 0;
    for (int64_t k = 0; k < classes; ++k) sum += std::exp(z[k] - z[best]);
    result.loss_sum += std::log(sum) + z[best] - z[labels[n]];
    result.correct += best == labels[n];
    for (int64_t k = 0; k < classes; ++k) {
      const double softmax = std::exp(z[k] - z[best]) / sum;
      gradients[logits_value][k] = loss_scale * (softmax - (k == labels[n] ? 1 : 0));
    }

    for (int i = loss - 1; i >= 0; --i) {
      const int x = graph.nodes()[i].inputs[0];
      const int weight = graph.weight_of(i), bias = graph.bias_of(i);
      Layer(graph, i, parameters)
          .Backward(values[x].data(), gradients[graph.output_of(i)].data(), gradients[x].data(),
                    weight < 0 ? nullptr : &result.gradients[weight],
                    bias < 0 ? nullptr : &result.gradients[bias]);
    }
  }
  return result;
}

}  // namespace capstan::testing
