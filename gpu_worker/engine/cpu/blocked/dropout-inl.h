// Dropout for one instruction set: math.cc includes it once for each, inside its namespace.
//
// Philox4x32-10 of training/random, 16 samples at a time. A word lies in the lower half of 64 bits; what is
// above it is not read.

#if HWY_TARGET == HWY_SCALAR

void DropoutLoop(const DropoutCall& call) {
  for (int64_t e = 0; e < call.count; e += 4) {
    for (int64_t l = 0; l < 16; ++l) {
      const training::PhiloxBlock words = training::Philox4x32(
          {static_cast<uint32_t>((call.first + e) / 4), static_cast<uint32_t>(call.second_words[l]),
           call.third_word, static_cast<uint32_t>(call.fourth_words[l])},
          {call.key[0], call.key[1]});
      for (int64_t i = 0; i < std::min<int64_t>(4, call.count - e); ++i) {
        const int64_t at = (e + i) * 16 + l;
        const float v = (words[i] >> 8) < call.threshold ? 0 : call.x[at] * call.scale;
        call.y[at] = call.add ? call.y[at] + v : v;
      }
    }
  }
}

#else

using D32 = hn::CappedTag<uint32_t, 16>;
constexpr D32 d32;
using DWord = hn::Repartition<uint64_t, D32>;
constexpr DWord dword;
using VWord = hn::Vec<DWord>;
constexpr int64_t kWords = static_cast<int64_t>(hn::MaxLanes(DWord()));

// x becomes the random words of the counters x.
HWY_INLINE void Philox(VWord (&x)[4], uint32_t key0, uint32_t key1) {
  const auto m0 = hn::Set(d32, 0xD2511F53u), m1 = hn::Set(d32, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    const VWord product0 = hn::MulEven(hn::BitCast(d32, x[0]), m0);
    const VWord product1 = hn::MulEven(hn::BitCast(d32, x[2]), m1);
    x[0] = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), x[1]), hn::Set(dword, uint64_t{key0}));
    x[2] = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), x[3]), hn::Set(dword, uint64_t{key1}));
    x[1] = product1;
    x[3] = product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

void DropoutLoop(const DropoutCall& call) {
  const hn::RebindToSigned<D32> di;
  const auto threshold = hn::Set(di, static_cast<int32_t>(call.threshold));
  const V scale = hn::Set(d, call.scale);
  for (int part = 0; part < kParts; ++part) {
    const int64_t at = part * kLanes;
    for (int64_t e = 0; e < call.count; e += 4) {
      VWord low[4], high[4];
      for (int half = 0; half < 2; ++half) {
        VWord* const x = half == 0 ? low : high;
        const int64_t sample = at + half * kWords;
        x[0] = hn::Set(dword, static_cast<uint64_t>((call.first + e) / 4));
        x[1] = hn::LoadU(dword, call.second_words + sample);
        x[2] = hn::Set(dword, uint64_t{call.third_word});
        x[3] = hn::LoadU(dword, call.fourth_words + sample);
      }
      Philox(low, call.key[0], call.key[1]);
      Philox(high, call.key[0], call.key[1]);
      const int64_t there = std::min<int64_t>(4, call.count - e);
      for (int64_t i = 0; i < there; ++i) {
        const auto words = hn::ConcatEven(d32, hn::BitCast(d32, high[i]), hn::BitCast(d32, low[i]));
        const auto dropped = hn::Lt(hn::BitCast(di, hn::ShiftRight<8>(words)), threshold);
        const float* const x = call.x + (e + i) * 16 + at;
        float* const y = call.y + (e + i) * 16 + at;
        const V v = hn::IfThenZeroElse(hn::RebindMask(d, dropped), hn::Mul(hn::Load(d, x), scale));
        hn::Store(call.add ? hn::Add(hn::Load(d, y), v) : v, d, y);
      }
    }
  }
}

#endif
