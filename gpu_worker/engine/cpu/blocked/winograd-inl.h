// Inner loops of Winograd's F(4x4, 3x3) for one instruction set. math.cc includes this file once
// per set, inside its namespace, and provides V, d, kLanes, kParts and Fma.
//
// Points 0, 1, -1, 2, -2 and infinity (Lavin & Gray 2016, arXiv:1509.09308).

// B^T of a column of 6 values.
HWY_INLINE void ImageColumn(const V* x, V* to) {
  const V two = hn::Set(d, 2.0f), four = hn::Set(d, 4.0f);
  const V minus_two = hn::Set(d, -2.0f), minus_four = hn::Set(d, -4.0f),
          minus_five = hn::Set(d, -5.0f);
  const V a = Fma(minus_four, x[2], x[4]), b = Fma(minus_four, x[1], x[3]);
  const V c = hn::Sub(x[4], x[2]), e = hn::Sub(x[3], x[1]);
  to[0] = Fma(four, x[0], Fma(minus_five, x[2], x[4]));
  to[1] = hn::Add(a, b);
  to[2] = hn::Sub(a, b);
  to[3] = Fma(two, e, c);
  to[4] = Fma(minus_two, e, c);
  to[5] = Fma(four, x[1], Fma(minus_five, x[3], x[5]));
}

// A of a column of 4 values.
HWY_INLINE void GradientColumn(const V* x, V* to) {
  const V two = hn::Set(d, 2.0f), four = hn::Set(d, 4.0f);
  const V even = hn::Add(x[0], x[2]), odd = hn::Add(x[1], x[3]);
  const V far_even = Fma(four, x[2], x[0]), far_odd = Fma(four, x[3], x[1]);
  to[0] = x[0];
  to[1] = hn::Add(even, odd);
  to[2] = hn::Sub(even, odd);
  to[3] = Fma(two, far_odd, far_even);
  to[4] = Fma(hn::Set(d, -2.0f), far_odd, far_even);
  to[5] = x[3];
}

// G of a column of 3 values.
HWY_INLINE void WeightColumn(const V* x, V* to) {
  const V sixth = hn::Set(d, -1.0f / 6), far = hn::Set(d, 1.0f / 24);
  const V ends = hn::Add(x[0], x[2]);
  const V far_ends = Fma(hn::Set(d, 4.0f), x[2], x[0]), twice = hn::Add(x[1], x[1]);
  to[0] = hn::Mul(hn::Set(d, 0.25f), x[0]);
  to[1] = hn::Mul(sixth, hn::Add(ends, x[1]));
  to[2] = hn::Mul(sixth, hn::Sub(ends, x[1]));
  to[3] = hn::Mul(far, hn::Add(far_ends, twice));
  to[4] = hn::Mul(far, hn::Sub(far_ends, twice));
  to[5] = x[2];
}

// A^T of a column of 6 values.
HWY_INLINE void OutputColumn(const V* x, V* to) {
  const V near_sum = hn::Add(x[1], x[2]), near_difference = hn::Sub(x[1], x[2]);
  const V far_sum = hn::Add(x[3], x[4]), far_difference = hn::Sub(x[3], x[4]);
  to[0] = hn::Add(hn::Add(x[0], near_sum), far_sum);
  to[1] = Fma(hn::Set(d, 2.0f), far_difference, near_difference);
  to[2] = Fma(hn::Set(d, 4.0f), far_sum, near_sum);
  to[3] = hn::Add(Fma(hn::Set(d, 8.0f), far_difference, near_difference), x[5]);
}

// G^T of a column of 6 values.
HWY_INLINE void WeightGradientColumn(const V* x, V* to) {
  const V sixth = hn::Set(d, 1.0f / 6), minus_sixth = hn::Set(d, -1.0f / 6);
  const V near_sum = hn::Add(x[1], x[2]), near_difference = hn::Sub(x[2], x[1]);
  const V far_sum = hn::Add(x[3], x[4]), far_difference = hn::Sub(x[3], x[4]);
  to[0] = Fma(hn::Set(d, 0.25f), x[0],
              Fma(minus_sixth, near_sum, hn::Mul(hn::Set(d, 1.0f / 24), far_sum)));
  to[1] = Fma(sixth, near_difference, hn::Mul(hn::Set(d, 1.0f / 12), far_difference));
  to[2] = Fma(minus_sixth, near_sum, Fma(sixth, far_sum, x[5]));
}

// Transforms kFrom x kFrom values at `at` into kTo x kTo values at `to`: columns first, then rows.
template <int kFrom, int kTo, typename Column>
HWY_INLINE void Transform(const float* const* at, float* to, int64_t to_stride, Column column) {
  V half[kTo][kFrom];
  for (int s = 0; s < kFrom; ++s) {
    V x[kFrom], y[kTo];
    for (int r = 0; r < kFrom; ++r) x[r] = hn::Load(d, at[r * kFrom + s]);
    column(x, y);
    for (int r = 0; r < kTo; ++r) half[r][s] = y[r];
  }
  for (int r = 0; r < kTo; ++r) {
    V y[kTo];
    column(half[r], y);
    for (int s = 0; s < kTo; ++s) hn::Store(y[s], d, to + (r * kTo + s) * to_stride);
  }
}

template <int kFrom, typename Column>
HWY_INLINE void TransformAll(const TransformCall& call, Column column) {
  const float* at[kFrom * kFrom];
  for (int part = 0; part < kParts; ++part) {
    for (int k = 0; k < kFrom * kFrom; ++k) at[k] = call.at[k] + part * kLanes;
    float* to = call.to + part * kLanes;
    for (int64_t i = 0; i < call.count; ++i, to += call.to_step) {
      Transform<kFrom, 6>(at, to, call.to_frequency, column);
      for (int k = 0; k < kFrom * kFrom; ++k) at[k] += call.steps[k];
    }
  }
}

void TransformImage(const TransformCall& call) { TransformAll<6>(call, ImageColumn); }
void TransformGradient(const TransformCall& call) { TransformAll<4>(call, GradientColumn); }
void TransformWeights(const TransformCall& call) { TransformAll<3>(call, WeightColumn); }

void InverseWeights(const float* from, int64_t from_frequency, float* to) {
  for (int part = 0; part < kParts; ++part) {
    const float* at[36];
    for (int f = 0; f < 36; ++f) at[f] = from + f * from_frequency + part * kLanes;
    Transform<6, 3>(at, to + part * kLanes, 16, WeightGradientColumn);
  }
}

void InverseOutput(const InverseCall& call) {
  for (int part = 0; part < kParts; ++part) {
    V half[4][6];
    const float* const from = call.from + part * kLanes;
    for (int s = 0; s < 6; ++s) {
      V x[6], y[4];
      for (int r = 0; r < 6; ++r) x[r] = hn::Load(d, from + (r * 6 + s) * call.from_frequency);
      OutputColumn(x, y);
      for (int r = 0; r < 4; ++r) half[r][s] = y[r];
    }
    const V bias = hn::Set(d, call.bias);
    for (int64_t r = 0; r < 4; ++r) {
      V y[4];
      OutputColumn(half[r], y);
      if (r >= call.rows) break;
      float* const to = call.y + r * call.y_row + part * kLanes;
      for (int64_t s = 0; s < 4; ++s) {
        if (s >= call.columns) break;
        const V value = hn::Add(y[s], bias);
        hn::Store(call.add ? hn::Add(hn::Load(d, to + s * 16), value) : value, d, to + s * 16);
      }
    }
  }
}

template <int kRows, int kVectors>
HWY_INLINE void FrequencyTile(const FrequencyCall& call, int64_t first_row, int64_t first_vector,
                              int part) {
  V sums[kRows][kVectors];
  float* const y = call.y + first_row * 64 + first_vector * 16 + part * kLanes;
  for (int o = 0; o < kRows; ++o) {
    for (int j = 0; j < kVectors; ++j) {
      sums[o][j] = call.add ? hn::Load(d, y + o * 64 + j * 16) : hn::Zero(d);
    }
  }
  const float* w = call.w + first_row;
  const float* x = call.x + first_vector * 16 + part * kLanes;
  for (int64_t c = 0; c < call.depth; ++c, w += 16, x += 64) {
    V v[kVectors];
    for (int j = 0; j < kVectors; ++j) v[j] = hn::Load(d, x + j * 16);
    for (int o = 0; o < kRows; ++o) {
      const V u = hn::Set(d, w[o]);
      for (int j = 0; j < kVectors; ++j) sums[o][j] = Fma(u, v[j], sums[o][j]);
    }
  }
  for (int o = 0; o < kRows; ++o) {
    for (int j = 0; j < kVectors; ++j) hn::Store(sums[o][j], d, y + o * 64 + j * 16);
  }
}

// 24 sums if there are 32 registers, else 12.
template <int kVectors>
HWY_INLINE void FrequencyRows(const FrequencyCall& call, int64_t first_vector, int part) {
  int64_t o = 0;
  for (; call.rows - o > 4; o += 6) FrequencyTile<6, kVectors>(call, o, first_vector, part);
  if (o < call.rows) FrequencyTile<4, kVectors>(call, o, first_vector, part);
}

void FrequencyProducts(const FrequencyCall& call) {
  constexpr int kAtOnce = kParts == 1 ? 4 : 2;
  for (int part = 0; part < kParts; ++part) {
    int64_t j = 0;
    for (; j + kAtOnce <= call.vectors; j += kAtOnce) FrequencyRows<kAtOnce>(call, j, part);
    if (kAtOnce == 4 && call.vectors - j == 3) FrequencyRows<3>(call, j, part);
    if (kAtOnce == 4 && call.vectors - j == 2) FrequencyRows<2>(call, j, part);
    if (call.vectors - j == 1) FrequencyRows<1>(call, j, part);
  }
}

// 16 rows of 16 floats, in squares of 4 x 4 if a register has 4 lanes.
void Transpose(const float* from, int64_t from_row, float* to, int64_t to_row) {
#if HWY_TARGET != HWY_SCALAR
  using D4 = hn::CappedTag<float, 4>;
  constexpr D4 d4;
  const hn::Repartition<double, D4> d2;
  for (int64_t r = 0; r < 16; r += 4) {
    for (int64_t c = 0; c < 16; c += 4) {
      const auto a0 = hn::LoadU(d4, from + r * from_row + c);
      const auto a1 = hn::LoadU(d4, from + (r + 1) * from_row + c);
      const auto a2 = hn::LoadU(d4, from + (r + 2) * from_row + c);
      const auto a3 = hn::LoadU(d4, from + (r + 3) * from_row + c);
      const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d4, a0, a1));
      const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d4, a2, a3));
      const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d4, a0, a1));
      const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d4, a2, a3));
      float* const at = to + c * to_row + r;
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, low01, low23)), d4, at);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, low01, low23)), d4, at + to_row);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, high01, high23)), d4, at + 2 * to_row);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, high01, high23)), d4, at + 3 * to_row);
    }
  }
#else
  for (int64_t r = 0; r < 16; ++r) {
    for (int64_t c = 0; c < 16; ++c) to[c * to_row + r] = from[r * from_row + c];
  }
#endif
}
