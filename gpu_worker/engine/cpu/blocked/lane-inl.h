// The loops of lane_math.h; part of math.cc, once per instruction set.
//
// How many sums are in registers at a time only affects the speed. Each sum is computed by itself.

HWY_INLINE V ReluOf(V v) { return hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Zero(d), v); }

// Stores the bits of one part of the 16 samples.
HWY_INLINE void StoreBits(hn::Mask<D> mask, uint8_t* bytes, int part) {
  if constexpr (kLanes >= 8) {
    hn::StoreMaskBits(d, mask, bytes + part * kLanes / 8);
  } else {
    uint8_t bits[8];
    hn::StoreMaskBits(d, mask, bits);
    const int shift = part * kLanes % 8;
    uint8_t& to = bytes[part * kLanes / 8];
    to = static_cast<uint8_t>((shift == 0 ? 0 : to) | bits[0] << shift);
  }
}

HWY_INLINE hn::Mask<D> LoadBits(const uint8_t* bytes, int part) {
  if constexpr (kLanes >= 8) return hn::LoadMaskBits(d, bytes + part * kLanes / 8);
  const int bits = bytes[part * kLanes / 8] >> (part * kLanes % 8) & ((1 << kLanes) - 1);
  const uint8_t aligned[8] = {static_cast<uint8_t>(bits)};
  return hn::LoadMaskBits(d, aligned);
}

// The four places of a window are in the order (0, 0), (0, 1), (1, 0), (1, 1).
template <bool kMax>
HWY_INLINE void PoolWindow(const V (&a)[4], float* y, uint8_t* masks, int part) {
  const V zero = hn::Zero(d);
  if constexpr (kMax) {
    const hn::Mask<D> nan =
        hn::Or(hn::Or(hn::IsNaN(a[0]), hn::IsNaN(a[1])), hn::Or(hn::IsNaN(a[2]), hn::IsNaN(a[3])));
    V largest = hn::Max(hn::Max(a[0], a[1]), hn::Max(a[2], a[3]));
    largest = hn::IfThenElse(nan, hn::NaN(d), largest);
    hn::Mask<D> left = hn::Gt(largest, zero);
    for (int i = 0; i < 4; ++i) {
      const hn::Mask<D> here = hn::And(left, hn::Eq(a[i], largest));
      StoreBits(here, masks + 2 * i, part);
      left = hn::AndNot(here, left);
    }
    hn::Store(ReluOf(largest), d, y);
  } else {
    for (int i = 0; i < 4; ++i) StoreBits(hn::Gt(a[i], zero), masks + 2 * i, part);
    const V sum = hn::Add(hn::Add(hn::Add(ReluOf(a[0]), ReluOf(a[1])), ReluOf(a[2])), ReluOf(a[3]));
    hn::Store(hn::Mul(sum, hn::Set(d, 0.25f)), d, y);
  }
}

// Computes kOutputs windows of the same place.
template <int kOutputs, bool kMax>
HWY_INLINE void ConvPoolTile(const ConvPoolCall& call, int64_t first_output, const float* x,
                             float* y, uint8_t* masks, int part) {
  V sums[kOutputs][4];
  for (int o = 0; o < kOutputs; ++o) {
    const V start = call.bias == nullptr ? hn::Zero(d) : hn::Set(d, call.bias[first_output + o]);
    for (int i = 0; i < 4; ++i) sums[o][i] = start;
  }
  const int64_t depth = call.channels * call.tap_count;
  const float* weights = call.weights + first_output * depth;
  // With this order LeNet's golden run keeps to its record (tests/contract/device_golden.cc). With
  // the channels outside it takes the other way at a near tie.
  for (int64_t t = 0; t < call.tap_count; ++t) {
    const float* at = x + call.taps[t];
    const float* w_at = weights + t;
    for (int64_t c = 0; c < call.channels; ++c, at += call.channel_stride, w_at += call.tap_count) {
      const V v[4] = {hn::Load(d, at), hn::Load(d, at + 16), hn::Load(d, at + call.x_row),
                      hn::Load(d, at + call.x_row + 16)};
      for (int o = 0; o < kOutputs; ++o) {
        const V w = hn::Set(d, w_at[o * depth]);
        for (int i = 0; i < 4; ++i) sums[o][i] = Fma(w, v[i], sums[o][i]);
      }
    }
  }
  const int64_t windows = call.rows * call.columns;
  for (int o = 0; o < kOutputs; ++o) {
    PoolWindow<kMax>(sums[o], y + o * windows * 16, masks + o * windows * kMaskBytes, part);
  }
}

template <int kOutputs, bool kMax>
void ConvPoolWindows(const ConvPoolCall& call, int64_t first_output, int part) {
  int64_t at = first_output * call.rows * call.columns;
  for (int64_t p = 0; p < call.rows; ++p) {
    const float* const x = call.x + 2 * p * call.x_row + part * kLanes;
    for (int64_t q = 0; q < call.columns; ++q, ++at) {
      ConvPoolTile<kOutputs, kMax>(call, first_output, x + 2 * q * 16,
                                   call.y + at * 16 + part * kLanes, call.masks + at * kMaskBytes,
                                   part);
    }
  }
}

// Register use: 6 x 4 sums if there are 32 registers, else 2 x 4. Outputs are cut into tiles that
// are as equal as possible.
constexpr int kWindowsAtOnce = kParts == 1 ? 6 : 2;

// `outputs` is 1 to kMost.
template <int kMost, bool kMax>
void ConvPoolOutputs(const ConvPoolCall& call, int64_t first_output, int64_t outputs, int part) {
  if (outputs == kMost) return ConvPoolWindows<kMost, kMax>(call, first_output, part);
  if constexpr (kMost > 1) ConvPoolOutputs<kMost - 1, kMax>(call, first_output, outputs, part);
}

template <bool kMax>
void ConvPoolOf(const ConvPoolCall& call) {
  const int64_t tiles = (call.outputs + kWindowsAtOnce - 1) / kWindowsAtOnce;
  for (int part = 0; part < kParts; ++part) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t o = call.outputs * tile / tiles;
      const int64_t outputs = call.outputs * (tile + 1) / tiles - o;
      ConvPoolOutputs<kWindowsAtOnce, kMax>(call, o, outputs, part);
    }
  }
}

void ConvPool(const ConvPoolCall& call) {
  return call.max ? ConvPoolOf<true>(call) : ConvPoolOf<false>(call);
}

void Unpool(const UnpoolCall& call) {
  const V scale = hn::Set(d, call.scale);
  const int64_t row = 2 * call.columns * 16;
  for (int part = 0; part < kParts; ++part) {
    const float* dy = call.dy + part * kLanes;
    const uint8_t* masks = call.masks;
    float* to = call.to + part * kLanes;
    V sum = call.sums == nullptr ? hn::Zero(d) : hn::Load(d, call.sums + part * kLanes);
    for (int64_t p = 0; p < call.rows; ++p, to += row) {
      for (int64_t q = 0; q < call.columns; ++q, dy += 16, masks += kMaskBytes, to += 32) {
        const V v = hn::Mul(hn::Load(d, dy), scale);
        const V a = hn::IfThenElseZero(LoadBits(masks, part), v);
        const V b = hn::IfThenElseZero(LoadBits(masks + 2, part), v);
        const V c = hn::IfThenElseZero(LoadBits(masks + 4, part), v);
        const V e = hn::IfThenElseZero(LoadBits(masks + 6, part), v);
        hn::Store(a, d, to);
        hn::Store(b, d, to + 16);
        hn::Store(c, d, to + row);
        hn::Store(e, d, to + row + 16);
        sum = hn::Add(sum, hn::Add(hn::Add(a, b), hn::Add(c, e)));
      }
    }
    if (call.sums != nullptr) hn::Store(sum, d, call.sums + part * kLanes);
  }
}

// One row of the gradient, for kWidth columns of dy from `first_column` on. Continues from what
// earlier columns have added to the row.
template <int kChannels, int kTaps, int kWidth>
HWY_INLINE void SpreadTile(const SpreadCall& call, int64_t channel, int64_t h, int64_t first_column,
                           int part) {
  constexpr int kReach = kWidth + kTaps - 1;
  V sums[kChannels][kReach];
  float* const dx =
      call.dx + channel * call.dx_plane + h * call.dx_row + first_column * 16 + part * kLanes;
  const int kept = call.add ? kReach : first_column > 0 ? kTaps - 1 : 0;
  for (int c = 0; c < kChannels; ++c) {
    _Pragma("GCC unroll 16") for (int j = 0; j < kReach; ++j) {
      sums[c][j] = j < kept ? hn::Load(d, dx + c * call.dx_plane + j * 16) : hn::Zero(d);
    }
  }
  const int64_t kernel = call.kernel_rows * kTaps;
  const int64_t first = HWY_MAX(h - call.rows + 1, 0);
  const int64_t last = HWY_MIN(h, call.kernel_rows - 1);
  const float* dy = call.dy + first_column * 16 + part * kLanes;
  const float* weights = call.weights + channel * kernel;
  for (int64_t o = 0; o < call.outputs; ++o) {
    for (int64_t r = first; r <= last; ++r) {
      const float* const row = dy + (h - r) * call.columns * 16;
      _Pragma("GCC unroll 8") for (int t = 0; t < kTaps; ++t) {
        V w[kChannels];
        for (int c = 0; c < kChannels; ++c) w[c] = hn::Set(d, weights[c * kernel + r * kTaps + t]);
        _Pragma("GCC unroll 16") for (int q = 0; q < kWidth; ++q) {
          const V v = hn::Load(d, row + q * 16);
          for (int c = 0; c < kChannels; ++c) sums[c][q + t] = Fma(w[c], v, sums[c][q + t]);
        }
      }
    }
    dy += call.rows * call.columns * 16;
    weights += call.weight_stride;
  }
  for (int c = 0; c < kChannels; ++c) {
    _Pragma("GCC unroll 16") for (int j = 0; j < kReach; ++j) {
      hn::Store(sums[c][j], d, dx + c * call.dx_plane + j * 16);
    }
  }
}

// `width` is even, 2 to kWidest.
template <int kChannels, int kTaps, int kWidest>
HWY_INLINE void SpreadColumns(const SpreadCall& call, int64_t channel, int64_t h, int64_t first,
                              int64_t width, int part) {
  if (width == kWidest) {
    SpreadTile<kChannels, kTaps, kWidest>(call, channel, h, first, part);
  } else if constexpr (kWidest > 2) {
    SpreadColumns<kChannels, kTaps, kWidest - 2>(call, channel, h, first, width, part);
  }
}

template <int kChannels, int kTaps>
void SpreadRow(const SpreadCall& call, int64_t channel, int64_t h, int part) {
  constexpr int kWidest = kTaps == 3 ? 10 : 8;
  const int64_t pairs = call.columns / 2;
  const int64_t tiles = (2 * pairs + kWidest - 1) / kWidest;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t q = pairs * tile / tiles;
    const int64_t width = 2 * (pairs * (tile + 1) / tiles - q);
    SpreadColumns<kChannels, kTaps, kWidest>(call, channel, h, 2 * q, width, part);
  }
}

template <int kTaps>
void SpreadOf(const SpreadCall& call) {
  constexpr int kAtOnce = kParts == 1 ? 2 : 1;
  for (int part = 0; part < kParts; ++part) {
    for (int64_t h = 0; h < call.rows + call.kernel_rows - 1; ++h) {
      int64_t c = 0;
      for (; c + kAtOnce <= call.channels; c += kAtOnce) {
        SpreadRow<kAtOnce, kTaps>(call, c, h, part);
      }
      if (c < call.channels) SpreadRow<1, kTaps>(call, c, h, part);
    }
  }
}

void Spread(const SpreadCall& call) {
  return call.kernel_columns == 3 ? SpreadOf<3>(call) : SpreadOf<5>(call);
}

template <int kOutputs, int kVectors>
HWY_INLINE void DenseTile(const DenseCall& call, int64_t first_output, int64_t first_vector,
                          int part) {
  V sums[kOutputs][kVectors];
  float* const y = call.y + first_vector * call.y_step + first_output * 16 + part * kLanes;
  for (int o = 0; o < kOutputs; ++o) {
    const V start = call.bias == nullptr ? hn::Zero(d) : hn::Set(d, call.bias[first_output + o]);
    for (int j = 0; j < kVectors; ++j) {
      sums[o][j] = call.add ? hn::Load(d, y + j * call.y_step + o * 16) : start;
    }
  }
  const float* weights = call.weights + first_output * call.w_output;
  const float* x = call.x + first_vector * call.x_step + part * kLanes;
  for (int64_t k = 0; k < call.depth; ++k, x += 16, weights += call.w_depth) {
    V v[kVectors];
    for (int j = 0; j < kVectors; ++j) v[j] = hn::Load(d, x + j * call.x_step);
    for (int o = 0; o < kOutputs; ++o) {
      const V w = hn::Set(d, weights[o * call.w_output]);
      for (int j = 0; j < kVectors; ++j) sums[o][j] = Fma(w, v[j], sums[o][j]);
    }
  }
  for (int o = 0; o < kOutputs; ++o) {
    for (int j = 0; j < kVectors; ++j) {
      const V sum = call.relu ? ReluOf(sums[o][j]) : sums[o][j];
      hn::Store(sum, d, y + j * call.y_step + o * 16);
    }
  }
}

template <int kVectors>
HWY_INLINE void DenseOutputs(const DenseCall& call, int64_t first_vector, int part) {
  constexpr int kAtOnce = kParts == 1 ? 8 : 4;
  int64_t o = 0;
  for (; o + kAtOnce <= call.outputs; o += kAtOnce) {
    DenseTile<kAtOnce, kVectors>(call, o, first_vector, part);
  }
  if (kAtOnce == 8 && call.outputs - o >= 4) {
    DenseTile<4, kVectors>(call, o, first_vector, part);
    o += 4;
  }
  if (call.outputs - o >= 2) {
    DenseTile<2, kVectors>(call, o, first_vector, part);
    o += 2;
  }
  if (o < call.outputs) DenseTile<1, kVectors>(call, o, first_vector, part);
}

void Dense(const DenseCall& call) {
  const int64_t tiles = (call.count + 2) / 3;
  for (int part = 0; part < kParts; ++part) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t j = call.count * tile / tiles;
      switch (call.count * (tile + 1) / tiles - j) {
        case 1:
          DenseOutputs<1>(call, j, part);
          break;
        case 2:
          DenseOutputs<2>(call, j, part);
          break;
        default:
          DenseOutputs<3>(call, j, part);
      }
    }
  }
}

// Sums of 16 samples by the tree of SumOfSamples, for as many vectors at a time as a register has
// lanes. Each step adds the remaining halves of two vectors.
#if HWY_TARGET != HWY_SCALAR
// Blocks of 4 lanes: [a0 + a1, b0 + b1, a2 + a3, ...].
HWY_INLINE V AddBlocks(V a, V b) {
  return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
}
// In each block: [a0 + a2, a1 + a3, b0 + b2, b1 + b3].
HWY_INLINE V AddPairs(V a, V b) {
  const hn::Repartition<double, D> dd;
  const auto x = hn::BitCast(dd, a), y = hn::BitCast(dd, b);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(dd, x, y)),
                 hn::BitCast(d, hn::InterleaveUpper(dd, x, y)));
}
// In each block: [a0 + a1, b0 + b1, a2 + a3, b2 + b3].
HWY_INLINE V AddNeighbours(V a, V b) {
  return hn::Add(hn::OddEven(b, a), hn::Shuffle2301(hn::OddEven(a, b)));
}
// Reduces the vector at `a`, and with 16 lanes the one 8 vectors later, to 8 numbers each.
HWY_INLINE V SumEight(const float* a) {
  if constexpr (kLanes == 16) {
    const V low = hn::Load(d, a), high = hn::Load(d, a + 8 * 16);
    return hn::Add(hn::ConcatLowerLower(d, high, low), hn::ConcatUpperUpper(d, high, low));
  }
  return hn::Add(hn::Load(d, a), hn::Load(d, a + 8));
}
// Reduces four vectors to 4 numbers each, in the blocks of the result: the vector at `a` and those
// 4, 8 and 12 later.
HWY_INLINE V SumFour(const float* a) {
  if constexpr (kLanes == 4) return hn::Add(SumEight(a), SumEight(a + 4));
  return AddBlocks(SumEight(a), SumEight(a + 4 * 16));
}
// Sums as many vectors as there are lanes, from `a` on.
HWY_INLINE V SumLanes(const float* a) {
  return AddNeighbours(AddPairs(SumFour(a), SumFour(a + 2 * 16)),
                       AddPairs(SumFour(a + 16), SumFour(a + 3 * 16)));
}
#endif

// to[i] = the sum of the 16 samples of vector i, i < 16.
HWY_INLINE void SumSixteen(const float* from, float* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 16; ++i) to[i] = SumOfSamples(from + i * 16);
#else
  for (int i = 0; i < 16; i += kLanes) hn::StoreU(SumLanes(from + i * 16), d, to + i);
#endif
}

void SumSamples(int64_t count, const float* from, float* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) SumSixteen(from + i * 16, to + i);
  for (; i < count; ++i) to[i] = SumOfSamples(from + i * 16);
}

// kVectors registers of inputs.
template <int kOutputs, int kVectors>
HWY_INLINE void DenseWeightsTile(const DenseWeightsCall& call, int64_t output, int64_t input) {
  V sums[kOutputs][kVectors];
  _Pragma("GCC unroll 12") for (int o = 0; o < kOutputs; ++o) {
    for (int k = 0; k < kVectors; ++k) sums[o][k] = hn::Zero(d);
  }
  const float* dy = call.dy + output * 16;
  const float* x = call.x + input;
  for (int64_t first = 0; first < call.samples; first += 16, dy += call.dy_step) {
    const int64_t there = HWY_MIN(16, call.samples - first);
    for (int64_t l = 0; l < there; ++l, x += kDenseInputs) {
      V v[kVectors];
      for (int k = 0; k < kVectors; ++k) v[k] = hn::Load(d, x + k * kLanes);
      _Pragma("GCC unroll 12") for (int o = 0; o < kOutputs; ++o) {
        const V g = hn::Set(d, dy[o * 16 + l]);
        for (int k = 0; k < kVectors; ++k) sums[o][k] = Fma(g, v[k], sums[o][k]);
      }
    }
  }
  float* const to = call.to + output * kDenseInputs + input;
  _Pragma("GCC unroll 12") for (int o = 0; o < kOutputs; ++o) {
    for (int k = 0; k < kVectors; ++k) {
      hn::Store(sums[o][k], d, to + o * kDenseInputs + k * kLanes);
    }
  }
}

// `outputs` is 1 to kMost.
template <int kMost, int kVectors>
HWY_INLINE void DenseWeightsOutputs(const DenseWeightsCall& call, int64_t first, int64_t outputs,
                                    int64_t input) {
  if (outputs == kMost) {
    DenseWeightsTile<kMost, kVectors>(call, first, input);
  } else if constexpr (kMost > 1) {
    DenseWeightsOutputs<kMost - 1, kVectors>(call, first, outputs, input);
  }
}

// Register use: 12 x 2 sums if there are 32 registers, else 6 x 2.
void DenseWeights(const DenseWeightsCall& call) {
  constexpr int kAtOnce = kParts == 1 ? 12 : 6;
  int64_t i = 0;
  for (; i + 2 * kLanes <= call.inputs; i += 2 * kLanes) {
    for (int64_t o = 0; o < call.outputs; o += kAtOnce) {
      DenseWeightsOutputs<kAtOnce, 2>(call, o, HWY_MIN(kAtOnce, call.outputs - o), i);
    }
  }
  for (; i < call.inputs; i += kLanes) {
    for (int64_t o = 0; o < call.outputs; o += kAtOnce) {
      DenseWeightsOutputs<kAtOnce, 1>(call, o, HWY_MIN(kAtOnce, call.outputs - o), i);
    }
  }
}
