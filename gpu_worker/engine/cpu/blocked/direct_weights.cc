// Gradients by the weights of direct convolutions.
#include <algorithm>
#include <memory>
#include <utility>

#include "gpu_worker/engine/cpu/blocked/direct.h"

namespace capstan::engine {
namespace {

constexpr int64_t kFewestWeightPieces = 8;

// Places [first, last) of the output where a tap of the kernel meets the input.
struct Meeting {
  Meeting(const DirectConv& conv, int axis, int64_t tap) {
    const int64_t stride = conv.window.strides[axis];
    const int64_t size = axis == 0 ? conv.height : conv.width;
    shift = tap * conv.window.dilations[axis] - conv.window.pads[axis];
    first = shift >= 0 ? 0 : CeilDivide(-shift, stride);
    last = shift >= size ? 0 : (size - 1 - shift) / stride + 1;
    last = std::min(last, axis == 0 ? conv.rows : conv.columns);
  }
  int64_t first = 0, last = 0;
  int64_t shift = 0;  // place p meets the input at p * stride + shift
};

// Outputs lie side by side. A piece has a run of outputs and one of channels. If there are few
// pieces, each also has only a part of the blocks, and a second phase adds the sums of the parts in
// order. Each piece transposes the gradient by the output, band by band, to
// [place][sample][outputs]. It reads x directly. The sums of a band begin at 0 and are added to
// those of earlier bands.
class TurnedWeights {
 public:
  // Decided by shape alone. Fewer channels leave registers empty; fewer rows do not make up for the
  // transposition.
  static bool Pays(const DirectConv& conv) {
    return conv.outputs >= kSideBySide && conv.channels >= 4 &&
           conv.channels * conv.tap_count() >= kFewRows;
  }

  TurnedWeights(const DirectConv& conv, const NodePlaces& places) : conv_(conv), places_(places) {
    // A place is transposed once for all channels and taps of a piece, which costs as much as about
    // 10 of them.
    const int64_t vectors = CeilDivide(conv.outputs, kSideBySide);
    vectors_ = CeilDivide(vectors, CeilDivide(vectors, kMostVectors));
    channels_ =
        std::min(conv.channels, RoundUp(CeilDivide(kManyRows, conv.tap_count()), kSideBySide));
    while (Tiles() < kFewestWeightPieces && channels_ > kSideBySide &&
           channels_ * conv.tap_count() > kFewRows) {
      channels_ = RoundUp(channels_ / 2, kSideBySide);
    }
    band_columns_ = CeilDivide(conv.columns, CeilDivide(conv.columns, kBandPlaces));
    band_rows_ = std::clamp<int64_t>(kBandPlaces / band_columns_, 1, conv.rows);
  }

  void Make(const std::shared_ptr<TurnedWeights>& self, NodePhases& phases) const {
    const bool parts = Parts(places_.max_blocks) > 1;
    const int64_t turned_bytes = BandFloats() * 4;
    if (parts) {
      phases.shared_bytes =
          std::max(phases.shared_bytes, Parts(places_.max_blocks) * Tiles() * SumFloats() * 4);
    }
    phases.backward.push_back(
        {turned_bytes + (parts ? 0 : SumFloats() * 4),
         [self](const BatchRun& run) { return self->Parts(run.blocks) * self->Tiles(); },
         [self, parts](const BatchRun& run, int64_t piece, char* scratch) {
           float* const turned = reinterpret_cast<float*>(scratch);
           float* const sums =
               parts ? run.shared + piece * self->SumFloats() : turned + self->BandFloats();
           const int64_t tile = piece % self->Tiles(), part = piece / self->Tiles();
           self->Sum(run, tile, part, turned, sums);
           if (!parts) self->Write(run, tile, sums);
         }});
    if (!parts) return;
    phases.backward.push_back(
        {0, FixedPieces(Tiles()), [self](const BatchRun& run, int64_t tile, char*) {
           float* const sums = run.shared + tile * self->SumFloats();
           for (int64_t part = 1; part < self->Parts(run.blocks); ++part) {
             self->places_.math->copy(self->SumFloats(),
                                      sums + part * self->Tiles() * self->SumFloats(), sums,
                                      /*add=*/true);
           }
           self->Write(run, tile, sums);
         }});
  }

 private:
  static constexpr int64_t kMostVectors = 4;
  static constexpr int64_t kManyRows = 256, kFewRows = 64;
  static constexpr int64_t kBandPlaces = 32;

  int64_t OutputRuns() const { return CeilDivide(conv_.outputs, Width()); }
  int64_t ChannelRuns() const { return CeilDivide(conv_.channels, channels_); }
  int64_t Tiles() const { return conv_.groups * OutputRuns() * ChannelRuns(); }
  int64_t Parts(int64_t blocks) const {
    return std::min(blocks, CeilDivide(kFewestWeightPieces, Tiles()));
  }
  int64_t Width() const { return vectors_ * kSideBySide; }
  int64_t BandFloats() const { return band_rows_ * band_columns_ * kSideBySide * Width(); }
  // [tap][channel][outputs of a run], in whole squares of 16.
  int64_t TapFloats() const { return RoundUp(channels_, kSideBySide) * Width(); }
  int64_t SumFloats() const { return conv_.tap_count() * TapFloats(); }

  struct Tile {
    int64_t group = 0;
    int64_t output = 0, outputs = 0;  // within the group
    int64_t channel = 0, channels = 0;
  };
  Tile TileOf(int64_t index) const {
    Tile tile;
    tile.output = index % OutputRuns() * Width();
    tile.channel = index / OutputRuns() % ChannelRuns() * channels_;
    tile.group = index / OutputRuns() / ChannelRuns();
    tile.outputs = std::min(Width(), conv_.outputs - tile.output);
    tile.channels = std::min(channels_, conv_.channels - tile.channel);
    return tile;
  }

  void Sum(const BatchRun& run, int64_t index, int64_t part, float* turned, float* sums) const {
    const Tile tile = TileOf(index);
    const int64_t parts = Parts(run.blocks);
    std::fill_n(sums, SumFloats(), 0.0f);
    for (int64_t block = run.blocks * part / parts; block < run.blocks * (part + 1) / parts;
         ++block) {
      const float* const x = places_.x[0] + block * conv_.x_block() +
                             (tile.group * conv_.channels + tile.channel) * conv_.x_plane();
      const float* const dy = places_.dy + block * conv_.y_block() +
                              (tile.group * conv_.outputs + tile.output) * conv_.y_plane();
      for (int64_t p = 0; p < conv_.rows; p += band_rows_) {
        for (int64_t q = 0; q < conv_.columns; q += band_columns_) {
          const Band band = {p, std::min(p + band_rows_, conv_.rows), q,
                             std::min(q + band_columns_, conv_.columns)};
          Turn(tile, band, dy, turned);
          AddBand(tile, band, x, turned, sums);
        }
      }
    }
  }

  struct Band {
    int64_t first_row, last_row, first_column, last_column;
  };

  // To [row of the band][column of the band][sample][outputs], with zeros after the last output.
  void Turn(const Tile& tile, const Band& band, const float* dy, float* to) const {
    alignas(64) float rows[kSideBySide * kSideBySide];
    for (int64_t v = 0; v < vectors_; ++v) {
      const int64_t output = v * kSideBySide;
      const int64_t outputs = std::clamp<int64_t>(tile.outputs - output, 0, kSideBySide);
      float* at = to + output;
      for (int64_t p = band.first_row; p < band.last_row; ++p) {
        for (int64_t q = band.first_column; q < band.last_column;
             ++q, at += kSideBySide * Width()) {
          const float* from = dy + output * conv_.y_plane() + (p * conv_.columns + q) * kSideBySide;
          int64_t step = conv_.y_plane();
          if (outputs < kSideBySide) {
            std::fill_n(rows, kSideBySide * kSideBySide, 0.0f);
            for (int64_t o = 0; o < outputs; ++o) {
              std::copy_n(from + o * step, kSideBySide, rows + o * kSideBySide);
            }
            from = rows;
            step = kSideBySide;
          }
          places_.math->transpose(from, step, at, Width());
        }
      }
    }
  }

  void AddBand(const Tile& tile, const Band& band, const float* x, const float* turned,
               float* sums) const {
    const training::Window& window = conv_.window;
    OuterSumsCall call;
    call.dy_row = (band.last_column - band.first_column) * kSideBySide * Width();
    call.vectors = vectors_;
    call.x_plane = conv_.x_plane();
    call.x_row = window.strides[0] * conv_.width * kSideBySide;
    call.x_step = window.strides[1] * kSideBySide;
    call.count = tile.channels;
    for (int64_t r = 0; r < window.kernel_shape[0]; ++r) {
      const Meeting down(conv_, 0, r);
      const int64_t p = std::max(down.first, band.first_row);
      call.rows = std::min(down.last, band.last_row) - p;
      if (call.rows < 1) continue;
      for (int64_t s = 0; s < window.kernel_shape[1]; ++s) {
        const Meeting across(conv_, 1, s);
        const int64_t q = std::max(across.first, band.first_column);
        call.columns = std::min(across.last, band.last_column) - q;
        if (call.columns < 1) continue;
        call.x = x + ((p * window.strides[0] + down.shift) * conv_.width + q * window.strides[1] +
                      across.shift) *
                         kSideBySide;
        call.dy = turned + (p - band.first_row) * call.dy_row +
                  (q - band.first_column) * kSideBySide * Width();
        call.sums = sums + (r * window.kernel_shape[1] + s) * TapFloats();
        places_.math->outer_sums(call);
      }
    }
  }

  void Write(const BatchRun& run, int64_t index, const float* sums) const {
    const Tile tile = TileOf(index);
    const int64_t taps = conv_.tap_count();
    alignas(64) float square[kSideBySide * kSideBySide];
    for (int64_t o = 0; o < tile.outputs; o += kSideBySide) {
      const int64_t outputs = std::min(kSideBySide, tile.outputs - o);
      for (int64_t c = 0; c < tile.channels; c += kSideBySide) {
        const int64_t channels = std::min(kSideBySide, tile.channels - c);
        float* const to =
            run.gradient + places_.parameters[0] +
            ((tile.group * conv_.outputs + tile.output + o) * conv_.channels + tile.channel + c) *
                taps;
        for (int64_t t = 0; t < taps; ++t) {
          places_.math->transpose(sums + t * TapFloats() + c * Width() + o, Width(), square,
                                  kSideBySide);
          for (int64_t i = 0; i < outputs; ++i) {
            for (int64_t k = 0; k < channels; ++k) {
              to[(i * conv_.channels + k) * taps + t] = square[i * kSideBySide + k];
            }
          }
        }
      }
    }
  }

  const DirectConv conv_;
  const NodePlaces places_;
  int64_t vectors_ = 0;   // of 16 outputs
  int64_t channels_ = 0;  // per piece
  int64_t band_rows_ = 0, band_columns_ = 0;
};

// Samples lie side by side and are added after all blocks are summed. For few outputs or few
// channels. A piece has some channels with some outputs. Rows of x are copied, band by band, with
// their margins.
class SampleWeights {
 public:
  SampleWeights(const DirectConv& conv, const NodePlaces& places)
      : conv_(conv),
        places_(places),
        channels_(conv.channels >= 32  ? 4
                  : conv.channels >= 8 ? 2
                                       : 1),
        output_runs_(std::min(CeilDivide(kFewestWeightPieces, conv.groups * ChannelRuns()),
                              CeilDivide(conv.outputs, kTileOutputs))),
        outputs_(CeilDivide(conv.outputs, output_runs_)),
        band_rows_(std::clamp<int64_t>(
            (conv.channels * conv.outputs == 1 ? kDepthwisePlaces : kBandPlaces) / conv.columns, 1,
            conv.rows)),
        copied_columns_((conv.columns - 1) * conv.window.strides[1] + conv.reach(1)),
        copied_plane_(((band_rows_ - 1) * conv.window.strides[0] + conv.reach(0)) *
                      copied_columns_ * kSideBySide) {
    for (int64_t c = 0; c < channels_; ++c) {
      for (int64_t r = 0; r < conv.window.kernel_shape[0]; ++r) {
        for (int64_t s = 0; s < conv.window.kernel_shape[1]; ++s) {
          offsets_.push_back(c * copied_plane_ + (r * conv.window.dilations[0] * copied_columns_ +
                                                  s * conv.window.dilations[1]) *
                                                     kSideBySide);
        }
      }
    }
  }

  void Make(const std::shared_ptr<SampleWeights>& self, NodePhases& phases) const {
    const int64_t floats = channels_ * (copied_plane_ + outputs_ * conv_.tap_count() * kSideBySide);
    phases.backward.push_back({floats * 4, FixedPieces(conv_.groups * ChannelRuns() * output_runs_),
                               [self](const BatchRun& run, int64_t piece, char* scratch) {
                                 self->Sum(run, piece, reinterpret_cast<float*>(scratch));
                               }});
  }

 private:
  // A band of a depthwise convolution has more rows, because fewer are copied twice.
  static constexpr int64_t kBandPlaces = 64, kDepthwisePlaces = 256;

  int64_t ChannelRuns() const { return CeilDivide(conv_.channels, channels_); }

  void Sum(const BatchRun& run, int64_t piece, float* copied) const {
    const int64_t output = piece % output_runs_ * outputs_;
    const int64_t channel = piece / output_runs_ % ChannelRuns() * channels_;
    const int64_t group = piece / output_runs_ / ChannelRuns();
    const int64_t channels = std::min(channels_, conv_.channels - channel);
    const int64_t factors = channels * conv_.tap_count();
    WeightSumsCall call;
    call.outputs = std::min(outputs_, conv_.outputs - output);
    if (call.outputs < 1) return;
    call.columns = conv_.columns;
    call.dy_plane = conv_.y_plane();
    call.dy_row = conv_.columns * kSideBySide;
    call.x = copied;
    call.x_row = conv_.window.strides[0] * copied_columns_ * kSideBySide;
    call.x_step = conv_.window.strides[1] * kSideBySide;
    float* const sums = copied + channels_ * copied_plane_;
    std::fill_n(sums, factors * call.outputs * kSideBySide, 0.0f);
    for (int64_t block = 0; block < run.blocks; ++block) {
      const float* const x = places_.x[0] + block * conv_.x_block() +
                             (group * conv_.channels + channel) * conv_.x_plane();
      const float* const dy =
          places_.dy + block * conv_.y_block() + (group * conv_.outputs + output) * conv_.y_plane();
      for (int64_t p = 0; p < conv_.rows; p += band_rows_) {
        Copy(x, channels, p, copied);
        call.rows = std::min(band_rows_, conv_.rows - p);
        call.dy = dy + p * call.dy_row;
        for (int64_t f = 0; f < factors; f += kMostTaps) {
          call.taps = offsets_.data() + f;
          call.tap_count = std::min(kMostTaps, factors - f);
          call.sums = sums + f * call.outputs * kSideBySide;
          places_.math->weight_sums(call);
        }
      }
    }
    const float* at = sums;
    for (int64_t f = 0; f < factors; f += kMostTaps) {
      const int64_t taps = std::min(kMostTaps, factors - f);
      for (int64_t o = 0; o < call.outputs; ++o) {
        float* const to =
            run.gradient + places_.parameters[0] + f +
            ((group * conv_.outputs + output + o) * conv_.channels + channel) * conv_.tap_count();
        for (int64_t k = 0; k < taps; ++k, at += kSideBySide) to[k] = SumOfSamples(at);
      }
    }
  }

  // Copies the rows of x that the band at row p of the output meets.
  void Copy(const float* x, int64_t channels, int64_t p, float* to) const {
    for (int64_t c = 0; c < channels; ++c) {
      CopyRows({conv_.height, conv_.width, p * conv_.window.strides[0] - conv_.window.pads[0],
                -conv_.window.pads[1]},
               x + c * conv_.x_plane(), copied_plane_ / copied_columns_ / kSideBySide,
               copied_columns_, to + c * copied_plane_);
    }
  }

  const DirectConv conv_;
  const NodePlaces places_;
  const int64_t channels_;  // per piece
  const int64_t output_runs_, outputs_;
  const int64_t band_rows_, copied_columns_, copied_plane_;
  std::vector<int64_t> offsets_;  // in the copy, by channel and tap
};

}  // namespace

void AddDirectWeights(const DirectConv& conv, const NodePlaces& places, NodePhases& phases) {
  if (TurnedWeights::Pays(conv)) {
    const auto made = std::make_shared<TurnedWeights>(conv, places);
    made->Make(made, phases);
  } else {
    const auto made = std::make_shared<SampleWeights>(conv, places);
    made->Make(made, phases);
  }
}

}  // namespace capstan::engine
