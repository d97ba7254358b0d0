#include "gpu_worker/engine/cpu/blocked/direct.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace capstan::engine {
namespace {

constexpr int64_t kRun = kTileOutputs;  // outputs that lie side by side in packed weights
constexpr int64_t kMostFactors = 768;   // of an output, at a time
// Bytes of y and of x in a band: shares of an L2 cache.
constexpr int64_t kBandBytes = 384 << 10, kCopyBytes = 384 << 10;
constexpr int64_t kMostOutputs = 512, kFewestOutputs = 64;  // of a piece
constexpr int64_t kFewestPieces = 8;
// Groups of one channel and one output, i.e. of depthwise convolutions: places of a piece, and the
// bytes of x in a band, a share of an L1 cache.
constexpr int64_t kDepthwisePlaces = 512, kDepthwiseCopyBytes = 24 << 10;

// The rows or columns of a pass. Unit u reads `window` places of x, from u * x_step + x_shift on.
struct Axis {
  int64_t first = 0, last = 0;  // units
  int64_t x_step = 1, x_shift = 0;
  int64_t window = 1;
  int64_t y_step = 1;
  // If units do not overlap, the places between them are not copied.
  int64_t copied_step() const { return std::min(x_step, window); }
  int64_t copied(int64_t units) const { return (units - 1) * copied_step() + window; }
  // The place of x of the k-th copied place for units from `unit` on.
  int64_t place(int64_t unit, int64_t k) const {
    return x_shift +
           (x_step <= window ? unit * x_step + k : (unit + k / window) * x_step + k % window);
  }
};

// Units whose places of y meet the same places of the kernel. Unit u stands for u * y_step + shift.
struct PlaceClass {
  int64_t first[2] = {}, last[2] = {}, shift[2] = {};
  std::vector<int64_t> taps;     // of the kernel: r * kernel width + s
  std::vector<int64_t> offsets;  // of the places that taps read, from the unit's first copied place
  std::vector<PlaceOffsets> places;  // of a band
  int64_t packed = 0;                // start of its weights within a group
  int64_t columns() const { return last[1] - first[1]; }
};

// y[o][places] = sum over c and taps of w * x[c][places], or added to y, in each of `groups`.
struct DirectPass {
  int64_t groups = 1;
  int64_t channels = 0, height = 0, width = 0;  // of x
  int64_t outputs = 0, rows = 0, columns = 0;   // of y
  Axis axes[2];
  std::vector<PlaceClass> classes;
  const float* x = nullptr;
  float* y = nullptr;
  bool add = false;
  const BlockedMath* math = nullptr;
  // Strides of weights in the flat vector, from one output or channel to the next.
  int64_t weights = 0, output_stride = 0, channel_stride = 0;
  int64_t bias = -1;  // offset; -1: no bias

  int64_t x_plane() const { return height * width * kSideBySide; }
  int64_t y_plane() const { return rows * columns * kSideBySide; }
  bool depthwise() const { return channels == 1 && outputs == 1; }
};

DirectPass ForwardPass(const DirectConv& conv, const NodePlaces& places) {
  DirectPass pass;
  pass.groups = conv.groups;
  pass.channels = conv.channels;
  pass.height = conv.height;
  pass.width = conv.width;
  pass.outputs = conv.outputs;
  pass.rows = conv.rows;
  pass.columns = conv.columns;
  pass.x = places.x[0];
  pass.y = places.y;
  pass.output_stride = conv.channels * conv.tap_count();
  pass.channel_stride = conv.tap_count();
  PlaceClass all;
  for (int axis = 0; axis < 2; ++axis) {
    all.last[axis] = axis == 0 ? conv.rows : conv.columns;
    pass.axes[axis] = {
        0, all.last[axis], conv.window.strides[axis], -conv.window.pads[axis], conv.reach(axis), 1};
  }
  pass.classes.push_back(std::move(all));
  return pass;
}

// Units are places of y of the forward pass, with a margin. Unit u meets places of dx from u *
// stride - pad on.
DirectPass DataPass(const DirectConv& conv, const NodePlaces& places) {
  DirectPass pass;
  pass.groups = conv.groups;
  pass.channels = conv.outputs;
  pass.height = conv.rows;
  pass.width = conv.columns;
  pass.outputs = conv.channels;
  pass.rows = conv.height;
  pass.columns = conv.width;
  pass.x = places.dy;
  pass.y = places.dx[0].data;
  pass.add = places.dx[0].add;
  pass.output_stride = conv.tap_count();
  pass.channel_stride = conv.channels * conv.tap_count();
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t stride = conv.window.strides[axis], pad = conv.window.pads[axis];
    const int64_t before = (conv.reach(axis) - 1) / stride;
    const int64_t size = axis == 0 ? conv.height : conv.width;
    pass.axes[axis] = {pad / stride, (size - 1 + pad) / stride + 1, 1, -before, before + 1, stride};
  }
  for (int64_t a = 0; a < conv.window.strides[0]; ++a) {
    for (int64_t b = 0; b < conv.window.strides[1]; ++b) {
      PlaceClass of;
      bool empty = false;
      for (int axis = 0; axis < 2; ++axis) {
        const int64_t stride = conv.window.strides[axis], remainder = axis == 0 ? a : b;
        const int64_t size = axis == 0 ? conv.height : conv.width;
        of.shift[axis] = remainder - conv.window.pads[axis];
        of.first[axis] = of.shift[axis] >= 0 ? 0 : CeilDivide(-of.shift[axis], stride);
        of.last[axis] = of.shift[axis] >= size ? 0 : (size - 1 - of.shift[axis]) / stride + 1;
        empty = empty || of.first[axis] >= of.last[axis];
      }
      if (!empty) pass.classes.push_back(std::move(of));
    }
  }
  return pass;
}

class DirectKernel {
 public:
  DirectKernel(const DirectConv& conv, DirectPass pass, bool data)
      : pass_(std::move(pass)), runs_(CeilDivide(pass_.outputs, kRun)) {
    const Axis &down = pass_.axes[0], &across = pass_.axes[1];
    const int64_t units = across.last - across.first;
    copied_columns_ = across.copied(units);
    int64_t taps = 1;
    for (PlaceClass& of : pass_.classes) {
      AddTaps(conv, data, of);
      taps = std::max(taps, static_cast<int64_t>(of.taps.size()));
    }
    const int64_t row_floats = down.window * copied_columns_ * kSideBySide;
    const int64_t most =
        std::max<int64_t>(1, std::min(kMostFactors / taps, kCopyBytes / 4 / row_floats));
    const int64_t blocks = CeilDivide(pass_.channels, most);
    channels_ = CeilDivide(pass_.channels, blocks);
    // A row of y of one unit has as many columns as units have places.
    const int64_t row_bytes =
        std::min(pass_.outputs, kMostOutputs) * down.y_step * pass_.columns * 64;
    const int64_t rows = blocks > 1 ? kBandBytes / row_bytes : kBandBytes;
    const int64_t copied_rows =
        pass_.depthwise() ? std::max(kDepthwiseCopyBytes / (copied_columns_ * 64), 4 * down.window)
                          : kCopyBytes / (channels_ * copied_columns_ * 64);
    band_ =
        std::clamp<int64_t>(std::min(rows, (copied_rows - down.window) / down.copied_step() + 1), 1,
                            down.last - down.first);
    // An odd number of cache lines, so that channels do not map to the same cache set.
    copied_plane_ = (down.copied(band_) * copied_columns_ | 1) * kSideBySide;
    int64_t packed = 0;
    for (PlaceClass& of : pass_.classes) {
      of.packed = packed;
      packed += pass_.channels * static_cast<int64_t>(of.taps.size()) * runs_ * kRun;
      for (int64_t u = 0; u < band_; ++u) {
        for (int64_t v = of.first[1]; v < of.last[1]; ++v) {
          of.places.push_back(
              {(u * down.copied_step() * copied_columns_ +
                (v - across.first) * across.copied_step()) *
                   kSideBySide,
               (u * down.y_step * pass_.columns + v * across.y_step + of.shift[1]) * kSideBySide});
        }
      }
    }
    group_floats_ = packed;
  }

  absl::Status Make(const std::shared_ptr<DirectKernel>& self, NodePhases& phases,
                    std::vector<Phase>& to) {
    const absl::StatusOr<float*> memory =
        KernelMemory(phases, pass_.groups * group_floats_, phases.weight_bytes);
    if (!memory.ok()) return memory.status();
    packed_ = *memory;
    phases.load.push_back(
        {0, FixedPieces(pass_.groups * runs_),
         [self](const BatchRun& run, int64_t piece, char*) { self->Pack(run.weights, piece); }});
    to.push_back({channels_ * copied_plane_ * 4,
                  [self](const BatchRun& run) {
                    return run.blocks * self->Bands() * self->GroupRuns() * self->Cuts(run.blocks);
                  },
                  [self](const BatchRun& run, int64_t piece, char* scratch) {
                    self->Run(run, piece, reinterpret_cast<float*>(scratch));
                  }});
    return absl::OkStatus();
  }

 private:
  void AddTaps(const DirectConv& conv, bool data, PlaceClass& of) const {
    const training::Window& window = conv.window;
    // The position of the kernel's place `k` in this class; -1: they do not meet.
    const auto place = [&](int axis, int64_t k) -> int64_t {
      const int64_t at = k * window.dilations[axis];
      if (!data) return at;
      const int64_t remainder = of.shift[axis] + window.pads[axis];
      const int64_t back = at - remainder;
      if (back % window.strides[axis] != 0) return -1;
      return pass_.axes[axis].window - 1 - back / window.strides[axis];
    };
    for (int64_t r = 0; r < window.kernel_shape[0]; ++r) {
      for (int64_t s = 0; s < window.kernel_shape[1]; ++s) {
        const int64_t row = place(0, r), column = place(1, s);
        if (row < 0 || column < 0) continue;
        of.taps.push_back(r * window.kernel_shape[1] + s);
        of.offsets.push_back((row * copied_columns_ + column) * kSideBySide);
      }
    }
  }

  int64_t Bands() const { return CeilDivide(pass_.axes[0].last - pass_.axes[0].first, band_); }
  // Groups of one channel and one output have little work, so a piece has several.
  int64_t GroupsOfPiece() const {
    if (!pass_.depthwise()) return 1;
    return std::clamp<int64_t>(kDepthwisePlaces / (pass_.rows * pass_.columns), 1, pass_.groups);
  }
  int64_t GroupRuns() const { return CeilDivide(pass_.groups, GroupsOfPiece()); }
  // Number of cuts of a group's outputs, so that there are enough pieces and none is too large.
  int64_t Cuts(int64_t blocks) const {
    const int64_t wanted = CeilDivide(kFewestPieces, blocks * Bands() * pass_.groups);
    const int64_t most = std::max<int64_t>(1, pass_.outputs / kFewestOutputs);
    return std::max(std::min(wanted, most), CeilDivide(pass_.outputs, kMostOutputs));
  }

  // By class, group of channels and run of outputs: [channel][tap][16 outputs], with zeros after
  // the last output.
  float* PackedOf(const PlaceClass& of, int64_t group, int64_t channel, int64_t channels,
                  int64_t run) const {
    const auto taps = static_cast<int64_t>(of.taps.size());
    return packed_ + group * group_floats_ + of.packed +
           (channel * runs_ + run * channels) * taps * kRun;
  }

  void Pack(const float* flat, int64_t piece) const {
    const int64_t group = piece / runs_, run = piece % runs_;
    const int64_t outputs = std::min(kRun, pass_.outputs - run * kRun);
    const float* const from = flat + pass_.weights +
                              group * pass_.outputs * pass_.channels *
                                  std::min(pass_.output_stride, pass_.channel_stride) +
                              run * kRun * pass_.output_stride;
    for (const PlaceClass& of : pass_.classes) {
      for (int64_t first = 0; first < pass_.channels; first += channels_) {
        const int64_t channels = std::min(channels_, pass_.channels - first);
        float* to = PackedOf(of, group, first, channels, run);
        for (int64_t c = first; c < first + channels; ++c) {
          for (const int64_t tap : of.taps) {
            const float* const at = from + c * pass_.channel_stride + tap;
            for (int64_t o = 0; o < kRun; ++o) {
              to[o] = o < outputs ? at[o * pass_.output_stride] : 0;
            }
            to += kRun;
          }
        }
      }
    }
  }

  void Run(const BatchRun& run, int64_t piece, float* copied) const {
    const int64_t cuts = Cuts(run.blocks);
    const int64_t first = piece / cuts % GroupRuns() * GroupsOfPiece();
    Place place;
    place.cut = piece % cuts;
    place.band = piece / cuts / GroupRuns() % Bands();
    place.block = piece / cuts / GroupRuns() / Bands();
    for (place.group = first; place.group < std::min(first + GroupsOfPiece(), pass_.groups);
         ++place.group) {
      RunGroup(run, place, copied);
    }
  }

  struct Place {
    int64_t block = 0, band = 0, group = 0, cut = 0;
  };

  void RunGroup(const BatchRun& run, const Place& place, float* copied) const {
    const auto [block, band, group, cut] = place;
    const int64_t cuts = Cuts(run.blocks);
    const int64_t first_run = runs_ * cut / cuts, last_run = runs_ * (cut + 1) / cuts;
    const int64_t unit = pass_.axes[0].first + band * band_;
    const int64_t units = std::min(band_, pass_.axes[0].last - unit);
    const float* const x =
        pass_.x + (block * pass_.groups + group) * pass_.channels * pass_.x_plane();
    const int64_t output = group * pass_.outputs + first_run * kRun;
    PlaceProductsCall call;
    call.channel_stride = copied_plane_;
    call.outputs = std::min(last_run * kRun, pass_.outputs) - first_run * kRun;
    call.y_plane = pass_.y_plane();
    float* const y = pass_.y + (block * pass_.groups * pass_.outputs + output) * pass_.y_plane();
    for (int64_t first = 0; first < pass_.channels; first += channels_) {
      call.channels = std::min(channels_, pass_.channels - first);
      Copy(x + first * pass_.x_plane(), call.channels, unit, units, copied);
      call.bias = first > 0 || pass_.bias < 0 ? nullptr : run.weights + pass_.bias + output;
      call.add = first > 0 || pass_.add;
      for (const PlaceClass& of : pass_.classes) {
        call.tap_count = static_cast<int64_t>(of.taps.size());
        if (call.tap_count == 0 && call.add) continue;
        const int64_t from = std::max(unit, of.first[0]);
        const int64_t last = std::min(unit + units, of.last[0]);
        if (from >= last) continue;
        call.taps = of.offsets.data();
        call.x =
            copied + (from - unit) * pass_.axes[0].copied_step() * copied_columns_ * kSideBySide;
        call.places = of.places.data();
        call.count = (last - from) * of.columns();
        call.weights = PackedOf(of, group, first, call.channels, first_run);
        call.next_run = call.channels * call.tap_count * kRun;
        call.y = y + (from * pass_.axes[0].y_step + of.shift[0]) * pass_.columns * kSideBySide;
        pass_.math->place_products(call);
      }
    }
  }

  void Copy(const float* x, int64_t channels, int64_t unit, int64_t units, float* to) const {
    const Axis &down = pass_.axes[0], &across = pass_.axes[1];
    const int64_t rows = down.copied(units);
    for (int64_t c = 0; c < channels; ++c, x += pass_.x_plane(), to += copied_plane_) {
      for (int64_t k = 0; k < rows; ++k) {
        float* const row = to + k * copied_columns_ * kSideBySide;
        const int64_t h = down.place(unit, k);
        if (across.x_step <= across.window || h < 0 || h >= pass_.height) {
          CopyRows({pass_.height, pass_.width, h, across.place(across.first, 0)}, x, 1,
                   copied_columns_, row);
          continue;
        }
        for (int64_t i = 0; i < copied_columns_; ++i) {
          const int64_t w = across.place(across.first, i);
          if (w < 0 || w >= pass_.width) {
            std::fill_n(row + i * kSideBySide, kSideBySide, 0.0f);
          } else {
            std::memcpy(row + i * kSideBySide, x + (h * pass_.width + w) * kSideBySide,
                        kSideBySide * sizeof(float));
          }
        }
      }
    }
  }

  DirectPass pass_;
  const int64_t runs_;    // of 16 outputs
  int64_t channels_ = 0;  // processed together
  int64_t band_ = 0;      // units
  int64_t copied_columns_ = 0, copied_plane_ = 0;
  int64_t group_floats_ = 0;  // of packed weights
  float* packed_ = nullptr;
};

}  // namespace

void CopyRows(const PlaneView& view, const float* plane, int64_t rows, int64_t columns, float* to) {
  const int64_t before = std::clamp<int64_t>(-view.column, 0, columns);
  const int64_t inside = std::clamp<int64_t>(view.width - view.column, before, columns) - before;
  const int64_t after = columns - before - inside;
  for (int64_t r = 0; r < rows; ++r, to += columns * kSideBySide) {
    const int64_t h = view.row + r;
    if (h < 0 || h >= view.height) {
      std::fill_n(to, columns * kSideBySide, 0.0f);
      continue;
    }
    std::fill_n(to, before * kSideBySide, 0.0f);
    std::memcpy(to + before * kSideBySide,
                plane + (h * view.width + view.column + before) * kSideBySide,
                static_cast<size_t>(inside * kSideBySide) * sizeof(float));
    std::fill_n(to + (before + inside) * kSideBySide, after * kSideBySide, 0.0f);
  }
}

absl::Status AddDirectForward(const DirectConv& conv, const NodePlaces& places, bool bias,
                              NodePhases& phases) {
  DirectPass pass = ForwardPass(conv, places);
  pass.math = places.math;
  pass.weights = places.parameters[0];
  if (bias) pass.bias = places.parameters[1];
  const auto made = std::make_shared<DirectKernel>(conv, std::move(pass), /*data=*/false);
  return made->Make(made, phases, phases.forward);
}

absl::Status AddDirectData(const DirectConv& conv, const NodePlaces& places, NodePhases& phases) {
  DirectPass pass = DataPass(conv, places);
  pass.math = places.math;
  pass.weights = places.parameters[0];
  const auto made = std::make_shared<DirectKernel>(conv, std::move(pass), /*data=*/true);
  return made->Make(made, phases, phases.backward);
}

}  // namespace capstan::engine
