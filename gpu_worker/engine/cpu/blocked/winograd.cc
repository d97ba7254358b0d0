#include "gpu_worker/engine/cpu/blocked/winograd.h"

#include <algorithm>
#include <memory>

namespace capstan::engine {
namespace {

constexpr int64_t kGroup = 4;  // vectors multiplied together
constexpr int64_t kGroupFloats = kGroup * kSideBySide;
constexpr int64_t kRowsAtOnce = 16;  // outputs of a product, side by side in transformed weights
constexpr int64_t kPlane = 9;        // weights of a pair of channels
// Transformed values of a round: a share of an L3 cache. A round has at least kFewestTiles tiles,
// because it reads all transformed weights once.
constexpr int64_t kRoundBytes = 8 << 20;
constexpr int64_t kFewestTiles = 16;
// Frequencies lie a line more than a round number apart. Otherwise all would map to the same cache
// set.
constexpr int64_t kApart = kSideBySide;
constexpr int64_t kProductFrequency = kRowsAtOnce * kGroupFloats + kApart;
constexpr int64_t kProductFloats = kFrequencies * kProductFrequency;

alignas(64) constexpr float kNothing[kSideBySide] = {};

int64_t RoundTiles(int64_t floats_of_tile) {
  const int64_t tiles = kRoundBytes / (floats_of_tile * kFrequencies * 4);
  return std::max(tiles / kGroup * kGroup, kFewestTiles);
}

// Tiles [first, first + count) of a batch.
struct Round {
  int64_t first = 0, count = 0;
  int64_t groups() const { return CeilDivide(count, kGroup); }
};

Round RoundOf(const BatchRun& run, const WinogradConv& conv, int64_t tiles, int64_t round) {
  const int64_t all = run.blocks * conv.block_tiles();
  return {tiles * round, std::clamp<int64_t>(all - tiles * round, 0, tiles)};
}

int64_t Rounds(const WinogradConv& conv, int64_t tiles) {
  return CeilDivide(conv.max_blocks * conv.block_tiles(), tiles);
}

struct Place {
  int64_t block = 0, row = 0, column = 0;  // in the output
};
Place PlaceOf(const WinogradConv& conv, int64_t tile) {
  const int64_t in_block = tile % conv.block_tiles();
  return {tile / conv.block_tiles(), in_block / conv.across() * 4, in_block % conv.across() * 4};
}

// The addresses of a square's places, and the stride between channels. Places outside the image
// point to zeros (kNothing) and have a stride of 0.
template <int kSide>
struct Square {
  Square(const float* block, int64_t height, int64_t width, int64_t row, int64_t column,
         int64_t channel) {
    const int64_t plane = height * width * kSideBySide;
    for (int64_t r = 0; r < kSide; ++r) {
      for (int64_t s = 0; s < kSide; ++s) {
        const int64_t h = row + r, w = column + s;
        const bool there = h >= 0 && h < height && w >= 0 && w < width;
        at[r * kSide + s] =
            there ? block + channel * plane + (h * width + w) * kSideBySide : kNothing;
        steps[r * kSide + s] = there ? plane : 0;
      }
    }
  }
  const float* at[kSide * kSide];
  int64_t steps[kSide * kSide];
};

// -------------------------------------------------------------------------------------------------
// Forward and the gradient by the input. Transformed x: [frequency][group of
// tiles][channel][tile][16 samples].

class Pass {
 public:
  explicit Pass(const WinogradPass& pass)
      : pass_(pass),
        tiles_(
            std::min(RoundTiles(pass.conv.channels * kSideBySide),
                     CeilDivide(pass.conv.max_blocks * pass.conv.block_tiles(), kGroup) * kGroup)),
        output_runs_(CeilDivide(pass.conv.outputs, kRowsAtOnce)),
        // If many pieces read transformed weights only once, they need not be kept: each piece
        // makes its own.
        kept_(Rounds(pass.conv, tiles_) > 1 || output_runs_ < 8) {}

  absl::Status Make(const std::shared_ptr<Pass>& self, NodePhases& phases, std::vector<Phase>& to) {
    const WinogradConv& conv = pass_.conv;
    if (kept_) {
      absl::StatusOr<float*> memory =
          KernelMemory(phases, output_runs_ * WeightFloats(), phases.weight_bytes);
      if (!memory.ok()) return memory.status();
      weights_ = *memory;
      phases.load.push_back(
          {0, FixedPieces(output_runs_), [self](const BatchRun& run, int64_t piece, char*) {
             self->MakeWeights(run.weights, piece, self->weights_ + piece * self->WeightFloats());
           }});
    }
    phases.shared_bytes = std::max(phases.shared_bytes, kFrequencies * Frequency() * 4);
    for (int64_t round = 0; round < Rounds(conv, tiles_); ++round) {
      to.push_back({0,
                    [self, round](const BatchRun& run) {
                      return self->Tiles(run, round).groups() * self->ChannelRuns();
                    },
                    [self, round](const BatchRun& run, int64_t piece, char*) {
                      self->TransformGroup(run, self->Tiles(run, round), piece);
                    }});
      to.push_back(
          {(kProductFloats + (kept_ ? 0 : WeightFloats())) * 4,
           [self, round](const BatchRun& run) { return self->Pieces(self->Tiles(run, round)); },
           [self, round](const BatchRun& run, int64_t piece, char* scratch) {
             self->Multiply(run, self->Tiles(run, round), piece, reinterpret_cast<float*>(scratch));
           }});
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kChannelRun = 64;

  Round Tiles(const BatchRun& run, int64_t round) const {
    return RoundOf(run, pass_.conv, tiles_, round);
  }
  int64_t ChannelRuns() const { return CeilDivide(pass_.conv.channels, kChannelRun); }
  int64_t GroupFloats() const { return pass_.conv.channels * kGroupFloats; }
  int64_t Frequency() const { return tiles_ / kGroup * GroupFloats() + kApart; }
  int64_t WeightFrequency() const { return pass_.conv.channels * kRowsAtOnce + kApart; }
  int64_t WeightFloats() const { return kFrequencies * WeightFrequency(); }

  // [frequency][channel][16 outputs], with zeros after the last output.
  void MakeWeights(const float* flat, int64_t output_run, float* to) const {
    const WinogradConv& conv = pass_.conv;
    const int64_t first = output_run * kRowsAtOnce;
    const int64_t outputs = std::min(kRowsAtOnce, conv.outputs - first);
    alignas(64) float square[kPlane * kRowsAtOnce] = {};
    const float* at[kPlane];
    const int64_t steps[kPlane] = {};
    for (int64_t k = 0; k < kPlane; ++k) at[k] = square + k * kRowsAtOnce;
    TransformCall call{at, steps, 1, to, WeightFrequency(), 0};
    const float* from = flat + pass_.weights + first * (pass_.turned ? 1 : conv.channels) * kPlane;
    const int64_t next_output = (pass_.turned ? 1 : conv.channels) * kPlane;
    const int64_t next_channel = (pass_.turned ? conv.outputs : 1) * kPlane;
    for (int64_t c = 0; c < conv.channels; ++c, from += next_channel, call.to += kRowsAtOnce) {
      for (int64_t o = 0; o < outputs; ++o) {
        const float* const w = from + o * next_output;
        for (int64_t k = 0; k < kPlane; ++k) {
          square[k * kRowsAtOnce + o] = w[pass_.turned ? kPlane - 1 - k : k];
        }
      }
      pass_.conv.math->transform_weights(call);
    }
  }

  void TransformGroup(const BatchRun& run, const Round& round, int64_t piece) const {
    const WinogradConv& conv = pass_.conv;
    const int64_t group = piece / ChannelRuns();
    const int64_t channel = piece % ChannelRuns() * kChannelRun;
    for (int64_t i = 0; i < std::min(kGroup, round.count - group * kGroup); ++i) {
      const Place place = PlaceOf(conv, round.first + group * kGroup + i);
      const Square<6> square(
          pass_.x + place.block * conv.channels * conv.height * conv.width * kSideBySide,
          conv.height, conv.width, place.row - conv.top, place.column - conv.left, channel);
      pass_.conv.math->transform_image(
          {square.at, square.steps, std::min(kChannelRun, conv.channels - channel),
           run.shared + group * GroupFloats() + channel * kGroupFloats + i * kSideBySide,
           Frequency(), kGroupFloats});
    }
  }

  // A piece has some groups and some runs of outputs. Weights that are not kept are made for one
  // run.
  int64_t OutputCuts(const Round& round) const {
    return kept_ ? std::min(output_runs_, CeilDivide(kFewestTiles, round.groups())) : output_runs_;
  }
  int64_t Pieces(const Round& round) const {
    if (round.count == 0) return 0;
    return (kept_ ? round.groups() : 1) * OutputCuts(round);
  }

  void Multiply(const BatchRun& run, const Round& round, int64_t piece, float* scratch) const {
    const int64_t cuts = OutputCuts(round), cut = piece % cuts;
    const int64_t first_group = kept_ ? piece / cuts : 0;
    const int64_t groups = kept_ ? 1 : round.groups();
    for (int64_t output_run = output_runs_ * cut / cuts;
         output_run < output_runs_ * (cut + 1) / cuts; ++output_run) {
      float* weights = scratch + kProductFloats;
      if (kept_) {
        weights = weights_ + output_run * WeightFloats();
      } else {
        MakeWeights(run.weights, output_run, weights);
      }
      for (int64_t group = first_group; group < first_group + groups; ++group) {
        MultiplyGroup(run, round, group, output_run, weights, scratch);
      }
    }
  }

  void MultiplyGroup(const BatchRun& run, const Round& round, int64_t group, int64_t output_run,
                     const float* weights, float* products) const {
    const WinogradConv& conv = pass_.conv;
    const int64_t output = output_run * kRowsAtOnce;
    FrequencyCall call;
    call.depth = conv.channels;
    call.rows = std::min(kRowsAtOnce, conv.outputs - output);
    call.vectors = std::min(kGroup, round.count - group * kGroup);
    for (int64_t f = 0; f < kFrequencies; ++f) {
      call.w = weights + f * WeightFrequency();
      call.x = run.shared + f * Frequency() + group * GroupFloats();
      call.y = products + f * kProductFrequency;
      pass_.conv.math->frequency_products(call);
    }
    const int64_t plane = conv.rows * conv.columns * kSideBySide;
    InverseCall inverse;
    inverse.from_frequency = kProductFrequency;
    inverse.y_row = conv.columns * kSideBySide;
    inverse.add = pass_.add;
    for (int64_t i = 0; i < call.vectors; ++i) {
      const Place place = PlaceOf(conv, round.first + group * kGroup + i);
      inverse.rows = std::min<int64_t>(4, conv.rows - place.row);
      inverse.columns = std::min<int64_t>(4, conv.columns - place.column);
      for (int64_t o = 0; o < call.rows; ++o) {
        inverse.from = products + o * kGroupFloats + i * kSideBySide;
        inverse.bias = pass_.bias < 0 ? 0 : run.weights[pass_.bias + output + o];
        inverse.y = pass_.y + (place.block * conv.outputs + output + o) * plane +
                    (place.row * conv.columns + place.column) * kSideBySide;
        pass_.conv.math->inverse_output(inverse);
      }
    }
  }

  const WinogradPass pass_;
  const int64_t tiles_;  // per round
  const int64_t output_runs_;
  const bool kept_;
  float* weights_ = nullptr;
};

// -------------------------------------------------------------------------------------------------
// The gradient by the weights. Transformed x: [frequency][64 channels][tile and sample][64];
// transformed dy: [frequency][16 outputs][tile and sample][16]. With several rounds, the sums of
// each pair of runs follow: [frequency][16 outputs][64 channels].

class Weights {
 public:
  explicit Weights(const WinogradWeights& pass)
      : pass_(pass),
        channel_runs_(CeilDivide(pass.conv.channels, kGroupFloats)),
        output_runs_(CeilDivide(pass.conv.outputs, kRowsAtOnce)),
        tiles_(std::min(
            RoundTiles((channel_runs_ * kGroupFloats + output_runs_ * kRowsAtOnce) * kSideBySide),
            pass.conv.max_blocks * pass.conv.block_tiles())) {}

  void Make(const std::shared_ptr<Weights>& self, NodePhases& phases) {
    const int64_t rounds = Rounds(pass_.conv, tiles_);
    int64_t floats = kFrequencies * (XFrequency() + DyFrequency());
    if (rounds > 1) floats += channel_runs_ * output_runs_ * kProductFloats;
    phases.shared_bytes = std::max(phases.shared_bytes, floats * 4);
    for (int64_t round = 0; round < rounds; ++round) {
      phases.backward.push_back({kFrequencies * kSideBySide * kSideBySide * 4,
                                 [self, round](const BatchRun& run) {
                                   return self->Tiles(run, round).count *
                                          (self->channel_runs_ + self->DyPieces());
                                 },
                                 [self, round](const BatchRun& run, int64_t piece, char* scratch) {
                                   self->TransformTile(run, self->Tiles(run, round), piece,
                                                       reinterpret_cast<float*>(scratch));
                                 }});
      phases.backward.push_back(
          {kProductFloats * 4,
           [self, round](const BatchRun& run) {
             return self->Tiles(run, round).count == 0 ? 0
                                                       : self->channel_runs_ * self->output_runs_;
           },
           [self, round](const BatchRun& run, int64_t piece, char* scratch) {
             self->Multiply(run, round, piece, reinterpret_cast<float*>(scratch));
           }});
    }
  }

 private:
  static constexpr int64_t kDyRuns = 4;  // runs of outputs per piece

  Round Tiles(const BatchRun& run, int64_t round) const {
    return RoundOf(run, pass_.conv, tiles_, round);
  }
  int64_t DyPieces() const { return CeilDivide(output_runs_, kDyRuns); }
  int64_t Depth() const { return tiles_ * kSideBySide; }
  int64_t XFrequency() const { return channel_runs_ * Depth() * kGroupFloats + kApart; }
  int64_t DyFrequency() const { return output_runs_ * Depth() * kRowsAtOnce + kApart; }
  float* Dy(const BatchRun& run) const { return run.shared + kFrequencies * XFrequency(); }
  float* Sums(const BatchRun& run) const { return Dy(run) + kFrequencies * DyFrequency(); }

  // Transposes 16 channels of a square, so that they lie side by side for each sample:
  // [place][sample][16].
  template <int kSide>
  void Turn(const Square<kSide>& square, int64_t channels, float* to) const {
    alignas(64) float rows[kSideBySide * kSideBySide];
    for (int64_t k = 0; k < kSide * kSide; ++k) {
      const float* from = square.at[k];
      int64_t step = square.steps[k];
      float* const at = to + k * kSideBySide * kSideBySide;
      if (step == 0) {
        std::fill_n(at, kSideBySide * kSideBySide, 0.0f);
        continue;
      }
      if (channels < kSideBySide) {
        std::fill_n(rows, kSideBySide * kSideBySide, 0.0f);
        for (int64_t c = 0; c < channels; ++c) {
          std::copy_n(from + c * step, kSideBySide, rows + c * kSideBySide);
        }
        from = rows;
        step = kSideBySide;
      }
      pass_.conv.math->transpose(from, step, at, kSideBySide);
    }
  }

  void TransformTile(const BatchRun& run, const Round& round, int64_t piece, float* turned) const {
    const WinogradConv& conv = pass_.conv;
    const int64_t each = channel_runs_ + DyPieces();
    const int64_t tile = piece / each, which = piece % each;
    const Place place = PlaceOf(conv, round.first + tile);
    const float* at[kFrequencies];
    int64_t steps[kFrequencies];
    for (int64_t k = 0; k < kFrequencies; ++k) {
      at[k] = turned + k * kSideBySide * kSideBySide;
      steps[k] = kSideBySide;
    }
    TransformCall call{at, steps, kSideBySide, nullptr, 0, 0};
    if (which < channel_runs_) {
      call.to_frequency = XFrequency();
      call.to_step = kGroupFloats;
      float* const to = run.shared + (which * Depth() + tile * kSideBySide) * kGroupFloats;
      for (int64_t i = 0; i < kGroup; ++i) {
        const int64_t channel = which * kGroupFloats + i * kSideBySide;
        if (channel >= conv.channels) break;
        Turn(Square<6>(
                 pass_.x + place.block * conv.channels * conv.height * conv.width * kSideBySide,
                 conv.height, conv.width, place.row - conv.top, place.column - conv.left, channel),
             std::min(kSideBySide, conv.channels - channel), turned);
        call.to = to + i * kSideBySide;
        pass_.conv.math->transform_image(call);
      }
      return;
    }
    const int64_t first = (which - channel_runs_) * kDyRuns;
    call.to_frequency = DyFrequency();
    call.to_step = kRowsAtOnce;
    for (int64_t i = first; i < std::min(first + kDyRuns, output_runs_); ++i) {
      const int64_t output = i * kRowsAtOnce;
      Turn(Square<4>(pass_.dy + place.block * conv.outputs * conv.rows * conv.columns * kSideBySide,
                     conv.rows, conv.columns, place.row, place.column, output),
           std::min(kRowsAtOnce, conv.outputs - output), turned);
      call.to = Dy(run) + (i * Depth() + tile * kSideBySide) * kRowsAtOnce;
      pass_.conv.math->transform_gradient(call);
    }
  }

  void Multiply(const BatchRun& run, int64_t round, int64_t piece, float* scratch) const {
    const WinogradConv& conv = pass_.conv;
    const int64_t channel_run = piece / output_runs_, output_run = piece % output_runs_;
    const int64_t channel = channel_run * kGroupFloats, output = output_run * kRowsAtOnce;
    const int64_t channels = std::min(kGroupFloats, conv.channels - channel);
    const bool last = Tiles(run, round + 1).count == 0;
    float* const sums = round == 0 && last ? scratch : Sums(run) + piece * kProductFloats;
    FrequencyCall call;
    call.depth = Tiles(run, round).count * kSideBySide;
    call.rows = std::min(kRowsAtOnce, conv.outputs - output);
    call.vectors = CeilDivide(channels, kSideBySide);
    call.add = round > 0;
    for (int64_t f = 0; f < kFrequencies; ++f) {
      call.w = Dy(run) + f * DyFrequency() + output_run * Depth() * kRowsAtOnce;
      call.x = run.shared + f * XFrequency() + channel_run * Depth() * kGroupFloats;
      call.y = sums + f * kProductFrequency;
      pass_.conv.math->frequency_products(call);
    }
    if (!last) return;
    alignas(64) float planes[kPlane * kSideBySide];
    for (int64_t o = 0; o < call.rows; ++o) {
      float* const to =
          run.gradient + pass_.weights + ((output + o) * conv.channels + channel) * kPlane;
      for (int64_t i = 0; i < call.vectors; ++i) {
        pass_.conv.math->inverse_weights(sums + o * kGroupFloats + i * kSideBySide,
                                         kProductFrequency, planes);
        for (int64_t c = 0; c < std::min(kSideBySide, channels - i * kSideBySide); ++c) {
          for (int64_t k = 0; k < kPlane; ++k) {
            to[(i * kSideBySide + c) * kPlane + k] = planes[k * kSideBySide + c];
          }
        }
      }
    }
  }

  const WinogradWeights pass_;
  const int64_t channel_runs_, output_runs_;
  const int64_t tiles_;  // per round
};

}  // namespace

// Measured on one Zen 4 core. From 16 channels on both sides, the transforms pay off: 8 x 8
// channels are slower by the weights; 16 x 16 are faster by a fifth or more in each pass. Of 144
// products of a tile 36 are left, and those beyond the border are wasted. 5 x 5 places, with two
// thirds of the direct products, are still faster by a third. 2 x 2 places, with as many products
// as direct ones, are slower.
bool WinogradPays(const WinogradConv& conv) {
  return conv.channels >= kRowsAtOnce && conv.outputs >= kRowsAtOnce &&
         3 * 4 * conv.block_tiles() <= 2 * conv.rows * conv.columns;
}

absl::Status AddWinogradPass(const WinogradPass& pass, NodePhases& phases, std::vector<Phase>& to) {
  const auto made = std::make_shared<Pass>(pass);
  return made->Make(made, phases, to);
}

void AddWinogradWeights(const WinogradWeights& pass, NodePhases& phases) {
  const auto made = std::make_shared<Weights>(pass);
  made->Make(made, phases);
}

}  // namespace capstan::engine
