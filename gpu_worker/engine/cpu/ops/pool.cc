// Poolings, one plane of 16 samples at a time.
#include "training/ops/pool/pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gpu_worker/engine/cpu/blocked/kernel.h"

namespace capstan::engine {
namespace {

using training::Window;

struct PoolShape {
  PoolShape(const training::OpInstance& op, bool is_max)
      : window(training::ReadWindow(op.attributes)),
        max(is_max),
        include_pad(!is_max && training::AveragePool::Read(op.attributes).count_include_pad),
        channels(op.x[0].shape[0]),
        height(op.x[0].shape[1]),
        width(op.x[0].shape[2]),
        rows(op.inferred.output.shape[1]),
        columns(op.inferred.output.shape[2]) {}
  int64_t x_plane() const { return height * width * kSideBySide; }
  int64_t y_plane() const { return rows * columns * kSideBySide; }
  float Share(int64_t p, int64_t q) const {
    int64_t covered = 0;
    if (include_pad) {
      covered = window.kernel_shape[0] * window.kernel_shape[1];
    } else {
      training::ForWindow(window, height, width, p, q,
                          [&](int64_t, int64_t, int64_t) { ++covered; });
    }
    return 1.0f / static_cast<float>(covered);
  }

  const Window window;
  const bool max, include_pad;
  const int64_t channels, height, width, rows, columns;
};

// The larger one. A NaN on either side stays.
inline float LargerOf(float a, float b) { return b > a || b != b ? b : a; }

void ForwardPlane(const PoolShape& shape, const float* x, float* y) {
  for (int64_t p = 0; p < shape.rows; ++p) {
    for (int64_t q = 0; q < shape.columns; ++q, y += kSideBySide) {
      const float start = shape.max ? -std::numeric_limits<float>::infinity() : 0.0f;
      std::fill_n(y, kSideBySide, start);
      training::ForWindow(shape.window, shape.height, shape.width, p, q,
                          [&](int64_t h, int64_t w, int64_t) {
                            const float* const at = x + (h * shape.width + w) * kSideBySide;
                            for (int64_t l = 0; l < kSideBySide; ++l) {
                              y[l] = shape.max ? LargerOf(y[l], at[l]) : y[l] + at[l];
                            }
                          });
      if (shape.max) continue;
      const float share = shape.Share(p, q);
      for (int64_t l = 0; l < kSideBySide; ++l) y[l] *= share;
    }
  }
}

// The gradient of a maximum goes to the first of equal values.
void BackwardPlane(const PoolShape& shape, const float* x, const float* dy, float* dx) {
  for (int64_t p = 0; p < shape.rows; ++p) {
    for (int64_t q = 0; q < shape.columns; ++q, dy += kSideBySide) {
      if (!shape.max) {
        const float share = shape.Share(p, q);
        training::ForWindow(shape.window, shape.height, shape.width, p, q,
                            [&](int64_t h, int64_t w, int64_t) {
                              float* const to = dx + (h * shape.width + w) * kSideBySide;
                              for (int64_t l = 0; l < kSideBySide; ++l) to[l] += dy[l] * share;
                            });
        continue;
      }
      float largest[kSideBySide] = {};
      int64_t place[kSideBySide] = {};
      bool begun = false;
      training::ForWindow(
          shape.window, shape.height, shape.width, p, q, [&](int64_t h, int64_t w, int64_t) {
            const int64_t at = (h * shape.width + w) * kSideBySide;
            for (int64_t l = 0; l < kSideBySide; ++l) {
              const float v = x[at + l];
              const bool better = !begun || v > largest[l] || (v != v && largest[l] == largest[l]);
              if (better) largest[l] = v, place[l] = at;
            }
            begun = true;
          });
      for (int64_t l = 0; l < kSideBySide; ++l) dx[place[l] + l] += dy[l];
    }
  }
}

// The place of each sample's first largest number of a plane, or of its first NaN.
void FindLargest(const float* x, int64_t plane, int64_t (&place)[kSideBySide]) {
  float largest[kSideBySide];
  for (int64_t l = 0; l < kSideBySide; ++l) largest[l] = x[l], place[l] = 0;
  for (int64_t at = kSideBySide; at < plane; at += kSideBySide) {
    for (int64_t l = 0; l < kSideBySide; ++l) {
      const float v = x[at + l];
      const bool better = v > largest[l] || (v != v && largest[l] == largest[l]);
      if (better) largest[l] = v, place[l] = at;
    }
  }
}

}  // namespace

absl::StatusOr<NodePhases> MakePoolPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  const auto shape = std::make_shared<PoolShape>(graph.instance(node),
                                                 graph.def(node).name == training::MaxPool::kName);
  NodePhases phases;
  phases.kernel = "planes";
  const auto pieces = [channels = shape->channels](const BatchRun& run) {
    return run.blocks * channels;
  };
  phases.forward.push_back({0, pieces, [shape, places](const BatchRun&, int64_t piece, char*) {
                              ForwardPlane(*shape, places.x[0] + piece * shape->x_plane(),
                                           places.y + piece * shape->y_plane());
                            }});
  if (places.backward && places.dx[0].data != nullptr) {
    phases.backward.push_back({0, pieces, [shape, places](const BatchRun&, int64_t piece, char*) {
                                 float* const dx = places.dx[0].data + piece * shape->x_plane();
                                 if (!places.dx[0].add) std::fill_n(dx, shape->x_plane(), 0.0f);
                                 BackwardPlane(*shape, places.x[0] + piece * shape->x_plane(),
                                               places.dy + piece * shape->y_plane(), dx);
                               }});
  }
  return phases;
}

absl::StatusOr<NodePhases> MakeGlobalMaxPhases(const training::Graph& graph, int node,
                                               const NodePlaces& places) {
  const training::Shape& shape = graph.instance(node).x[0].shape;  // [channels][...]
  const int64_t channels = shape[0];
  const int64_t plane = training::Elements(shape) / channels * kSideBySide;
  NodePhases phases;
  phases.kernel = "planes";
  const auto pieces = [channels](const BatchRun& run) { return run.blocks * channels; };
  phases.forward.push_back({0, pieces, [=](const BatchRun&, int64_t piece, char*) {
                              int64_t place[kSideBySide];
                              const float* const x = places.x[0] + piece * plane;
                              FindLargest(x, plane, place);
                              float* const y = places.y + piece * kSideBySide;
                              for (int64_t l = 0; l < kSideBySide; ++l) y[l] = x[place[l] + l];
                            }});
  if (places.backward && places.dx[0].data != nullptr) {
    phases.backward.push_back({0, pieces, [=](const BatchRun&, int64_t piece, char*) {
                                 int64_t place[kSideBySide];
                                 FindLargest(places.x[0] + piece * plane, plane, place);
                                 float* const dx = places.dx[0].data + piece * plane;
                                 if (!places.dx[0].add) std::fill_n(dx, plane, 0.0f);
                                 const float* const dy = places.dy + piece * kSideBySide;
                                 for (int64_t l = 0; l < kSideBySide; ++l)
                                   dx[place[l] + l] += dy[l];
                               }});
  }
  return phases;
}

absl::StatusOr<NodePhases> MakeGlobalPoolPhases(const training::Graph& graph, int node,
                                                const NodePlaces& places) {
  const training::Shape& shape = graph.instance(node).x[0].shape;  // [channels][...]
  const int64_t channels = shape[0];
  const int64_t plane = training::Elements(shape) / channels * kSideBySide;
  const float share = static_cast<float>(kSideBySide) / static_cast<float>(plane);
  NodePhases phases;
  phases.kernel = "planes";
  const auto pieces = [channels](const BatchRun& run) { return run.blocks * channels; };
  phases.forward.push_back({0, pieces, [=](const BatchRun&, int64_t piece, char*) {
                              float* const y = places.y + piece * kSideBySide;
                              places.math->sum(plane, places.x[0] + piece * plane, y);
                              for (int64_t l = 0; l < kSideBySide; ++l) y[l] *= share;
                            }});
  if (places.backward && places.dx[0].data != nullptr) {
    phases.backward.push_back({0, pieces, [=](const BatchRun&, int64_t piece, char*) {
                                 const float* const dy = places.dy + piece * kSideBySide;
                                 float* const dx = places.dx[0].data + piece * plane;
                                 for (int64_t e = 0; e < plane; e += kSideBySide) {
                                   places.math->scale(kSideBySide, dy, share, dx + e,
                                                      places.dx[0].add);
                                 }
                               }});
  }
  return phases;
}

}  // namespace capstan::engine
