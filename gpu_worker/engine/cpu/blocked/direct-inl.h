// Inner loops of direct convolutions for one instruction set. math.cc includes this file once per
// set, inside its namespace, and provides V, d, kLanes, kParts and Fma.

// kOutputs x kPlaces sums, over one part of the 16 samples.
template <int kOutputs, int kPlaces>
HWY_INLINE void PlaceTile(const PlaceProductsCall& call, const PlaceOffsets* places,
                          int64_t first_output, int part) {
  V sums[kOutputs][kPlaces];
  float* const y = call.y + first_output * call.y_plane + part * kLanes;
  const int64_t there = call.outputs - first_output;
  for (int o = 0; o < kOutputs; ++o) {
    const V start =
        call.bias == nullptr || o >= there ? hn::Zero(d) : hn::Set(d, call.bias[first_output + o]);
    for (int j = 0; j < kPlaces; ++j) {
      sums[o][j] = call.add && o < there ? hn::Load(d, y + o * call.y_plane + places[j].y) : start;
    }
  }
  const float* at[kPlaces];
  for (int j = 0; j < kPlaces; ++j) at[j] = call.x + places[j].x + part * kLanes;
  const float* weights =
      call.weights + first_output / kTileOutputs * call.next_run + first_output % kTileOutputs;
  for (int64_t c = 0; c < call.channels; ++c) {
    const int64_t channel = c * call.channel_stride;
    for (int64_t t = 0; t < call.tap_count; ++t, weights += kTileOutputs) {
      const int64_t offset = channel + call.taps[t];
      V x[kPlaces];
      for (int j = 0; j < kPlaces; ++j) x[j] = hn::Load(d, at[j] + offset);
      for (int o = 0; o < kOutputs; ++o) {
        const V w = hn::Set(d, weights[o]);
        for (int j = 0; j < kPlaces; ++j) sums[o][j] = Fma(w, x[j], sums[o][j]);
      }
    }
  }
  for (int o = 0; o < kOutputs; ++o) {
    if (o >= there) break;
    for (int j = 0; j < kPlaces; ++j) {
      hn::Store(sums[o][j], d, y + o * call.y_plane + places[j].y);
    }
  }
}

// Loops over outputs outside, so that their weights stay in an L1 cache and y is written along its
// rows.
template <int kOutputs>
HWY_INLINE void PlaceTiles(const PlaceProductsCall& call, int64_t first_output, int part) {
  const PlaceOffsets* const places = call.places;
  int64_t j = 0;
  for (; j + 3 <= call.count; j += 3) PlaceTile<kOutputs, 3>(call, places + j, first_output, part);
  if (call.count - j == 2) PlaceTile<kOutputs, 2>(call, places + j, first_output, part);
  if (call.count - j == 1) PlaceTile<kOutputs, 1>(call, places + j, first_output, part);
}

// For an only output, e.g. of a depthwise convolution: more places instead of more outputs.
HWY_INLINE void PlacesOfOne(const PlaceProductsCall& call, int part) {
  const PlaceOffsets* const places = call.places;
  int64_t j = 0;
  for (; j + 8 <= call.count; j += 8) PlaceTile<1, 8>(call, places + j, 0, part);
  if (call.count - j >= 4) {
    PlaceTile<1, 4>(call, places + j, 0, part);
    j += 4;
  }
  if (call.count - j >= 2) {
    PlaceTile<1, 2>(call, places + j, 0, part);
    j += 2;
  }
  if (call.count > j) PlaceTile<1, 1>(call, places + j, 0, part);
}

// Register use: 8 x 3 sums if there are 32 registers, else 4 x 3.
void PlaceProducts(const PlaceProductsCall& call) {
  constexpr int kOutputs = kParts == 1 ? 8 : 4;
  if (call.outputs == 1) {
    for (int part = 0; part < kParts; ++part) PlacesOfOne(call, part);
    return;
  }
  for (int part = 0; part < kParts; ++part) {
    int64_t o = 0;
    for (; call.outputs - o > 4; o += kOutputs) PlaceTiles<kOutputs>(call, o, part);
    if (o < call.outputs) PlaceTiles<4>(call, o, part);
  }
}

// kRows x kRegisters sums. The rows' factors are broadcast, sample by sample.
template <int kRows, int kRegisters>
HWY_INLINE void OuterTile(const OuterSumsCall& call, int64_t first_row, int64_t first_float) {
  V sums[kRows][kRegisters];
  for (int r = 0; r < kRows; ++r) {
    for (int k = 0; k < kRegisters; ++k) sums[r][k] = hn::Zero(d);
  }
  const int64_t width = call.vectors * 16;
  const float* dy_row = call.dy + first_float;
  const float* x_row = call.x + first_row * call.x_plane;
  for (int64_t p = 0; p < call.rows; ++p, dy_row += call.dy_row, x_row += call.x_row) {
    const float* dy = dy_row;
    const float* x = x_row;
    for (int64_t q = 0; q < call.columns; ++q, x += call.x_step) {
      const float* at[kRows];
      for (int r = 0; r < kRows; ++r) at[r] = x + r * call.x_plane;
      for (int64_t s = 0; s < 16; ++s, dy += width) {
        V g[kRegisters];
        for (int k = 0; k < kRegisters; ++k) g[k] = hn::Load(d, dy + k * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const V v = hn::Set(d, at[r][s]);
          for (int k = 0; k < kRegisters; ++k) sums[r][k] = Fma(v, g[k], sums[r][k]);
        }
      }
    }
  }
  float* const out = call.sums + first_row * width + first_float;
  for (int r = 0; r < kRows; ++r) {
    for (int k = 0; k < kRegisters; ++k) {
      float* const to = out + r * width + k * kLanes;
      hn::Store(hn::Add(hn::Load(d, to), sums[r][k]), d, to);
    }
  }
}

template <int kRows, int kRegisters>
HWY_INLINE void OuterTiles(const OuterSumsCall& call, int64_t first_float) {
  int64_t r = 0;
  for (; r + kRows <= call.count; r += kRows) OuterTile<kRows, kRegisters>(call, r, first_float);
  if (kRows > 4 && call.count - r >= 4) {
    OuterTile<4, kRegisters>(call, r, first_float);
    r += 4;
  }
  switch (call.count - r) {
    case 1:
      return OuterTile<1, kRegisters>(call, r, first_float);
    case 2:
      return OuterTile<2, kRegisters>(call, r, first_float);
    case 3:
      return OuterTile<3, kRegisters>(call, r, first_float);
    default:
      return;
  }
}

// 24 sums if there are 32 registers, else 12.
void OuterSums(const OuterSumsCall& call) {
  constexpr int kAtOnce = kParts == 1 ? 4 : 2;
  const int64_t floats = call.vectors * 16;
  int64_t at = 0;
  for (; at + kAtOnce * kLanes <= floats; at += kAtOnce * kLanes) OuterTiles<6, kAtOnce>(call, at);
  if (kAtOnce == 4 && floats - at == 3 * kLanes) OuterTiles<8, 3>(call, at);
  if (kAtOnce == 4 && floats - at == 2 * kLanes) OuterTiles<8, 2>(call, at);
  if (kAtOnce == 4 && floats - at == kLanes) OuterTiles<8, 1>(call, at);
}
