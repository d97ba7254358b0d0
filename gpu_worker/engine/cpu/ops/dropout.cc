// Dropout: Philox4x32-10 of training/random, 16 samples at a time, with the bits of the reference
// in training/ops/dropout.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/ops/dropout.cc"
#include "training/ops/dropout/dropout.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/runs.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"
#include "training/random/philox.h"

// Once, even though this file is included several times.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_DROPOUT_CALL_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_DROPOUT_CALL_
namespace capstan::engine {
// y = (add ? y : 0) + (dropped ? 0 : x * scale) for elements [first, first + count) of a block.
// Element e of sample l is dropped if the upper 24 bits of word e % 4 of Philox's block with the
// counter (e / 4, second_words[l], third_word, fourth_words[l]) are below `threshold`. y may be x.
struct DropoutCall {
  int64_t first = 0;  // a multiple of 4
  int64_t count = 0;
  const uint64_t* second_words = nullptr;  // [16]
  uint32_t third_word = 0;
  const uint64_t* fourth_words = nullptr;  // [16]
  uint32_t key[2] = {};
  uint32_t threshold = 0;
  float scale = 1;
  const float* x = nullptr;  // of the first element
  float* y = nullptr;
  bool add = false;
};
}  // namespace capstan::engine
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {

#include "gpu_worker/engine/cpu/blocked/vectors-inl.h"

}  // namespace

// A word lies in the lower half of 64 bits. The upper half is not read.
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

// Replaces the counters x by their random words.
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

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {
namespace {

// Dropout's factors. A piece is a run of elements of a block.
class DropoutMask {
 public:
  DropoutMask(const training::Graph& graph, int node, const BlockedMath& math)
      : math_(&math),
        loop_(CAPSTAN_FORM_OF(DropoutLoop, math)),
        elements_(graph.value_elements(graph.output_of(node))),
        index_(graph.instance(node).index),
        ratio_(training::Dropout::Read(graph.instance(node).attributes).ratio) {}

  std::function<int64_t(const BatchRun&)> pieces() const {
    return [each = Pieces()](const BatchRun& run) { return run.blocks * each; };
  }

  // y = (add ? y : 0) + x times the factors, which are 1 in evaluation.
  void Apply(const BatchRun& run, int64_t piece, const float* x, float* y, bool add) const {
    const int64_t block = piece / Pieces();
    DropoutCall call;
    call.first = piece % Pieces() * kPieceElements;
    call.count = std::min(kPieceElements, elements_ - call.first);
    const int64_t at = (block * elements_ + call.first) * kSideBySide;
    if (!run.samples.training) {
      if (x != y) math_->copy(call.count * kSideBySide, x + at, y + at, add);
      return;
    }
    alignas(64) uint64_t second[kSideBySide] = {}, fourth[kSideBySide] = {};
    for (int64_t l = 0; l < run.InBlock(block); ++l) {
      const training::PhiloxCounter counter = training::DropoutCounter(
          /*block=*/0, run.samples.ids[block * kSideBySide + l], run.samples.epoch, index_);
      second[l] = counter[1];
      fourth[l] = counter[3];
    }
    const training::PhiloxKey key =
        training::MakePhiloxKey(run.samples.seed, training::Purpose::kDropout);
    call.second_words = second;
    call.third_word = run.samples.epoch;
    call.fourth_words = fourth;
    call.key[0] = key[0];
    call.key[1] = key[1];
    call.threshold = training::DropoutThreshold(ratio_);
    call.scale = static_cast<float>(1 / (1 - ratio_));
    call.x = x + at;
    call.y = y + at;
    call.add = add;
    loop_(call);
  }

 private:
  static constexpr int64_t kPieceElements = kPieceFloats / kSideBySide;

  int64_t Pieces() const { return CeilDivide(elements_, kPieceElements); }

  const BlockedMath* const math_;
  void (*const loop_)(const DropoutCall& call);
  const int64_t elements_;
  const int index_;
  const double ratio_;
};

}  // namespace

absl::StatusOr<NodePhases> MakeDropoutPhases(const training::Graph& graph, int node,
                                             const NodePlaces& places) {
  const DropoutMask mask(graph, node, *places.math);
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, mask.pieces(), [mask, places](const BatchRun& run, int64_t piece, char*) {
         mask.Apply(run, piece, places.x[0], places.y, /*add=*/false);
       }});
  if (places.backward && places.dx[0].data != nullptr) {
    phases.backward.push_back(
        {0, mask.pieces(), [mask, places](const BatchRun& run, int64_t piece, char*) {
           mask.Apply(run, piece, places.dy, places.dx[0].data, places.dx[0].add);
         }});
  }
  return phases;
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
